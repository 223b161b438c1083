"""`examples/own_method.py` runs at small size, and its method is what it says."""

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

import fedloom as fl
from fedloom.methods import METHODS

PATH = Path(__file__).parents[2] / "examples" / "own_method.py"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(METHODS, "_entries", dict(METHODS._entries))
    return runpy.run_path(str(PATH))


def test_both_methods_are_compared(example: dict[str, Any]) -> None:
    results = example["main"](rounds=1, seeds=1).results
    assert [result.config["method"] for result in results] == ["fedavg", "smooth"]


def test_without_decay_it_is_fedavg(example: dict[str, Any]) -> None:
    scenario = fl.scenario("digits", partition="iid", clients=3)
    both = [
        fl.run("fedavg", scenario=scenario, rounds=2).model(),
        fl.run("smooth", scenario=scenario, rounds=2, smooth={"decay": 0}).model(),
    ]
    one, other = (model.state_dict() for model in both)
    assert all(torch.equal(value, other[name]) for name, value in one.items())
