"""Fed-CO2's tangent-kernel experiment: the specification's means and counts, and the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from command_line import call
from fedloom.papers.tangent_kernels import eigenvalue_rows, residual_rows

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
    code, out, _ = call(capsys, "reproduce", "fedco2/ntk", "--seeds", "2", "--json")
    assert code == 0
    values = json.loads(out)
    assert [row["draws"] for row in values["kernels"]] == [2] * 6
    folder = tmp_path / "runs" / "fedco2-ntk"
    assert json.loads((folder / "values.json").read_text(encoding="utf-8")) == values
    assert {path.name for path in folder.iterdir()} == {"values.json", "figure.png", "figure.svg", "figure.csv"}


@pytest.mark.parametrize(
    "words", [("--plan",), ("rounds=3",), ("--scale", "small"), ("--only", "a/b"), ("--workers", "2")]
)
def test_what_cannot_apply_is_refused(words: tuple[str, ...], capsys: Any) -> None:
    code, _, err = call(capsys, "reproduce", "fedco2/ntk", *words)
    assert code == 2
    assert "computed without runs" in err
