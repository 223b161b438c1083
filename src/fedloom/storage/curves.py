"""Curves of a run's measures, and the rounds that are selected from them. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Literal

from fedloom.storage.run_folder import Row

RoundSelection = Literal["last", "best_val"]


def curve(rows: Sequence[Row], name: str, split: str) -> tuple[list[int], list[float]]:
    """Rounds and values of one measure, clients' own rows left out."""
    picked = [r for r in rows if r["name"] == name and r["split"] == split and r["client"] is None]
    return [r["round"] for r in picked], [r["value"] for r in picked]


def accuracies(rows: Sequence[Row], last_k: int) -> dict[str, float | None]:
    """Test accuracy by each way of selecting a round; None where there is no validation data."""
    rounds, test = curve(rows, "accuracy", "test")
    by_round = dict(zip(rounds, test, strict=True))
    best = best_val(rows)
    return {
        "last": test[-1],
        "best_val": None if best is None else by_round[best[0]],
        "best_test": max(test),
        "mean_last_k": fmean(test[-last_k:]),
    }


def value_at_selected_round(rows: Sequence[Row], name: str, select: str, last_k: int) -> float | None:
    """A measure of the test data at the round that `select` chooses by accuracy; None where it was not measured."""
    rounds, values = curve(rows, name, "test")
    if not values:
        return None
    if select == "mean_last_k":
        return fmean(values[-last_k:])
    tested, accuracy = curve(rows, "accuracy", "test")
    best = best_val(rows)
    round_ = tested[accuracy.index(max(accuracy))] if select == "best_test" else best[0] if best else tested[-1]
    return dict(zip(rounds, values, strict=True)).get(tested[-1] if select == "last" else round_)


def best_val(rows: Sequence[Row]) -> tuple[int, float] | None:
    """The round of the best validation accuracy, the earliest of equal ones, and that; None without validation data."""
    rounds, accuracy = curve(rows, "accuracy", "val")
    best = max(zip(accuracy, (-r for r in rounds), strict=True), default=None)
    return None if best is None else (-best[1], best[0])


def total_over_rounds(rows: Sequence[Row], name: str) -> float:
    """Sum of a measure of the run itself (split "system") over all rounds."""
    return sum(curve(rows, name, "system")[1])
