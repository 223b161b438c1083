"""The Python door: what the README shows."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

import fedloom as fl
from fedloom.core.errors import ConfigError
from fedloom.data import from_arrays, from_clients

QUICK = {"rounds": 2, "local_epochs": 1}


def test_a_described_scenario_runs_and_plots() -> None:
    scenario = fl.scenario("digits", partition="dirichlet", alpha=0.5, clients=4)
    result = fl.run(method="fedsc", scenario=scenario, seed=0, **QUICK)
    assert result.summary()[0]["method"] == "fedsc"
    axes = result.plot()
    assert axes.get_xlabel() == "round"
    assert len(axes.lines[0].get_xdata()) == 2


def test_arrays_of_your_own_run_and_resume_only_with_the_same_data(tmp_path) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 255, (120, 8, 8), dtype=np.uint8), np.arange(120) % 3
    scenario = fl.scenario(from_arrays(x, y, x[:30], y[:30]), partition="iid", clients=3, seed=1)
    assert scenario.clients == 3
    result = fl.run(scenario=scenario, model="mlp", out=tmp_path, **QUICK)
    assert result.numbers["source"] == "given"
    again = fl.scenario(from_arrays(255 - x, y, x[:30], y[:30]), partition="iid", clients=3, seed=1)
    with pytest.raises(fl.FedloomError, match="another config"):
        fl.run(scenario=again, model="mlp", out=tmp_path, **QUICK)


def test_a_scenario_may_be_a_mapping_of_its_keys() -> None:
    keys = {"partition": "dirichlet", "alpha": 0.5, "clients": 4}
    mapped = fl.run(scenario={"source": "digits", **keys}, rounds=1)
    described = fl.run(scenario=fl.scenario("digits", **keys), rounds=1)
    assert mapped.config == described.config
    compared = fl.compare(
        ["fedavg"], scenario=[{"source": "digits", **keys}, {"source": "digits", "clients": 3}], seeds=1, rounds=1
    )
    assert len(compared.summary()) == 2
    with pytest.raises(ConfigError, match="alpah"):
        fl.run(scenario={"source": "digits", "partition": "dirichlet", "alpah": 0.5})


def test_a_name_alone_is_dealt_alike() -> None:
    assert fl.scenario("digits").partition == "iid"
    assert fl.scenario("digits", alpha=0.1).partition == "dirichlet"
    assert fl.run(scenario="digits", **QUICK).numbers["source"] == "digits"


X, Y = torch.arange(120.0).reshape(60, 2), torch.arange(60) % 3


@pytest.mark.parametrize(
    ("data", "clients", "classes"),
    [
        (TensorDataset(X, Y), 10, ("0", "1", "2")),
        (Subset(TensorDataset(X, Y), range(45)), 10, ("0", "1", "2")),
        ((X, Y), 10, ("0", "1", "2")),
        ((X.numpy(), ["a", "b"] * 30), 10, ("a", "b")),
        ([(x, int(y)) for x, y in zip(X, Y, strict=True)], 10, ("0", "1", "2")),
        ([TensorDataset(X, Y)] * 4, 4, ("0", "1", "2")),
        ([(X, Y), (X, Y)], 2, ("0", "1", "2")),
        (from_arrays(X, Y, owners=np.arange(60) % 5), 5, ("0", "1", "2")),
        (from_clients([(X, Y)] * 3, names=["x", "y", "z"]), 3, ("0", "1", "2")),
    ],
    ids=["torch", "subset", "arrays", "words", "items", "datasets", "pairs", "owners", "clients"],
)
def test_data_at_hand_are_recognised(data, clients, classes) -> None:
    scenario = fl.scenario(data)
    assert (scenario.clients, scenario.class_names) == (clients, classes)
    assert scenario.train.sizes.min() > 0
    assert fl.run(scenario=scenario, model="logistic", rounds=1, local_epochs=1).numbers["source"] == "given"


def test_owned_data_may_be_dealt_otherwise() -> None:
    splits = from_clients([(X, Y)] * 4)
    assert fl.scenario(splits, partition="iid", clients=3).clients == 3
    assert fl.scenario(splits, sample_ids=True, clients=2).clients == 2


@pytest.mark.parametrize(
    "data",
    [None, 3, {}, {"train": 1}, [], [1, 2], (1, 2, 3), np.zeros(3), Path("my.csv"), DataLoader(TensorDataset(X, Y))],
    ids=["None", "int", "dict", "splits", "list", "numbers", "triple", "array", "path", "loader"],
)
def test_what_is_no_data_is_one_line(data) -> None:
    for door in (fl.scenario, lambda it: fl.run(scenario=it)):
        with pytest.raises(fl.FedloomError) as caught:
            door(data)
        assert "\n" not in str(caught.value)


def test_mistakes_are_fedloom_errors() -> None:
    with pytest.raises(fl.FedloomError, match="did you mean 'alpha'"):
        fl.scenario("digits", aplha=0.1)
    with pytest.raises(AttributeError, match="no attribute 'runn'"):
        fl.runn  # noqa: B018


def test_compare_takes_methods_seeds_and_lists(tmp_path) -> None:
    scenarios = [fl.scenario("digits", partition="dirichlet", alpha=alpha, clients=3) for alpha in (0.3, 3.0)]
    how = {"scenario": scenarios, "seeds": 1, "local_epochs": 1, "rounds": 1, "out": tmp_path, "engine": "serial"}
    both = fl.compare(["fedavg", "fedprox"], fedprox={"mu": [0.1, 1.0]}, **how)
    assert isinstance(both, fl.Comparison)
    rows = both.rows()
    assert [(row["method"], row["setting"].get("scenario.alpha"), row["n"]) for row in rows] == [
        ("fedavg", "0.3", 1),
        ("fedprox", "0.3", 1),
        ("fedprox", "0.3", 1),
        ("fedavg", "3.0", 1),
        ("fedprox", "3.0", 1),
        ("fedprox", "3.0", 1),
    ]
    assert len(list(tmp_path.glob("fed*"))) == len(both) == 6


def test_compare_with_data_of_your_own_keeps_nothing_on_disk_unless_asked() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 255, (60, 8, 8), dtype=np.uint8), np.arange(60) % 3
    scenario = fl.scenario(from_arrays(x, y, x[:30], y[:30]), partition="iid", clients=2)
    both = fl.compare(["fedavg"], seeds=[3, 5], scenario=scenario, model="mlp", engine="serial", **QUICK)
    assert [result.numbers["seed"] for result in both] == [3, 5]
    assert both.results[0].folder is None


def test_compare_with_a_module_of_your_own(tmp_path) -> None:
    scenario = fl.scenario("digits", partition="iid", clients=2)
    nets = [nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10)) for width in (4, 8)]
    how = {"scenario": scenario, "seeds": 1, "rounds": 1, "local_epochs": 1, "engine": "serial"}
    both = fl.compare("fedavg", model=[[net] for net in nets], **how)
    bytes_up = [row["bytes_up"] for row in both.rows()]
    assert len(both) == 2
    assert bytes_up[1] - bytes_up[0] == 2 * 4 * (4 * 65 + 4 * 10)  # clients, bytes, weights
    with pytest.raises(fl.FedloomError, match=r"model <lambda>: it cannot be sent to another process .* top level"):
        fl.compare(model=lambda: nets[0], out=tmp_path, jobs=2, **how)


def test_compare_refuses_what_is_no_scenario() -> None:
    own = fl.scenario("digits", clients=2).build(0)
    for scenario in (3, [3], [own, "digits"]):
        with pytest.raises(fl.FedloomError, match="scenario"):
            fl.compare(scenario=scenario)


def test_features_of_your_own_without_a_model_train_an_mlp() -> None:
    rng = np.random.default_rng(0)
    y = np.arange(60) % 2
    features = fl.scenario((rng.normal(size=(60, 5)), y), clients=2)
    texts = fl.scenario(from_arrays(rng.integers(0, 9, (60, 5)), y, tokens=True), clients=2)
    assert fl.run(scenario=features, rounds=1).config["model"] == "mlp"
    assert fl.compare("fedavg", scenario=features, rounds=1, seeds=1).results[0].config["model"] == "mlp"
    assert fl.run(scenario=texts, rounds=1).config["model"] == "bilstm"


def test_a_net_for_images_names_one_for_features(tmp_path) -> None:
    x, y = np.random.default_rng(0).normal(size=(40, 5)), np.arange(40) % 2
    np.savez(tmp_path / "a.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    scenario = fl.scenario("npz", path=str(tmp_path / "a.npz"), clients=2)
    for model in (None, "digits-cnn", "conv4"):
        with pytest.raises(ConfigError, match=r"got \(5,\); take the model mlp for features"):
            fl.run(scenario=scenario, model=model, rounds=1)
