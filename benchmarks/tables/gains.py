"""What methods gain in our runs of a paper's table, seed by seed, beside the printed gains."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from fedloom.papers.compared_values import ComparedValue, with_domain
from fedloom.papers.measurements import ACCURACY, VARIANT
from fedloom.papers.recipe import Recipe
from fedloom.results.data_table import Cell, DataTable
from fedloom.results.difference import Difference, compare_family, paired_differences

GainGroup = Literal["own", "baselines", "variants"]


@dataclass(frozen=True, slots=True)
class Gain:
    """Accuracy of `row` minus that of the row `baseline`, in points.

    group: of the paper's own method, of a baseline over the plain method, or of a variant (`authors`, `sound`), which
    is not printed. ours: over the seeds that both rows have. theirs: the difference of the printed means, or None.
    """

    column: str
    domain: str | None
    row: str
    baseline: str
    group: GainGroup
    ours: Difference
    theirs: float | None

    @property
    def holds_theirs(self) -> bool | None:
        """Whether our interval holds the printed gain; None where there is no interval or no printed gain."""
        if self.ours.low is None or self.ours.high is None or self.theirs is None:
            return None
        return self.ours.low <= self.theirs <= self.ours.high


def gains(recipe: Recipe, values: Sequence[ComparedValue]) -> list[Gain]:
    """Compute the gains of all rows that were run, as the table counts accuracy: of the own method over every baseline,
    or over the method that it wraps, and of other rows over the plain one."""
    accuracies = [value for value in values if value.was_run and value.metric in ACCURACY]
    by_row = {(value.column, value.domain, value.metric, value.row): value for value in accuracies}
    families: dict[tuple[object, ...], list[tuple[ComparedValue, ComparedValue, list[float]]]] = {}
    for value in accuracies:
        group = _group(recipe, value.row)
        for name in _baselines(recipe, value.row):
            baseline = by_row.get((value.column, value.domain, value.metric, name))
            if baseline is None:
                continue
            by_seed = paired_differences(value.seeds, value.ours, baseline.seeds, baseline.ours)
            if by_seed:
                # The correction counts comparisons, so a family holds all that answer one question: those of a
                # group in one column, with a separate family for baselines over an unusual row
                family = (value.column, value.domain, value.metric, group, "" if group == "own" else name)
                families.setdefault(family, []).append((value, baseline, list(by_seed.values())))
    computed = []
    for compared in families.values():
        step = max(value.step for value, *_ in compared)  # few test samples prove the least
        outcomes = compare_family([differences for _, _, differences in compared], step, points=1.0)
        for (value, baseline, _), outcome in zip(compared, outcomes, strict=True):
            printed = None
            group = _group(recipe, value.row)
            if value.theirs is not None and baseline.theirs is not None and group != "variants":
                printed = value.theirs - baseline.theirs
            computed.append(Gain(value.column, value.domain, value.row, baseline.row, group, outcome, printed))
    return computed


def count_gains(computed: Sequence[Gain], group: GainGroup | None, positive: bool = True) -> Counter[str]:
    """Count the printed gains that are "seen", "contradicted", "equivalent", "undecided", or of "too few seeds".

    group: the group to count (None: all). positive: count gains printed above zero; else the others, which are seen if
    ours is behind.
    """
    outcomes = {"ahead": "seen", "behind": "contradicted"} if positive else {"behind": "seen", "ahead": "contradicted"}
    return Counter(
        outcomes.get(gain.ours.word, gain.ours.word)
        for gain in computed
        if gain.theirs is not None and group in (None, gain.group) and (gain.theirs > 0) == positive
    )


def judged(counts: Counter[str]) -> int:
    """Return how many of the counted gains had enough seeds to be judged."""
    return counts.total() - counts["too few seeds"]


def gain_lines(computed: Sequence[Gain]) -> list[str]:
    """Return the head lines: the own method's printed gains, those of baselines, and gains printed as none."""
    lines = [_counts_text(name, count_gains(computed, group)) for name, group in _COUNTED_GROUPS.items()]
    losses = count_gains(computed, None, positive=False)
    return [*lines, _counts_text("printed as zero or below", losses, "printed losses")] if losses else lines


_COUNTED_GROUPS: dict[str, GainGroup] = {"own method": "own", "baselines": "baselines"}


def _counts_text(heading: str, counts: Counter[str], noun: str = "printed gains") -> str:
    """The counts as a line, which always names seen, contradicted and undecided ones."""
    skipped = f"; {counts['too few seeds']} with too few seeds" if counts["too few seeds"] else ""
    if not judged(counts):
        return f"{heading}: no {noun} of three seeds or more{skipped}"
    outcomes = f"{counts['contradicted']} contradicted, {counts['undecided']} undecided"
    outcomes += f", {counts['equivalent']} equivalent" if counts["equivalent"] else ""
    return f"{heading}: {counts['seen']} of {judged(counts)} {noun} seen, {outcomes}{skipped}"


def _group(recipe: Recipe, row: str) -> GainGroup:
    if VARIANT.search(row):
        return "variants"
    return "own" if recipe.is_own(row) else "baselines"


def _baselines(recipe: Recipe, row: str) -> Iterator[str]:
    """Yield the rows over which a row's gains are."""
    plain = recipe.baseline_of(row)
    wrapped = "+" in recipe.rows.get(row, {"method": ""})["method"]
    if plain is None:
        return
    if _group(recipe, row) != "own" or wrapped or recipe.is_own(plain):
        yield plain
        return
    yield from (name for name in recipe.rows if not recipe.is_own(name) and not VARIANT.search(name))


def gains_sheet(table_gains: Sequence[Gain]) -> DataTable:
    """Our gains and the printed ones as a table."""
    rows: list[list[Cell]] = []
    for gain in table_gains:
        outcome, theirs = gain.ours, "–" if gain.theirs is None else f"{gain.theirs:+.2f}"
        numbers: list[Cell] = [
            (str(outcome.n), outcome.n),
            (f"{outcome.mean:+.2f}", outcome.mean),
            outcome.interval_text(decimals=2),
            (theirs, gain.theirs),
            {True: "yes", False: "no", None: "–"}[gain.holds_theirs],
            ("–" if outcome.adjusted is None else f"{outcome.adjusted:.2g}", outcome.adjusted),
        ]
        rows.append([with_domain(gain.column, gain.domain), gain.row, gain.baseline, *numbers, outcome.verdict])
    names = ("column", "row", "over", "seeds", "ours", "95 % interval", "theirs", "theirs inside", "adjusted p", "word")
    caption = "Gains in points: the mean over equal seeds, its t interval alone, and p adjusted over the family."
    return DataTable("gains", caption, names, rows, heads=2)
