"""The Python door: what the README shows."""

from __future__ import annotations

import numpy as np
import pytest

import fedloom as fl
from fedloom.data import from_arrays

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
    assert len(list(tmp_path.iterdir())) == len(both) == 6


def test_compare_with_data_of_your_own_keeps_nothing_on_disk_unless_asked() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 255, (60, 8, 8), dtype=np.uint8), np.arange(60) % 3
    scenario = fl.scenario(from_arrays(x, y, x[:30], y[:30]), partition="iid", clients=2)
    both = fl.compare(["fedavg"], seeds=[3, 5], scenario=scenario, model="mlp", engine="serial", **QUICK)
    assert [result.numbers["seed"] for result in both] == [3, 5]
    assert both.results[0].folder is None
