"""The papers' bounds on worked numbers, the faults of the printed forms, and where they say nothing."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from benchmarks.theory.bounds import (
    Method,
    PrototypeConstants,
    feddw_bounds,
    fedssa_bounds,
    header_distances,
    hessian_of,
    kappa_of,
    prototype_bounds,
)
from benchmarks.theory.measured_round import Constants
from fedloom.core.errors import ConfigError
from fedloom.core.tables import ClassTable
from fedloom.methods.parts.consistency import class_relations, gram_linearised, inconsistency, softmax_linearised

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "theory.json").read_text(encoding="utf-8"))
THEORY, LINEARISED = GOLDEN["feddw_theory"], GOLDEN["feddw_linearised"]["inputs"]
INPUTS = THEORY["inputs"]
CONSTANTS = Constants(
    INPUTS["L1"], INPUTS["s2"], INPUTS["eta"], INPUTS["R"], INPUTS["L0"], INPUTS["Ls"], INPUTS["sum_grad_sq"]
)
REST = {"weight": INPUTS["mu"], "classes": INPUTS["C"], "target": INPUTS["eps"], "rounds": INPUTS["T"]}


def test_worked_numbers() -> None:
    bounds = feddw_bounds(CONSTANTS, **REST)
    values = {name: bound.value for name, bound in bounds.items()}
    at_round = feddw_bounds(replace(CONSTANTS, loss=INPUTS["loss_t"]), **REST)
    assert at_round["loss"].value == pytest.approx(THEORY["thm2_rhs"], abs=5e-7)
    assert values["gradient"] == pytest.approx(THEORY["thm3_rhs_corrected"], abs=5e-7)
    assert values["gradient_printed"] == pytest.approx(THEORY["thm3_rhs_as_printed"], abs=5e-7)
    assert values["rounds"] == pytest.approx(THEORY["T_needed_eq21"], abs=5e-7)
    window = [values["lowest_lr"], values["largest_lr"]]
    assert window == pytest.approx(THEORY["eta_window_corrected"], abs=5e-7)
    assert values["largest_lr_printed"] == pytest.approx(THEORY["eta_upper_as_printed_eq22"], abs=5e-7)
    assert values["regulariser"] == 2 / INPUTS["C"]


def test_the_printed_rate_leaves_no_number_of_rounds() -> None:
    printed = feddw_bounds(CONSTANTS, **REST)["largest_lr_printed"].value
    rounds = feddw_bounds(replace(CONSTANTS, lr=printed), **REST)["rounds"]
    assert math.isnan(rounds.value)
    assert not rounds.is_met


@pytest.mark.parametrize("edge", ["lowest_lr", "largest_lr"])
def test_the_corrected_window_is_where_the_number_of_rounds_is_finite(edge: str) -> None:
    lr = feddw_bounds(CONSTANTS, **REST)[edge].value
    inside, outside = (1.001, 0.999) if edge == "lowest_lr" else (0.999, 1.001)
    assert feddw_bounds(replace(CONSTANTS, lr=lr * inside), **REST)["rounds"].is_met
    assert not feddw_bounds(replace(CONSTANTS, lr=lr * outside), **REST)["rounds"].is_met


def test_a_heavy_regulariser_leaves_no_window() -> None:
    bounds = feddw_bounds(CONSTANTS, **{**REST, "weight": 1e6})
    assert not bounds["lowest_lr"].is_met
    assert not bounds["rounds"].is_met


def test_the_bound_of_the_regulariser_is_reached_by_disjoint_rows_alone() -> None:
    expected = GOLDEN["feddw_theorem1"]
    labels = torch.eye(4, dtype=torch.float64)
    disjoint = inconsistency(labels.roll(1, 1), labels, None)
    assert float(disjoint) == pytest.approx(expected["L_reg_disjoint_onehot"])
    assert float(inconsistency(labels, labels, None)) == expected["L_reg_equal"]
    assert float(disjoint) == feddw_bounds(CONSTANTS, **{**REST, "classes": 4})["regulariser"].value


WEIGHTS, REFERENCE, SOFT_LABELS = (torch.tensor(LINEARISED[name], dtype=torch.float64) for name in ("W", "W0", "Omega"))
FORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "exact": class_relations,
    "softmax_lin": lambda weights: softmax_linearised(weights, REFERENCE),
    "gram": lambda weights: gram_linearised(weights, REFERENCE),
}


def smallest_curvature(form: str, weights: Tensor) -> float:
    hessian = hessian_of(lambda w: inconsistency(FORMS[form](w), SOFT_LABELS, None), weights)
    return float(torch.linalg.eigvalsh(hessian)[0])


def test_the_regulariser_is_not_convex() -> None:
    """The paper's claim is right, though the Hessian that it prints is not that of the regulariser."""
    assert smallest_curvature("exact", WEIGHTS) < -1e-3


@pytest.mark.parametrize("form", ["softmax_lin", "gram"])
@pytest.mark.parametrize("weights", [WEIGHTS, REFERENCE, 10 * WEIGHTS])
def test_both_linearised_forms_are_convex(form: str, weights: Tensor) -> None:
    assert smallest_curvature(form, weights) > -1e-9


def test_equation_24_is_not_the_gradient() -> None:
    """The worked inputs have 6 decimals, and entries of the gradient multiply their rounding by up to 10."""
    check = GOLDEN["feddw_linearised"]["paper_eq24_check"]
    a, omega = (torch.tensor(check[name], dtype=torch.float64) for name in ("A", "Omega_sq"))
    leaf = a.clone().requires_grad_()
    (omega - leaf.T @ leaf).square().sum().backward()  # type: ignore[no-untyped-call]
    assert leaf.grad is not None
    assert leaf.grad.tolist() == [pytest.approx(row, abs=1e-5) for row in check["true_gradient"]]
    printed = -2 * (omega - a.T @ a) @ a
    assert printed.tolist() == [pytest.approx(row, abs=1e-5) for row in check["paper_minus2_resid_A"]]
    assert float((printed - leaf.grad).abs().max()) > 1


@pytest.mark.parametrize("changed", [{"weight": -1.0}, {"classes": 1}, {"target": 0.0}, {"rounds": 0}])
def test_impossible_values_are_refused(changed: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="must be"):
        feddw_bounds(CONSTANTS, **{**REST, **changed})  # type: ignore[arg-type]


SSA = GOLDEN["fedssa_theory"]["inputs"]
SSA_CONSTANTS = Constants(SSA["L1"], SSA["s2"], SSA["eta"], SSA["E"], SSA["L0"], SSA["Ls"], SSA["sum_grad_sq"])
SSA_REST = {"header_distance": SSA["d2"], "target": SSA["eps"], "rounds": SSA["T"]}


def test_fedssa_worked_numbers() -> None:
    bounds = fedssa_bounds(SSA_CONSTANTS, **SSA_REST)
    at_round = fedssa_bounds(replace(SSA_CONSTANTS, loss=SSA["loss_t"]), **SSA_REST)
    assert at_round["loss"].value == pytest.approx(GOLDEN["fedssa_theory"]["thm1_rhs"], abs=5e-7)
    assert bounds["gradient"].value == pytest.approx(GOLDEN["fedssa_theory"]["thm2_rhs"], abs=5e-7)
    assert bounds["rounds"].value == pytest.approx(GOLDEN["fedssa_theory"]["T_needed_eq23"], abs=5e-6)
    assert bounds["largest_lr"].value == pytest.approx(GOLDEN["fedssa_theory"]["eta_upper_eq25"], abs=5e-7)


def test_theorem_1_is_lemma_1_and_lemma_2() -> None:
    bounds = fedssa_bounds(SSA_CONSTANTS, **SSA_REST)
    assert bounds["loss"].value == pytest.approx(bounds["loss_before_fusion"].value + bounds["fusion"].value)
    assert bounds["fusion"].value == pytest.approx(-SSA["eta"] * SSA["L1"] * SSA["d2"] / 2)


def test_rounds_end_at_the_rate_of_equation_25() -> None:
    lr = fedssa_bounds(SSA_CONSTANTS, **SSA_REST)["largest_lr"].value
    assert fedssa_bounds(replace(SSA_CONSTANTS, lr=lr * 0.999), **SSA_REST)["rounds"].is_met
    assert not fedssa_bounds(replace(SSA_CONSTANTS, lr=lr * 1.001), **SSA_REST)["rounds"].is_met


def test_distances_are_those_of_classes_that_both_hold() -> None:
    held = torch.tensor([True, True, False]), torch.tensor([True, False, False])
    server = ClassTable(torch.tensor([[0.0, 4.0], [1.0, 1.0], [9.0, 9.0]]), held[0])
    client = ClassTable(torch.tensor([[3.0, 0.0], [5.0, 5.0], [5.0, 5.0]]), held[1])
    assert header_distances(server, client).tolist() == [25.0]
    with pytest.raises(ConfigError, match="share no class"):
        header_distances(client, ClassTable(torch.zeros(3, 2), torch.tensor([False, True, True])))


@pytest.mark.parametrize("changed", [{"header_distance": -1.0}, {"target": 0.0}, {"rounds": 0}])
def test_fedssa_impossible_values_are_refused(changed: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="must be"):
        fedssa_bounds(SSA_CONSTANTS, **{**SSA_REST, **changed})  # type: ignore[arg-type]


SKC = GOLDEN["fedskc_fedsc"]["inputs"]
SKC_CONSTANTS = Constants(SKC["L1"], SKC["s2"], SKC["eta"], SKC["E"], SKC["gap"])
PROTOTYPES = PrototypeConstants(SKC["L2"], SKC["B"], SKC["C"], SKC["M"], SKC["xi"])


@pytest.mark.parametrize("method", ["fedskc", "fedsc"])
def test_prototype_worked_numbers(method: Method) -> None:
    bounds = prototype_bounds(method, SKC_CONSTANTS, PROTOTYPES)
    expected = GOLDEN["fedskc_fedsc"][method]
    assert bounds["change"].value == pytest.approx(expected["theorem1_decrease_bound"], abs=5e-7)
    assert bounds["descending_lr"].value == pytest.approx(expected["theorem2_eta_max"], abs=5e-7)
    assert bounds["converging_lr"].value == pytest.approx(expected["theorem3_eta_max"], abs=5e-7)
    assert bounds["rounds"].value == pytest.approx(expected["theorem3_R_min"], abs=5e-7)
    assert all(bound.is_met for bound in bounds.values())


@pytest.mark.parametrize("method", ["fedskc", "fedsc"])
def test_the_change_is_zero_at_the_rate_of_theorem_2(method: Method) -> None:
    lr = prototype_bounds(method, SKC_CONSTANTS, PROTOTYPES)["descending_lr"].value
    assert prototype_bounds(method, replace(SKC_CONSTANTS, lr=lr), PROTOTYPES)["change"].value == pytest.approx(
        0, abs=1e-12
    )


@pytest.mark.parametrize("method", ["fedskc", "fedsc"])
def test_no_rate_helps_where_features_move_too_much(method: Method) -> None:
    """With 100 classes and L2 of 1, neither condition can be met."""
    bounds = prototype_bounds(method, SKC_CONSTANTS, replace(PROTOTYPES, feature_lipschitz=1.0, classes=100))
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
        replace(SKC_CONSTANTS, **changed)


def test_impossible_prototypes_are_refused() -> None:
    with pytest.raises(ConfigError, match="merged"):
        replace(PROTOTYPES, merged=-1)
    with pytest.raises(ConfigError, match="target"):
        replace(PROTOTYPES, target=0.0)
