"""Fed-CO2's tangent-kernel experiment (Section 4): eigenvalues over random draws, and residuals of trained networks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fedloom.core.streams import Streams
from fedloom.papers.tangent_kernels import (
    Model,
    descend,
    kernel_figures,
    kernels,
    largest_stable_lr,
    random_problem,
    smallest_eigenvalue,
    squared_residual_bound,
)

_STEPS = 100
_TRAINED: tuple[tuple[str, Model, str], ...] = (
    ("FedBN (online)", "online", "online"),
    ("joint, FedBN's step size", "joint", "online"),
    ("joint, its own step size", "joint", "joint"),
    ("online and offline apart", "apart", "online"),
)
_TOLERANCE = 1e-12


def eigenvalue_rows(draws: int, seed: int = 0) -> tuple[list[dict[str, Any]], Mapping[str, int]]:
    """Return smallest eigenvalues and condition numbers over random problems, and how often the theorem's order fails.

    Args:
        draws: number of random problems: 3 clients with 4 samples each in 6 dimensions, 400 units.
        seed: root of the random streams.

    Returns one row for each kernel, with means and standard errors, and the number of draws in which an inequality is
    violated: of the smallest eigenvalue, as printed and with the factor 1/4, and of the condition number.
    """
    streams = Streams(seed)
    figures = [kernel_figures(*random_problem(streams.numpy("tangent kernel", draw))) for draw in range(draws)]
    rows = []
    for kernel in ("online", "offline", "joint", "quarter", "full_online", "full_joint"):
        smallest = np.array([figure[f"lmin_{kernel}"] for figure in figures])
        conditions = np.array([figure[f"condition_{kernel}"] for figure in figures])
        error = float(smallest.std(ddof=1) / np.sqrt(draws)) if draws > 1 else None
        rows.append(
            {
                "kernel": kernel,
                "smallest_eigenvalue": float(smallest.mean()),
                "standard_error": error,
                "condition_number_median": float(np.median(conditions)),
                "draws": draws,
            }
        )
    violations = {
        "smallest eigenvalue of (V_on + V_off) / 2 below that of V_on": sum(
            figure["lmin_joint"] < figure["lmin_online"] - _TOLERANCE for figure in figures
        ),
        "smallest eigenvalue of (V_on + V_off) / 4 below that of V_on": sum(
            figure["lmin_quarter"] < figure["lmin_online"] - _TOLERANCE for figure in figures
        ),
        "condition number of V_on + V_off above that of V_on": sum(
            figure["condition_joint"] > figure["condition_online"] * (1 + 1e-9) for figure in figures
        ),
    }
    return rows, violations


def residual_rows(
    draws: int, seed: int = 0, progress: Callable[[str], None] = lambda line: None
) -> list[dict[str, Any]]:
    """Train the networks of random problems, and return their squared residuals before each step.

    Args:
        draws: number of random problems.
        seed: root of the random streams; problem k is also that of `eigenvalue_rows`.
        progress: called with a line for each problem.

    Returns rows of `row` (which model and step size), `seed` (the draw), `x` (the step), `residual` (|F - y|^2 over
    that before the first step), and `bound` (Corollary C.2's for V at the start, over the same).
    """
    streams, rows = Streams(seed), []
    for draw in range(draws):
        rng = streams.numpy("tangent kernel", draw)
        net, inputs, clients = random_problem(rng)
        targets = rng.choice([-1.0, 1.0], len(inputs))
        parts = kernels(net, inputs, clients)
        joint = parts.direction_quarter + parts.magnitude / 2
        rates = {
            "online": largest_stable_lr(parts.direction_online + parts.magnitude),
            "joint": largest_stable_lr(joint),
        }
        floors = {
            "online": smallest_eigenvalue(parts.direction_online),
            "joint": smallest_eigenvalue(parts.direction_quarter),
            "apart": smallest_eigenvalue(parts.direction_online),
        }
        progress(f"training four networks on problem {draw + 1} of {draws}")
        for label, model, rate in _TRAINED:
            descent = descend(net, inputs, clients, targets, model=model, lr=rates[rate], steps=_STEPS)
            relative = descent.squared_residuals / descent.squared_residuals[0]
            rows += [
                {
                    "panel": "residual by step",
                    "row": label,
                    "seed": draw,
                    "x": step,
                    "residual": float(value),
                    "bound": squared_residual_bound(floors[model], rates[rate], step, 1.0, net.spread),
                }
                for step, value in enumerate(relative)
            ]
    return rows
