"""The bounds of FedSKC and FedSC on worked numbers, and where they say nothing."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from fedloom.core.errors import ConfigError
from fedloom.diagnosis.bounds import Method, PrototypeConstants, kappa_of, prototype_bounds
from fedloom.diagnosis.measured_round import Constants

THEORY = json.loads((Path(__file__).parents[1] / "golden" / "theory.json").read_text(encoding="utf-8"))["fedskc_fedsc"]
INPUTS = THEORY["inputs"]
CONSTANTS = Constants(INPUTS["L1"], INPUTS["s2"], INPUTS["eta"], INPUTS["E"], INPUTS["gap"])
PROTOTYPES = PrototypeConstants(INPUTS["L2"], INPUTS["B"], INPUTS["C"], INPUTS["M"], INPUTS["xi"])


@pytest.mark.parametrize("method", ["fedskc", "fedsc"])
def test_worked_numbers(method: Method) -> None:
    bounds = prototype_bounds(method, CONSTANTS, PROTOTYPES)
    expected = THEORY[method]
    assert bounds["change"].value == pytest.approx(expected["theorem1_decrease_bound"], abs=5e-7)
    assert bounds["descending_lr"].value == pytest.approx(expected["theorem2_eta_max"], abs=5e-7)
    assert bounds["converging_lr"].value == pytest.approx(expected["theorem3_eta_max"], abs=5e-7)
    assert bounds["rounds"].value == pytest.approx(expected["theorem3_R_min"], abs=5e-7)
    assert all(bound.is_met for bound in bounds.values())


@pytest.mark.parametrize("method", ["fedskc", "fedsc"])
def test_the_change_is_zero_at_the_rate_of_theorem_2(method: Method) -> None:
    lr = prototype_bounds(method, CONSTANTS, PROTOTYPES)["descending_lr"].value
    assert prototype_bounds(method, replace(CONSTANTS, lr=lr), PROTOTYPES)["change"].value == pytest.approx(
        0, abs=1e-12
    )


@pytest.mark.parametrize("method", ["fedskc", "fedsc"])
def test_no_rate_helps_where_features_move_too_much(method: Method) -> None:
    """With 100 classes and L2 of 1, neither condition can be met."""
    bounds = prototype_bounds(method, CONSTANTS, replace(PROTOTYPES, feature_lipschitz=1.0, classes=100))
    for name in ("descending_lr", "converging_lr", "rounds"):
        assert math.isnan(bounds[name].value)
        assert not bounds[name].is_met
    assert bounds["change"].value > 0


def test_kappa_of_both() -> None:
    assert [kappa_of("fedskc", merged) for merged in (0, 3)] == [1, 0.25]
    assert [kappa_of("fedsc", merged) for merged in (0, 3)] == [2, 1.25]


@pytest.mark.parametrize(
    ("changed", "message"),
    [({"smoothness": 0.0}, "smoothness"), ({"lr": math.nan}, "lr"), ({"gradient_variance": -1.0}, "variance"),
     ({"loss": -1.0}, "loss"), ({"steps": 0}, "steps")],
)  # fmt: skip
def test_impossible_constants_are_refused(changed: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        replace(CONSTANTS, **changed)


def test_impossible_prototypes_are_refused() -> None:
    with pytest.raises(ConfigError, match="merged"):
        replace(PROTOTYPES, merged=-1)
    with pytest.raises(ConfigError, match="target"):
        replace(PROTOTYPES, target=0.0)
