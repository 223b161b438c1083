"""Figures of papers that are computed directly, without runs of a federation: `fedloom reproduce fedco2/ntk`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedloom.cli.shared import print_json, print_lines, say
from fedloom.core.console import console_of
from fedloom.core.errors import ConfigError

_DRAWS, _TRAINED = 50, 5  # as many draws as the project's specification of the experiment; networks take longer
_KERNELS = {
    "online": "V online (FedBN)",
    "offline": "V offline",
    "joint": "V joint, with 1/2 as printed",
    "quarter": "V joint, with 1/4 by the chain rule",
    "full_online": "Lambda online",
    "full_joint": "Lambda joint, with 1/2",
}


def show_computed(name: str, folder: Path, draws: int | None, options: Mapping[str, Any], as_json: bool) -> None:
    """Compute a figure, print its table, and save its values and its drawing.

    name: a key of `COMPUTED`. folder: where `values.json` and the figure are written. draws: number of random problems;
    None takes 50. options: the command's other options by their words; any that is set raises `ConfigError`.
    """
    if unusable := [word for word, value in options.items() if value]:
        raise ConfigError(f"{name} is computed without runs, so {', '.join(unusable)} cannot apply; leave it out")
    COMPUTED[name][1](folder, draws or _DRAWS, as_json)


def _tangent_kernels(folder: Path, draws: int, as_json: bool) -> None:
    from fedloom.cli.terminal import print_grid
    from fedloom.core.files import json_text, write_atomic
    from fedloom.papers.tangent_kernels import CAVEATS, eigenvalue_rows, residual_rows
    from fedloom.results.report.figures import save

    say(f"eigenvalues of {draws} random problems")
    rows, violations = eigenvalue_rows(draws)
    residuals = residual_rows(min(draws, _TRAINED), progress=say)
    above = sum(row["residual"] > row["bound"] * (1 + 1e-9) for row in residuals)
    violations = {**violations, "steps whose residual is above the bound of Corollary C.2": above}
    folder.mkdir(parents=True, exist_ok=True)
    values = {"kernels": rows, "violations": violations, "draws": draws, "caveats": list(CAVEATS)}
    write_atomic(folder / "values.json", json_text(values, indent=1))
    written = [folder / "values.json", *save("residuals", residuals, folder)]
    if as_json:
        print_json(values)
        return
    console = console_of(as_json)
    print_grid(
        console,
        ("kernel", "smallest eigenvalue", "condition number (median)"),
        [(_KERNELS[row["kernel"]], _mean(row), f"{row['condition_number_median']:.3g}") for row in rows],
    )
    trained = len({row["seed"] for row in residuals})
    for what, count in violations.items():
        of = f"{len(residuals)} of {trained} problems" if what.startswith("steps") else f"{draws} draws"
        print_lines(console, f"  {what}: {count} of {of}")
    print_lines(console, *(f"  note: {caveat}" for caveat in CAVEATS))
    say(f"written: {', '.join(map(str, written))}")


def _mean(row: Mapping[str, Any]) -> str:
    error = row["standard_error"]
    return f"{row['smallest_eigenvalue']:.4f}" + ("" if error is None else f" ± {error:.4f} (standard error)")


COMPUTED: Mapping[str, tuple[str, Callable[[Path, int, bool], None]]] = {
    "fedco2/ntk": ("Fed-CO2, Section 4 and Theorem 4.3: tangent kernels and residuals", _tangent_kernels)
}


def computed_rows() -> Sequence[Mapping[str, Any]]:
    """Rows of `fedloom reproduce --list` for the figures of `COMPUTED`."""
    facts = "computed directly in some seconds, without runs"
    return [
        {"name": name, "title": title, "cells": 0, "data": "", "missing": [], "hours": 0.002, "facts": facts}
        for name, (title, _) in COMPUTED.items()
    ]
