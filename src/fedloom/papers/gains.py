"""Compare a method's gain over the plain one of its table, seed by seed, with the printed gain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from fedloom.papers.compared_values import ComparedValue
from fedloom.papers.measurements import ACCURACY, VARIANT
from fedloom.papers.recipe import Recipe
from fedloom.results.difference import t_interval


@dataclass(frozen=True, slots=True)
class Gain:
    """Accuracy of `row` minus that of the row `baseline`, in points.

    ours: one difference for each seed that both rows have. theirs: the difference of the printed means; None for a
    variant (`authors`, `sound`), which is not printed.
    """

    column: str
    domain: str | None
    row: str
    baseline: str
    ours: list[float]
    theirs: float | None

    @property
    def outcome(self) -> str:
        """The conclusion that the 95 % t interval of the mean allows."""
        bounds = t_interval(self.ours, step=0.0)
        if bounds is None:
            return "one seed"
        return "ahead" if bounds[0] > 0 else "behind" if bounds[1] < 0 else "no difference seen"


def gains(recipe: Recipe, values: Sequence[ComparedValue]) -> list[Gain]:
    """Compute the gain of every row that was run, over its baseline row, as the table counts accuracy."""
    accuracies = [value for value in values if value.was_run and value.metric in ACCURACY]
    by_row = {(value.column, value.domain, value.metric, value.row): value for value in accuracies}
    computed = []
    for value in accuracies:
        baseline_row = recipe.baseline_of(value.row)
        baseline = by_row.get((value.column, value.domain, value.metric, baseline_row or ""))
        if baseline_row is None or baseline is None:
            continue
        ours, theirs = (dict(zip(row.seeds, row.ours, strict=True)) for row in (value, baseline))
        differences = [ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())]
        printed = None
        if value.theirs is not None and baseline.theirs is not None and not VARIANT.search(value.row):
            printed = value.theirs - baseline.theirs
        if differences:
            computed.append(Gain(value.column, value.domain, value.row, baseline_row, differences, printed))
    return computed


def gain_texts(gain: Gain) -> tuple[str, str, str]:
    """Our mean, its interval and the printed gain, in points with a sign; a dash for what there is not."""
    bounds = t_interval(gain.ours, step=0.0)
    interval_text = "–" if bounds is None else f"{bounds[0]:+.2f} to {bounds[1]:+.2f}"
    return f"{fmean(gain.ours):+.2f}", interval_text, "–" if gain.theirs is None else f"{gain.theirs:+.2f}"
