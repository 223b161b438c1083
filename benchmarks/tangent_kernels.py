"""Fed-CO2's neural tangent kernels (Section 4, Theorem 4.3, Appendix C): online, offline and joint, over random draws.

    python -m benchmarks tangent-kernels      # within seconds, into runs/fedco2-ntk

A two-layer ReLU network of width m, whose first layer is normalised by each client's covariance S_i:
F(x in D_i) = m^-1/2 sum_k c_k relu(gamma_{k,i} v_k'x / |v_k|_{S_i}). In the online model the directions v are shared
and the scales gamma personal, as in FedBN; in the offline model all are personal. The second layer c is fixed.
docs/theory/fedco2.md says where these formulas differ from the printed ones.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from benchmarks.figures.drawing import save
from fedloom.core.files import json_text, write_atomic
from fedloom.core.streams import Streams

Matrix: TypeAlias = NDArray[np.float64]
Model = Literal["online", "joint", "apart"]


@dataclass(frozen=True, slots=True)
class TwoLayerNet:
    """The weights of the network, and the clients' covariances.

    directions: v [m, d], the first layer. signs: c [m], the second layer, -1 or 1. scales: gamma [m, N], batch norm's
    scale of each unit at each client. covariances: S [N, d, d], symmetric and positive definite. The standard deviation
    alpha of the first directions is 1.
    """

    directions: Matrix
    signs: Matrix
    scales: Matrix
    covariances: Matrix

    @staticmethod
    def initial(directions: Matrix, signs: Matrix, covariances: Matrix) -> TwoLayerNet:
        """The network of v (`directions`), c (`signs`) and S (`covariances`) with the paper's first scales, gamma =
        |v| / alpha (Eq. 11), equal at all clients."""
        lengths = np.linalg.norm(directions, axis=1, keepdims=True)
        return TwoLayerNet(directions, signs, lengths.repeat(len(covariances), 1), covariances)

    def norms(self) -> Matrix:
        """|v_k|_{S_i} [m, N]."""
        squares = np.einsum("kd,ide,ke->ki", self.directions, self.covariances, self.directions)
        return np.asarray(np.sqrt(squares))

    def outputs(self, inputs: Matrix, clients: NDArray[np.int64]) -> Matrix:
        """F [n] of the samples [n, d], each at its client [n]."""
        unit = self.scales[:, clients] / self.norms()[:, clients] * (self.directions @ inputs.T)
        return np.asarray(self.signs @ np.maximum(unit, 0) / np.sqrt(len(self.signs)))


def jacobians(net: TwoLayerNet, inputs: Matrix, clients: NDArray[np.int64]) -> tuple[Matrix, Matrix]:
    """Return the derivatives of the online model's outputs by directions [n, m, d] and by scales [n, m, N], for samples
    `inputs` [n, d] of `clients` [n]."""
    units = np.sqrt(len(net.signs))
    norms = net.norms()[:, clients].T  # [n, m]
    projections = inputs @ net.directions.T  # v'x [n, m]
    # At 0 the derivative of relu is a convention; random directions do not meet it.
    active = projections >= 0
    slopes = net.signs * active / norms / units
    curved = np.einsum("nde,ke->nkd", net.covariances[clients], net.directions)  # S v
    # The exact projection: the derivative of v / |v|_S removes the part along S v, not along v.
    along = inputs[:, None, :] - projections[:, :, None] * curved / norms[:, :, None] ** 2
    by_direction = (slopes * net.scales[:, clients].T)[:, :, None] * along
    by_scale = np.zeros((len(inputs), *net.scales.shape))
    by_scale[np.arange(len(inputs)), :, clients] = slopes * projections
    return by_direction, by_scale


def kernels(net: TwoLayerNet, inputs: Matrix, clients: NDArray[np.int64]) -> dict[str, Matrix]:
    """Return the parts of the evolution matrices Lambda = V + G (Eq. 16 to 19, with the exact projection).

    net: the network at the start of training, which both models share. inputs: samples [n, d]. clients: the client of
    each sample [n], from 0 to N - 1.

    Returns matrices [n, n]: V of the "online" and "offline" model, of both together as the paper prints it ("joint",
    (V_on + V_off) / 2) and by the chain rule ("quarter"); G ("magnitude"); Lambda ("full_online", "full_joint").
    """
    by_direction, by_scale = (values.reshape(len(inputs), -1) for values in jacobians(net, inputs, clients))
    online, magnitude = by_direction @ by_direction.T, by_scale @ by_scale.T
    # the offline models share no direction, so samples of two clients do not move each other
    offline = np.where(clients[:, None] == clients[None, :], online, 0.0)
    directions = {
        "online": online,
        "offline": offline,
        "joint": (online + offline) / 2,
        "quarter": (online + offline) / 4,
    }
    full = {f"full_{name}": directions[name] + magnitude for name in ("online", "joint")}
    return directions | full | {"magnitude": magnitude}


def smallest_eigenvalue(kernel: Matrix) -> float:
    """The smallest eigenvalue of a symmetric matrix."""
    return float(np.linalg.eigvalsh(kernel)[0])


def condition_number(kernel: Matrix) -> float:
    """The largest eigenvalue over the smallest one; infinite where that is not above rounding."""
    values = np.linalg.eigvalsh(kernel)
    return float(values[-1] / values[0]) if values[0] > 1e-12 * values[-1] else float("inf")


def random_problem(
    rng: np.random.Generator, *, clients: int = 3, samples: int = 4, width: int = 6, units: int = 400
) -> tuple[TwoLayerNet, Matrix, NDArray[np.int64]]:
    """Draw N `clients` with random covariances (eigenvalues in [0.3, 2]), M `samples` of each with d = `width`, and a
    network of m `units`. Returns the network, the samples [N M, d] and their clients [N M]."""
    covariances = np.empty((clients, width, width))
    for client in range(clients):
        basis = np.linalg.qr(rng.normal(size=(width, width)))[0]
        covariances[client] = basis * rng.uniform(0.3, 2.0, width) @ basis.T
    inputs = np.concatenate([rng.multivariate_normal(np.zeros(width), spread, samples) for spread in covariances])
    directions, signs = rng.normal(size=(units, width)), rng.choice([-1.0, 1.0], units)
    owners = np.arange(clients).repeat(samples)
    return TwoLayerNet.initial(directions, signs, covariances), inputs, owners


def descend(
    net: TwoLayerNet,
    inputs: Matrix,
    clients: NDArray[np.int64],
    targets: Matrix,
    *,
    model: Model,
    lr: float,
    steps: int,
) -> Matrix:
    """Train directions and scales by gradient descent on |F - y|^2 / 2, all samples in each step, and return |F - y|^2
    before each step and after the last one [steps + 1].

    net: the first weights of both models. inputs: samples [n, d] of `clients` [n]. targets: y [n]. model: "online" is
    FedBN; "joint" trains (F_on + F_off) / 2 on one loss, as Theorem 4.3 has it; "apart" trains both models on separate
    losses, as the algorithm does, and reports the residual of their mean.
    """
    online = net
    offline = [net for _ in net.covariances]
    own = [np.flatnonzero(clients == client) for client in range(len(net.covariances))]
    squared = []
    for step in range(steps + 1):
        online_outputs, offline_outputs = online.outputs(inputs, clients), np.zeros(len(inputs))
        if model != "online":
            for client, rows in enumerate(own):
                offline_outputs[rows] = offline[client].outputs(inputs[rows], clients[rows])
        mean = online_outputs if model == "online" else (online_outputs + offline_outputs) / 2
        squared.append(float(((mean - targets) ** 2).sum()))
        if step == steps:
            break
        shared = (mean - targets) / 2  # the chain rule's half
        errors = {"online": (mean - targets, shared), "joint": (shared, shared)}.get(
            model, (online_outputs - targets, offline_outputs - targets)
        )
        online = _stepped(online, inputs, clients, errors[0], lr)
        if model != "online":
            offline = [
                _stepped(offline[client], inputs[rows], clients[rows], errors[1][rows], lr)
                for client, rows in enumerate(own)
            ]
    return np.array(squared)


def _stepped(net: TwoLayerNet, inputs: Matrix, clients: NDArray[np.int64], errors: Matrix, lr: float) -> TwoLayerNet:
    by_direction, by_scale = jacobians(net, inputs, clients)
    directions = net.directions - lr * np.tensordot(errors, by_direction, 1)
    return replace(net, directions=directions, scales=net.scales - lr * np.tensordot(errors, by_scale, 1))


def largest_stable_lr(kernel: Matrix) -> float:
    """1 over the largest eigenvalue of an evolution matrix: the step that solves its fastest direction at once."""
    return float(1 / np.linalg.eigvalsh(kernel)[-1])


def squared_residual_bound(kernel_floor: float, lr: float, steps: int, first: float) -> float:
    """Theorem C.1 and Corollary C.2: (1 - eta mu / (2 alpha^2))^t |F(0) - y|^2.

    kernel_floor: mu, the smallest eigenvalue of the model's V. lr: eta. steps: t. first: |F(0) - y|^2.

    Example:
        >>> squared_residual_bound(0.5, lr=1.0, steps=2, first=16.0)
        9.0
    """
    return (1 - lr * kernel_floor / 2) ** steps * first


_STEPS = 100
_PROBLEMS = 5  # on which networks are trained, which takes longer than their kernels
_TRAINED: tuple[tuple[str, Model, str], ...] = (
    ("FedBN (online)", "online", "online"),
    ("joint, FedBN's step size", "joint", "online"),
    ("joint, its own step size", "joint", "joint"),
    ("online and offline apart", "apart", "online"),
)
_REPORTED = {
    "online": "V online (FedBN)",
    "offline": "V offline",
    "joint": "V joint, with 1/2 as printed",
    "quarter": "V joint, with 1/4 by the chain rule",
    "full_online": "Lambda online",
    "full_joint": "Lambda joint, with 1/2",
}
_TOLERANCE = 1e-12


def eigenvalue_rows(draws: int, seed: int = 0) -> tuple[list[dict[str, Any]], Mapping[str, int]]:
    """Return smallest eigenvalues and condition numbers over random problems (3 clients with 4 samples each in 6
    dimensions, 400 units), and how often the theorem's order fails.

    Returns one row for each kernel, with means and standard errors, and the number of draws in which an inequality is
    violated: of the smallest eigenvalue, as printed and with the factor 1/4, and of the condition number.
    """
    streams = Streams(seed)
    drawn = [kernels(*random_problem(streams.numpy("tangent kernel", draw))) for draw in range(draws)]
    smallest = {name: np.array([smallest_eigenvalue(parts[name]) for parts in drawn]) for name in _REPORTED}
    conditions = {name: np.array([condition_number(parts[name]) for parts in drawn]) for name in _REPORTED}
    rows = [
        {
            "kernel": name,
            "smallest_eigenvalue": float(smallest[name].mean()),
            "standard_error": float(smallest[name].std(ddof=1) / np.sqrt(draws)) if draws > 1 else None,
            "condition_number_median": float(np.median(conditions[name])),
            "draws": draws,
        }
        for name in _REPORTED
    ]
    lowest = smallest["online"] - _TOLERANCE
    violations = {
        "smallest eigenvalue of (V_on + V_off) / 2 below that of V_on": smallest["joint"] < lowest,
        "smallest eigenvalue of (V_on + V_off) / 4 below that of V_on": smallest["quarter"] < lowest,
        # A factor does not change a condition number, so the kernel with 1/2 stands for the sum.
        "condition number of V_on + V_off above that of V_on": conditions["joint"] > conditions["online"] * (1 + 1e-9),
    }
    return rows, {statement: int(violated.sum()) for statement, violated in violations.items()}


def residual_rows(
    draws: int, seed: int = 0, progress: Callable[[str], None] = lambda line: None
) -> list[dict[str, Any]]:
    """Train the networks of random problems, those of `eigenvalue_rows`; `progress` is called with a line for each.

    Returns rows of `row` (which model and step size), `seed` (the draw), `x` (the step), `residual` (|F - y|^2 over
    that before the first step), and `bound` (Corollary C.2's for V at the start, over the same).
    """
    # Each problem has its own stream, so it does not depend on how many problems are drawn.
    streams, rows = Streams(seed), []
    for draw in range(draws):
        rng = streams.numpy("tangent kernel", draw)
        net, inputs, clients = random_problem(rng)
        targets = rng.choice([-1.0, 1.0], len(inputs))
        parts = kernels(net, inputs, clients)
        # By the chain rule each model gives a quarter of its G, and at the start both have the same G.
        matrices = {"online": parts["full_online"], "joint": parts["quarter"] + parts["magnitude"] / 2}
        rates = {name: largest_stable_lr(matrix) for name, matrix in matrices.items()}
        progress(f"training four networks on problem {draw + 1} of {draws}")
        for label, model, rate in _TRAINED:
            squared = descend(net, inputs, clients, targets, model=model, lr=rates[rate], steps=_STEPS)
            floor = smallest_eigenvalue(parts["quarter" if model == "joint" else "online"])
            rows += [
                {
                    "panel": "residual by step",
                    "row": label,
                    "seed": draw,
                    "x": step,
                    "residual": float(value),
                    "bound": squared_residual_bound(floor, rates[rate], step, 1.0),
                }
                for step, value in enumerate(squared / squared[0])
            ]
    return rows


def main(arguments: Sequence[str]) -> None:
    description = __doc__.partition("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m benchmarks tangent-kernels", description=description)
    parser.add_argument("--draws", type=int, default=50, help="random problems")
    parser.add_argument("--out", type=Path, default=Path("runs/fedco2-ntk"), help="the folder of values and figure")
    options = parser.parse_args(arguments)
    rows, violations = eigenvalue_rows(options.draws)
    residuals = residual_rows(min(options.draws, _PROBLEMS), progress=print)
    above = sum(row["residual"] > row["bound"] * (1 + 1e-9) for row in residuals)
    violations = {**violations, "steps whose residual is above the bound of Corollary C.2": above}
    options.out.mkdir(parents=True, exist_ok=True)
    values = {"kernels": rows, "violations": violations, "draws": options.draws}
    write_atomic(options.out / "values.json", json_text(values, indent=1))
    save("residuals", residuals, options.out)
    for row in rows:
        error = "" if row["standard_error"] is None else f" ± {row['standard_error']:.4f} (standard error)"
        condition = f"condition number {row['condition_number_median']:.3g} (median)"
        print(f"{_REPORTED[row['kernel']]}: smallest eigenvalue {row['smallest_eigenvalue']:.4f}{error}, {condition}")
    for statement, count in violations.items():
        print(f"{statement}: {count}")
