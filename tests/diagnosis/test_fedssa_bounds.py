"""FedSSA's bounds on worked numbers, and what its assumption on headers is in a run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedloom.core.errors import ConfigError
from fedloom.core.tables import ClassTable
from fedloom.diagnosis.bounds import fedssa_bounds, header_distances
from fedloom.diagnosis.measured_round import Constants

THEORY = json.loads((Path(__file__).parents[1] / "golden" / "theory.json").read_text(encoding="utf-8"))["fedssa_theory"]
INPUTS = THEORY["inputs"]
CONSTANTS = Constants(
    INPUTS["L1"], INPUTS["s2"], INPUTS["eta"], INPUTS["E"], INPUTS["L0"], INPUTS["Ls"], INPUTS["sum_grad_sq"]
)
REST = {"header_distance": INPUTS["d2"], "target": INPUTS["eps"], "rounds": INPUTS["T"]}


def test_worked_numbers() -> None:
    bounds = fedssa_bounds(CONSTANTS, **REST)
    at_round = fedssa_bounds(replace(CONSTANTS, loss=INPUTS["loss_t"]), **REST)
    assert at_round["loss"].value == pytest.approx(THEORY["thm1_rhs"], abs=5e-7)
    assert bounds["gradient"].value == pytest.approx(THEORY["thm2_rhs"], abs=5e-7)
    assert bounds["rounds"].value == pytest.approx(THEORY["T_needed_eq23"], abs=5e-6)
    assert bounds["largest_lr"].value == pytest.approx(THEORY["eta_upper_eq25"], abs=5e-7)


def test_theorem_1_is_lemma_1_and_lemma_2() -> None:
    bounds = fedssa_bounds(CONSTANTS, **REST)
    assert bounds["loss"].value == pytest.approx(bounds["loss_before_fusion"].value + bounds["fusion"].value)
    assert bounds["fusion"].value == pytest.approx(-INPUTS["eta"] * INPUTS["L1"] * INPUTS["d2"] / 2)


def test_rounds_end_at_the_rate_of_equation_25() -> None:
    lr = fedssa_bounds(CONSTANTS, **REST)["largest_lr"].value
    assert fedssa_bounds(replace(CONSTANTS, lr=lr * 0.999), **REST)["rounds"].is_met
    assert not fedssa_bounds(replace(CONSTANTS, lr=lr * 1.001), **REST)["rounds"].is_met


def test_distances_are_those_of_classes_that_both_hold() -> None:
    held = torch.tensor([True, True, False]), torch.tensor([True, False, False])
    server = ClassTable(torch.tensor([[0.0, 4.0], [1.0, 1.0], [9.0, 9.0]]), held[0])
    client = ClassTable(torch.tensor([[3.0, 0.0], [5.0, 5.0], [5.0, 5.0]]), held[1])
    assert header_distances(server, client).tolist() == [25.0]
    with pytest.raises(ConfigError, match="share no class"):
        header_distances(client, ClassTable(torch.zeros(3, 2), torch.tensor([False, True, True])))


@pytest.mark.parametrize("changed", [{"header_distance": -1.0}, {"target": 0.0}, {"rounds": 0}])
def test_impossible_values_are_refused(changed: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="must be"):
        fedssa_bounds(CONSTANTS, **{**REST, **changed})  # type: ignore[arg-type]
