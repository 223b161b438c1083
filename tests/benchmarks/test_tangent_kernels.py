"""Fed-CO2's tangent kernels: worked numbers, the exact Jacobian, the theorem's inequalities, and the command."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.tangent_kernels import (
    Model,
    TwoLayerNet,
    condition_number,
    descend,
    eigenvalue_rows,
    jacobians,
    kernels,
    largest_stable_lr,
    main,
    random_problem,
    residual_rows,
    smallest_eigenvalue,
    squared_residual_bound,
)

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "theory.json").read_text(encoding="utf-8"))["ntk"]


def test_worked_numbers() -> None:
    inputs, clients = np.array(GOLDEN["in"]["X"]), np.array(GOLDEN["in"]["client"])
    directions = np.array(GOLDEN["in"]["V"])
    net = TwoLayerNet.initial(directions, np.ones(len(directions)), np.stack([np.eye(2)] * 2))
    parts = kernels(net, inputs, clients)
    assert parts["online"] == pytest.approx(np.array(GOLDEN["out"]["V_on"]), abs=1e-9)
    assert parts["offline"] == pytest.approx(np.array(GOLDEN["out"]["V_off"]), abs=1e-9)
    for ours, theirs in {"online": "on", "offline": "off", "joint": "half", "quarter": "quarter"}.items():
        assert smallest_eigenvalue(parts[ours]) == pytest.approx(GOLDEN["out"][f"lmin_{theirs}"], abs=5e-7)


def test_jacobians_are_the_derivatives_of_the_outputs() -> None:
    """At a step away from the start, where scales and norms differ."""
    net, inputs, clients = random_problem(np.random.default_rng(2), units=5)
    rng = np.random.default_rng(3)
    net = replace(net, scales=net.scales * rng.uniform(0.5, 2, net.scales.shape))
    by_direction, by_scale = jacobians(net, inputs, clients)
    step = 1e-6
    for unit, entry in ((0, 0), (3, 5), (4, 2)):
        moved = net.directions.copy()
        moved[unit, entry] += step
        change = replace(net, directions=moved).outputs(inputs, clients) - net.outputs(inputs, clients)
        assert change / step == pytest.approx(by_direction[:, unit, entry], abs=1e-4)
    for unit, client in ((0, 0), (3, 1), (4, 2)):
        moved = net.scales.copy()
        moved[unit, client] += step
        change = replace(net, scales=moved).outputs(inputs, clients) - net.outputs(inputs, clients)
        assert change / step == pytest.approx(by_scale[:, unit, client], abs=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_the_theorems_inequalities_hold(seed: int) -> None:
    parts = kernels(*random_problem(np.random.default_rng(seed)))
    smallest = {name: smallest_eigenvalue(kernel) for name, kernel in parts.items()}
    assert smallest["joint"] >= smallest["online"] - 1e-12
    assert smallest["offline"] >= smallest["online"] - 1e-12
    assert condition_number(parts["joint"]) <= condition_number(parts["online"]) * (1 + 1e-9)
    own = [smallest_eigenvalue(parts["online"][k : k + 4, k : k + 4]) for k in (0, 4, 8)]
    assert smallest["offline"] == pytest.approx(min(own))


def test_with_one_client_all_models_have_one_kernel() -> None:
    net, inputs, clients = random_problem(np.random.default_rng(0), clients=1, units=30)
    parts = kernels(net, inputs, clients)
    assert (parts["online"] == parts["offline"]).all()
    online = descend(net, inputs, clients, np.ones(4), model="online", lr=0.1, steps=3)
    apart = descend(net, inputs, clients, np.ones(4), model="apart", lr=0.1, steps=3)
    assert apart == pytest.approx(online)


def test_the_mean_of_two_equal_models_moves_half_as_far() -> None:
    """The chain rule's 1/4: with one client, the joint model at twice the step size is the online model."""
    net, inputs, clients = random_problem(np.random.default_rng(0), clients=1, units=30)
    online = descend(net, inputs, clients, np.ones(4), model="online", lr=0.1, steps=3)
    joint = descend(net, inputs, clients, np.ones(4), model="joint", lr=0.2, steps=3)
    assert joint == pytest.approx(online)


@pytest.mark.parametrize("model", ["online", "joint", "apart"])
def test_trained_networks_stay_below_the_bound(model: Model) -> None:
    net, inputs, clients = random_problem(np.random.default_rng(4), units=200)
    parts = kernels(net, inputs, clients)
    lr = largest_stable_lr(parts["full_online"])
    floor = smallest_eigenvalue(parts["quarter" if model == "joint" else "online"])
    descent = descend(net, inputs, clients, np.ones(len(inputs)), model=model, lr=lr, steps=30)
    bounds = [squared_residual_bound(floor, lr, t, descent[0]) for t in range(31)]
    assert (descent <= np.array(bounds) * (1 + 1e-9)).all()
    assert descent[-1] < 0.1 * descent[0]


def test_a_singular_kernel_has_no_finite_condition() -> None:
    assert condition_number(np.diag([0.0, 1.0])) == float("inf")


# Means of the specification's own 50 draws, from which ours differ by the errors of both means.
SPECIFIED = {
    "online": 0.3603,
    "offline": 0.5614,
    "joint": 0.5175,
    "quarter": 0.2588,
    "full_online": 0.4991,
    "full_joint": 0.6211,
}


def test_means_over_fifty_draws_are_those_of_the_specification() -> None:
    rows, violations = eigenvalue_rows(50)
    for row in rows:
        assert abs(row["smallest_eigenvalue"] - SPECIFIED[row["kernel"]]) <= 3 * row["standard_error"]
    as_printed, by_chain_rule, conditions = violations.values()
    assert (as_printed, conditions) == (0, 0)
    assert 40 <= by_chain_rule <= 50  # 94 % of the specification's draws


def test_one_draw_has_no_standard_error() -> None:
    rows, _ = eigenvalue_rows(1)
    assert {row["standard_error"] for row in rows} == {None}


def test_residuals_fall_in_the_order_of_their_rates() -> None:
    rows = residual_rows(1)
    last = {row["row"]: row["residual"] for row in rows if row["x"] == 100}
    assert last["joint, its own step size"] < last["FedBN (online)"] < last["joint, FedBN's step size"]
    assert all(row["residual"] <= row["bound"] * (1 + 1e-9) for row in rows)


def test_the_command_prints_the_kernels_and_saves_values_and_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    main(["--draws", "2"])
    folder = tmp_path / "runs" / "fedco2-ntk"
    values = json.loads((folder / "values.json").read_text(encoding="utf-8"))
    assert [row["draws"] for row in values["kernels"]] == [2] * 6
    printed = capsys.readouterr().out
    for row in values["kernels"]:
        assert f"smallest eigenvalue {row['smallest_eigenvalue']:.4f} ± {row['standard_error']:.4f}" in printed
    assert {path.name for path in folder.iterdir()} == {"values.json", "figure.png", "figure.svg", "figure.csv"}
