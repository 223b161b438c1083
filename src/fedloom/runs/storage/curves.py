"""Curves of a run's measures, and the rounds that are selected from them. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Literal

from fedloom.core.text import ACCURACY, Criterion
from fedloom.runs.storage.run_folder import Row

RoundSelection = Literal["last", "best_val"]
TESTED_SPLITS = ("test", "val")  # on which a run is tested by its protocols


def main_protocol(rows: Sequence[Row]) -> str | None:
    """The protocol of the first test, which is a run's main one; None without a test."""
    return next((r["protocol"] for r in rows if r["split"] in TESTED_SPLITS), None)


def of_protocol(rows: Sequence[Row], protocol: str | None) -> list[Row]:
    """The rows without the tests of other protocols."""
    return [r for r in rows if r["split"] not in TESTED_SPLITS or r["protocol"] == protocol]


def curve(rows: Sequence[Row], name: str, split: str) -> tuple[list[int], list[float]]:
    """Return rounds and values of one measure, of tests in the main protocol alone, clients' own rows left out.

    Args:
        rows: measures of a run.
        name: name of the measure.
        split: "train", "val", "test", "system", "callback" or "newcomers".
    """
    picked = [r for r in rows if r["name"] == name and r["split"] == split and r["client"] is None]
    if split in TESTED_SPLITS and picked:
        main = main_protocol(rows)
        picked = [r for r in picked if r["protocol"] == main]
    return [r["round"] for r in picked], [r["value"] for r in picked]


def accuracies(rows: Sequence[Row], last_k: int, criterion: Criterion = ACCURACY) -> dict[str, float | None]:
    """Return the test accuracy in [0, 1] by each way of selecting a round; None where there is no validation data.

    Where the measure that selects is not defined in any round, as in a run that diverged, the last round stands for the
    best.

    Args:
        rows: measures of a run.
        last_k: evaluated rounds that `mean_last_k` averages over.
        criterion: the measure by which a best round is chosen.
    """
    rounds, test = curve(rows, "accuracy", "test")
    by_round = dict(zip(rounds, test, strict=True))
    validated = any(curve(rows, name, "val")[0] for name in (criterion.name, "accuracy"))
    best, best_test = best_val(rows, criterion), criterion.best(*curve(rows, criterion.name, "test"))
    return {
        "last": test[-1],
        "best_val": by_round[best[0]] if best is not None else test[-1] if validated else None,
        "best_test": test[-1] if best_test is None else by_round[best_test],
        "mean_last_k": fmean(test[-last_k:]),
    }


def value_at_selected_round(
    rows: Sequence[Row], name: str, select: str, last_k: int, criterion: Criterion = ACCURACY
) -> float | None:
    """Return a measure of the test data at the round that is selected; None where it was not measured.

    Args:
        rows: measures of a run.
        name: name of the measure.
        select: "last", "best_val", "best_test", or "mean_last_k" for a mean over rounds.
        last_k: evaluated rounds that `mean_last_k` averages over.
        criterion: the measure by which a best round is chosen.
    """
    return mean_over(rows, name, selected_rounds(rows, select, last_k, criterion))


def selected_rounds(rows: Sequence[Row], select: str, last_k: int, criterion: Criterion = ACCURACY) -> list[int]:
    """Return the tested rounds that count, of which `mean_last_k` selects several.

    Where the measure that selects is NaN in every round, the last round stands for the best.

    Args:
        rows: measures of a run.
        select: "last", "best_val", "best_test" or "mean_last_k".
        last_k: evaluated rounds that `mean_last_k` selects.
        criterion: the measure by which a best round is chosen.
    """
    tested = curve(rows, "accuracy", "test")[0]
    if select == "mean_last_k":
        return tested[-last_k:]
    split = {"best_test": "test", "best_val": "val"}.get(select)
    best = None if split is None else criterion.best(*curve(rows, criterion.name, split))
    return tested[-1:] if best is None else [best]


def mean_over(rows: Sequence[Row], name: str, rounds: Sequence[int]) -> float | None:
    """Return the mean of a measure of the test data over those of the rounds that have it; None without any.

    Args:
        rows: measures of a run.
        name: name of the measure.
        rounds: the rounds that count.
    """
    by_round = dict(zip(*curve(rows, name, "test"), strict=True))
    values = [by_round[round_] for round_ in rounds if round_ in by_round]
    return fmean(values) if values else None


def best_val(rows: Sequence[Row], criterion: Criterion = ACCURACY) -> tuple[int, float] | None:
    """The round of the best validation value, the earliest of equal ones, and that; None without validation data."""
    rounds, values = curve(rows, criterion.name, "val")
    best = criterion.best(rounds, values)
    return None if best is None else (best, dict(zip(rounds, values, strict=True))[best])


def total_over_rounds(rows: Sequence[Row], name: str) -> float:
    """Sum of a measure of the run itself (split "system") over all rounds."""
    return sum(curve(rows, name, "system")[1])
