"""What trained models show, against numpy on the weights and samples of the same run."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

import fedloom as fl
from benchmarks.figures import probes
from fedloom.core.errors import ConfigError
from fedloom.core.streams import Streams
from fedloom.results.result import Result

NET = {"name": "mlp", "hidden": [8]}


@pytest.fixture(scope="module")
def dealt() -> Any:
    return fl.scenario("digits", partition="dirichlet", alpha=0.5, clients=3).build(0)


@pytest.fixture(scope="module")
def run(dealt: Any) -> Result:
    return fl.run("fedavg", scenario=dealt, model=NET, rounds=2, local_epochs=1)


@pytest.fixture(scope="module")
def alone(dealt: Any) -> Result:
    evaluation = {"protocol": "personal/local"}
    return fl.run("local", scenario=dealt, model=NET, rounds=1, local_epochs=1, evaluation=evaluation)


def training(dealt: Any) -> tuple[torch.Tensor, np.ndarray]:
    held = torch.from_numpy(dealt.train.order)
    return dealt.train_set.gather(held), dealt.train_set.y[held].numpy()


def softmax(z: np.ndarray) -> np.ndarray:
    e = np.exp(z - z.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def test_relations_are_means_of_outputs_and_softmax_of_the_gram_matrix(run: Result, dealt: Any) -> None:
    rows = probes.relations(run)
    got = {name: np.zeros((10, 10)) for name in ("SL", "CR")}
    for row in rows:
        got[row["matrix"]][row["i"], row["j"]] = row["value"]
    net = run.model()
    x, y = training(dealt)
    with torch.no_grad():
        outputs = softmax(net(x).double().numpy())
    soft = np.stack([outputs[y == c].mean(0) for c in range(10)])
    w = net.head.weight.detach().double().numpy()
    related = softmax(w @ w.T)
    assert got["SL"] == pytest.approx(soft, abs=1e-6)
    assert got["CR"] == pytest.approx(related, abs=1e-12)
    (distance,) = {row["distance"] for row in rows if row["matrix"] == "CR"}
    assert distance == pytest.approx(((soft - related) ** 2).sum() / 100, rel=1e-5)
    off = ~np.eye(10, dtype=bool)
    (correlation,) = {row["correlation"] for row in rows if row["matrix"] == "CR"}
    assert correlation == pytest.approx(np.corrcoef(soft[off], related[off])[0, 1], rel=1e-4)


def test_norms_of_personal_models_stand_beside_their_clients_data(alone: Result, dealt: Any) -> None:
    rows = probes.norms(alone)
    assert [(row["client"], row["class"]) for row in rows] == list(itertools.product(range(3), range(10)))
    own = [row for row in rows if row["client"] == 1]
    lengths = np.linalg.norm(alone.model(1).head.weight.detach().numpy(), axis=1)
    labels = dealt.train_set.y.numpy()[dealt.train[1]]
    shares = np.bincount(labels, minlength=10) / len(labels)
    assert [row["norm"] for row in own] == pytest.approx(lengths / lengths.sum())
    assert [row["share"] for row in own] == pytest.approx(shares)
    assert own[0]["rank_correlation"] == pytest.approx(spearmanr(shares, lengths).statistic)


def test_a_surface_has_the_loss_of_the_moved_weights(run: Result, dealt: Any) -> None:
    rows = probes.surface(run, steps=3, samples=50)
    assert [(row["x"], row["y"]) for row in rows] == [(x, y) for y in (-1, 0, 1) for x in (-1, 0, 1)]
    x, y = training(dealt)
    chosen = np.linspace(0, len(y) - 1, 50).astype(int)
    with torch.no_grad():
        outputs = softmax(run.model()(x[chosen]).double().numpy())
    middle = rows[4]["loss"]
    assert middle == pytest.approx(-np.log(outputs[np.arange(50), y[chosen]]).mean(), rel=1e-5)
    assert rows == probes.surface(run, steps=3, samples=50)
    assert len({row["loss"] for row in rows}) == 9


def test_a_surface_moves_weights_along_both_of_its_directions() -> None:
    """The loss of two classes is log(1 + exp(z1 - z0)), at each of the nine points."""
    model = torch.nn.Linear(2, 2, bias=False)
    weights = {"weight": torch.tensor([[3.0, 0.0], [0.0, 4.0]])}
    model.load_state_dict(weights)
    x, labels = torch.tensor([[1.0, 0.5]]), torch.tensor([0])
    rows = probes.loss_surface(model, (x, labels), 7, reach=2.0, steps=3)
    with Streams(7).isolated("surface"):
        first, second = (probes.filter_normalised(weights)["weight"] for _ in range(2))
    for row, (b, a) in zip(rows, itertools.product((-2, 0, 2), repeat=2), strict=True):
        logits = (weights["weight"] + a * first + b * second) @ x[0]
        assert (row["x"], row["y"]) == (a, b)
        assert row["loss"] == pytest.approx(float(torch.log(1 + torch.exp(logits[1] - logits[0]))), rel=1e-4)
    assert torch.equal(model.weight, weights["weight"])


def test_a_direction_has_the_length_of_each_filter_and_leaves_biases() -> None:
    weights = {"conv.weight": torch.rand(4, 3, 5, 5), "fc.weight": torch.zeros(2, 3), "fc.bias": torch.rand(2)}
    drawn = probes.filter_normalised(weights)
    assert drawn["conv.weight"].flatten(1).norm(dim=1) == pytest.approx(weights["conv.weight"].flatten(1).norm(dim=1))
    assert not drawn["fc.weight"].any()
    assert not drawn["fc.bias"].any()
    other = probes.filter_normalised(weights)["conv.weight"]
    assert not torch.equal(drawn["conv.weight"], other)


@pytest.fixture
def embedded(monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """What is embedded; the first two numbers of a vector stand for its place in the plane."""
    seen: list[np.ndarray] = []

    def first_two(z: torch.Tensor, seed: int) -> np.ndarray:
        seen.append(z.numpy())
        return seen[-1][:, :2]

    monkeypatch.setattr(probes, "plane_of", first_two)
    return seen


def test_points_are_unit_features_and_class_weights(run: Result, dealt: Any, embedded: list[np.ndarray]) -> None:
    rows = probes.points(run, unit=True, marks="weights", samples=60)
    chosen = torch.from_numpy(np.linspace(0, len(dealt.test_set) - 1, 60).astype(int))
    net = run.model()
    with torch.no_grad():
        z = torch.cat([net.features(dealt.test_set.gather(chosen)), net.head.weight]).numpy()
    z = z / np.maximum(np.linalg.norm(z, axis=1, keepdims=True), 1e-12)
    assert embedded[0] == pytest.approx(z, abs=1e-6)
    assert [row["class"] for row in rows] == [*dealt.test_set.y[chosen].tolist(), *range(10)]
    assert [row["kind"] for row in rows] == ["sample"] * 60 + ["weights"] * 10
    assert np.array([(row["x"], row["y"]) for row in rows]) == pytest.approx(z[:, :2], abs=1e-6)


def test_t_sne_keeps_clusters_apart() -> None:
    centres = torch.eye(6)[:2].repeat_interleave(12, dim=0)
    plane = probes.plane_of(centres + 0.05 * torch.sin(torch.arange(24 * 6.0)).view(24, 6), seed=0)
    one, other = plane[:12], plane[12:]
    widest = max(np.linalg.norm(part - part.mean(0), axis=1).max() for part in (one, other))
    assert np.linalg.norm(one.mean(0) - other.mean(0)) > 2 * widest


def test_points_of_personal_models_are_those_of_every_client(
    alone: Result, dealt: Any, embedded: list[np.ndarray]
) -> None:
    rows = probes.points(alone, space="scores", marks="means", samples=30)
    of = {client: [row for row in rows if row["client"] == client] for client in range(3)}
    held = [len(np.unique(dealt.train_set.y.numpy()[dealt.train[k]])) for k in range(3)]
    assert [sum(row["kind"] == "means" for row in own) for own in of.values()] == held
    assert [sum(row["kind"] == "sample" for row in own) for own in of.values()] == [10, 10, 10]


def test_accuracy_by_class_adds_up_to_that_of_the_run(run: Result) -> None:
    rows = probes.class_accuracies(run)
    assert sum(row["samples"] for row in rows) == 355
    mean = sum(row["samples"] * row["accuracy"] for row in rows) / 355
    assert mean == pytest.approx(100 * run.numbers["accuracy"])


def test_a_model_of_several_nets_has_no_features_to_draw(dealt: Any) -> None:
    evaluation = {"protocol": "personal/local"}
    both = fl.run("fedco2", scenario=dealt, model=NET, rounds=1, local_epochs=1, evaluation=evaluation)
    with pytest.raises(ConfigError, match="fedco2 on mlp: no single registered net with a linear head"):
        probes.norms(both)
