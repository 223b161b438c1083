"""What a method gains over the plain one of its table, seed by seed, beside the printed gain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from fedloom.papers.beside import Line
from fedloom.papers.measured import ACCURACY, VARIANT
from fedloom.papers.recipe import Recipe
from fedloom.study.paired import interval


@dataclass(frozen=True, slots=True)
class Gain:
    """Accuracy of `row` minus that of `over`, in points: `ours` by seed, for seeds that both ran, and `theirs`, of
    printed means. `theirs` is None for a variant, which is not what is printed."""

    column: str
    domain: str | None
    row: str
    over: str
    ours: list[float]
    theirs: float | None

    @property
    def seen(self) -> str:
        """What may be said of it, by the 95 % t interval of the mean."""
        inside = interval(self.ours)
        if inside is None:
            return "one seed"
        return "ahead" if inside[0] > 0 else "behind" if inside[1] < 0 else "no difference seen"


def gains(recipe: Recipe, found: Sequence[Line]) -> list[Gain]:
    """The gains of all rows that ran beside the row that they are over, as the table counts accuracy."""
    tested = [line for line in found if line.run and line.metric in ACCURACY]
    by_row = {(line.column, line.domain, line.metric, line.row): line for line in tested}
    made = []
    for line in tested:
        over = recipe.over(line.row)
        other = None if over is None else by_row.get((line.column, line.domain, line.metric, over))
        if over is None or other is None:
            continue
        theirs, ours = (dict(zip(one.seeds, one.ours, strict=True)) for one in (other, line))
        differences = [ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())]
        printed = None
        if line.theirs is not None and other.theirs is not None and not VARIANT.search(line.row):
            printed = line.theirs - other.theirs
        if differences:
            made.append(Gain(line.column, line.domain, line.row, over, differences, printed))
    return made


def in_words(gain: Gain) -> tuple[str, str, str]:
    """Our mean, its interval and theirs, in points with a sign."""
    inside = interval(gain.ours)
    told = "–" if inside is None else f"{inside[0]:+.2f} to {inside[1]:+.2f}"
    return f"{fmean(gain.ours):+.2f}", told, "–" if gain.theirs is None else f"{gain.theirs:+.2f}"
