"""FedCGS against golden heads; any split gives one head; what the closing round does and says; the ways of Fed3R."""

import pytest
import torch

from fedloom.core.errors import ConfigError
from fedloom.core.tables import ClassTable
from fedloom.methods.fed3r import RidgeHead
from fedloom.methods.fedcgs import GaussianHead
from fedloom.methods.parts.one_shot import gaussian_head, shrunk
from golden_world import CLASS_KNOWLEDGE, CLASSES, EVERYBODY, WORLD, golden_run, matches, probe, refuted
from support import Recording, Through, Tiny, TinyBN, after, configured, same_bits, same_tree, world

GOLD = CLASS_KNOWLEDGE["fedcgs"]
GAMMA = GOLD["options"]["gamma"]
LABELS = [[0, 1, 2, 0, 1, 1, 0], [1, 1, 2, 2, 2, 0, 1], [0], [2, 2, 2, 1, 0, 2, 2, 2, 1], [], [0, 0]]
HEAD = ("head.weight", "head.bias")


def golden_head(kind, clients=EVERYBODY, **options):
    """The head that a closing round makes at the first weights."""
    federation, _ = golden_run(kind, 1, drawn=[list(clients)], **options)
    return dict(federation.server["head"])


def final(toy):
    """The server's model as it is tested."""
    return toy.method.predictors(toy.federation.server, None, toy.federation.server_context())["global"].tree


@pytest.mark.parametrize(
    ("entry", "clients", "gamma"),
    [("out", EVERYBODY, GAMMA), ("without_client_1", (0, 2), GAMMA), ("gamma_0", EVERYBODY, 0.0)],
)
def test_golden_heads(entry, clients, gamma):
    if GOLD[entry] is None:  # the covariance is nearly singular
        return
    head = golden_head(GaussianHead, clients, gamma=gamma)
    assert matches(head, {name: GOLD[entry][name] for name in HEAD})
    finite = {name: torch.where(value == -1e6, 0.0, value) for name, value in head.items()}
    assert abs(probe(finite, HEAD) - GOLD[entry]["probe"]) < 1e-7
    if entry == "out":
        assert refuted(head, GOLD, HEAD)


def test_golden_covariance_within_classes():
    assert (
        abs(probe(golden_head(GaussianHead, gamma=GAMMA, covariance="within"), HEAD) - GOLD["within_classes_probe"])
        < 1e-7
    )


def test_the_bias_of_a_ridge_head_masks_classes_that_nobody_holds():
    assert not golden_head(RidgeHead)["head.bias"].any()
    missing = golden_head(RidgeHead, (0, 2))
    absent = WORLD["held_by_one_client"]["E"]
    assert missing["head.bias"].tolist() == [-1e6 if class_ == absent else 0 for class_ in range(CLASSES)]


@pytest.mark.parametrize("name", ["fedcgs", "fed3r"])
def test_any_split_of_the_samples_gives_the_same_head(name):
    samples = [label for part in LABELS for label in part]
    heads = []
    for split in (LABELS, [samples], [samples[:2], samples[2:]]):
        toy = world(configured(name, body="first"), split, rounds=1)
        toy.federation.step()
        heads.append(final(toy))
    assert all(torch.allclose(heads[0][n], other[n], atol=1e-5) for other in heads[1:] for n in HEAD)


@pytest.mark.parametrize("name", ["fedcgs", "fedcof", "fedncm", "fed3r"])
def test_until_the_last_round_it_is_fedavg_and_then_the_head_alone_moves(name):
    ours, plain = (
        after(world(configured(n), LABELS, net=TinyBN, rounds=3, participation=0.5, engine=Recording), 2)
        for n in (name, "fedavg")
    )
    assert same_bits(ours.federation.server, plain.federation.server)
    for toy in (ours, plain):
        toy.federation.step()
    one, other = (final(toy) for toy in (ours, plain))
    assert same_tree({n: v for n, v in one.items() if n not in HEAD}, {n: v for n, v in other.items() if n not in HEAD})
    assert not torch.equal(one["head.weight"], other["head.weight"])
    assert [done.client for done in ours.federation.engine.done][-5:] == [0, 1, 2, 3, 5]  # everybody with data
    assert one["head.weight"].isfinite().all()
    assert not one["head.weight"][3].any()
    assert float(one["head.bias"][3]) == -1e6  # nobody holds class 3


@pytest.mark.parametrize("name", ["fedcgs", "fedcof", "fedncm", "fed3r"])
def test_a_body_that_comes_trained_stays_and_nothing_travels_before_the_end(name):
    toy = world(configured(name, body="first"), LABELS, net=TinyBN, rounds=2, engine=Recording)
    toy.federation.step()
    assert same_tree(toy.federation.server["model"], toy.task.init)
    assert all(job.payload == {} for job in toy.federation.engine.jobs)
    toy.federation.step()
    moved = final(toy)
    assert all(torch.equal(value, toy.task.init[n]) for n, value in moved.items() if n not in HEAD)
    right = (toy.net.functional.logits(moved, toy.data.x).argmax(1) == toy.data.y).float().mean()
    assert float(right) > 0.6


def test_dead_features_get_a_little_variance_and_are_reported():
    toy = world(configured("fedcgs", "authors", body="first"), LABELS, rounds=1, engine=Recording)
    with torch.no_grad():
        toy.task.init["fc.weight"][0], toy.task.init["fc.bias"][0] = 0.0, -1.0  # its ReLU is always 0
    toy.federation.server = {"model": toy.task.init}
    toy.federation.step()
    assert toy.federation.server["head"]["head.weight"].isfinite().all()
    closing = toy.method.closing()
    uploads = {done.client: done.upload for done in toy.federation.engine.done if "squares" in done.upload}
    found = closing.diagnostics(toy.federation.server, uploads, toy.federation.server_context())
    assert [diagnostic.code for diagnostic in found] == ["fedcgs.condition", "fedcgs.missing_classes"]


def test_a_diverged_run_keeps_its_model():
    upload = {"squares": torch.full((6, 6), torch.nan), "class_sums": torch.ones(4, 6), "class_shares": torch.ones(4)}
    toy = world(configured("fedcgs"), LABELS, net=Tiny)
    for name in ("fedcgs", "fed3r"):
        closing = configured(name).closing()
        after_it = closing.aggregate(
            toy.federation.server, {0: upload | {"samples": 4}}, toy.federation.server_context()
        )
        assert same_tree(after_it["model"], toy.task.init)


def test_refusals():
    with pytest.raises(ConfigError, match="fedcgs needs a head with a bias"):
        world(configured("fedcgs"), LABELS, net=lambda: Through(torch.eye(4, 5)))
    with pytest.raises(ConfigError, match=r"fed3r\.ridge = 0"):
        configured("fed3r", ridge=0)


@pytest.mark.parametrize("entry", [entry for entry in ("out", "without_client_1", "gamma_0") if GOLD[entry]])
def test_golden_heads_of_golden_statistics(entry):
    counts = torch.tensor(WORLD["class_counts"]).double()
    counts = (counts[[0, 2]] if entry == "without_client_1" else counts).sum(0)
    gold = {name: torch.tensor(value, dtype=torch.float64) for name, value in GOLD[entry].items() if name != "probe"}
    means, covariance = ClassTable(gold["means"], gold["held"].bool()), gold["covariance"]
    rows, bias = gaussian_head(means, covariance, counts / counts.sum())
    wanted = gold["head.weight"]
    size = len(covariance) * max(1.0, float(wanted.abs().max()))
    # of numbers with eight decimals; as residuals, a nearly singular covariance does not enlarge them
    residual = 1e-8 * size * max(1.0, float(covariance.abs().max()))
    assert torch.allclose(rows @ covariance, wanted @ covariance, rtol=0, atol=residual)
    assert torch.allclose(bias, gold["head.bias"], rtol=0, atol=residual * size)


def test_a_class_that_nobody_holds_is_never_predicted_and_has_a_finite_gradient():
    values = torch.tensor([[1.0, 0.0], [7.0, 7.0]], requires_grad=True)
    covariance = torch.eye(2, requires_grad=True)
    rows, bias = gaussian_head(ClassTable(values, torch.tensor([True, False])), covariance, torch.tensor([1.0, 0.0]))
    assert rows[1].tolist() == [0, 0]
    assert bias.tolist() == [-0.5, -1e6]
    (rows.sum() + bias.sum()).backward()
    assert values.grad.isfinite().all()
    assert covariance.grad.isfinite().all()


def test_shrinking_keeps_the_trace_and_reaches_the_identity():
    covariance = torch.tensor([[4.0, 1.0], [1.0, 0.0]])
    assert float(shrunk(covariance, 0.3).trace()) == pytest.approx(4.0)
    assert torch.equal(shrunk(covariance, 0.0), covariance.double())
    assert torch.equal(shrunk(covariance, 1.0), 2 * torch.eye(2).double())


def test_a_singular_covariance_raises():
    with pytest.raises(torch.linalg.LinAlgError):
        gaussian_head(ClassTable(torch.ones(1, 2), torch.tensor([True])), torch.zeros(2, 2), torch.ones(1))
