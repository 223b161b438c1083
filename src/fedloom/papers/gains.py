"""Judge gains of methods over others, and what papers claim outside their tables, by the cells that were run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from fedloom.papers.compared_values import ComparedValue, largest_step
from fedloom.papers.measurements import ACCURACY, VARIANT
from fedloom.papers.recipe import Claim, Recipe, printed_values
from fedloom.papers.verdicts import NOT_RUN, Verdict, judge_value
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


@dataclass(frozen=True, slots=True)
class GainCounts:
    """Printed gains by their outcome here. too_few: those of fewer than three seeds, which are in no other number."""

    seen: int = 0
    contradicted: int = 0
    not_seen: int = 0
    too_few: int = 0

    @property
    def judged(self) -> int:
        """The number of gains that were judged."""
        return self.seen + self.contradicted + self.not_seen

    def words(self, heading: str, gains: str = "printed gains") -> str:
        """Return the counts as a line; all three outcomes are always named."""
        skipped = f"; {self.too_few} with too few seeds" if self.too_few else ""
        if not self.judged:
            return f"{heading}: no {gains} of three seeds or more{skipped}"
        outcomes = f"{self.contradicted} contradicted, {self.not_seen} no difference seen"
        return f"{heading}: {self.seen} of {self.judged} {gains} seen, {outcomes}{skipped}"


def gains(recipe: Recipe, values: Sequence[ComparedValue]) -> list[Gain]:
    """Compute the gains of all rows that were run, as the table counts accuracy.

    The own method is compared with every baseline, or with the method that it wraps; other rows with the plain one.
    A family is a group's comparisons in one column; baselines over another row than most are one of their own.
    """
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
                family = (value.column, value.domain, value.metric, group, "" if group == "own" else name)
                families.setdefault(family, []).append((value, baseline, list(by_seed.values())))
    computed = []
    for compared in families.values():
        step = largest_step(value for value, *_ in compared)
        outcomes = compare_family([differences for _, _, differences in compared], step)
        for (value, baseline, _), outcome in zip(compared, outcomes, strict=True):
            printed = None
            group = _group(recipe, value.row)
            if value.theirs is not None and baseline.theirs is not None and group != "variants":
                printed = value.theirs - baseline.theirs
            computed.append(Gain(value.column, value.domain, value.row, baseline.row, group, outcome, printed))
    return computed


def count_gains(computed: Sequence[Gain], group: GainGroup | None, positive: bool = True) -> GainCounts:
    """Count the printed gains that are above zero, or those that are not, by our verdict.

    A gain printed as zero or below is seen if ours is behind.

    computed: the gains of all tables. group: the group to count; None counts all. positive: whether to count printed
    gains above zero, or the others.
    """
    counts = Counter[str]()
    for gain in computed:
        if gain.theirs is None or (group is not None and gain.group != group) or (gain.theirs > 0) != positive:
            continue
        match gain.ours.word:
            case "too few seeds":
                counts["too_few"] += 1
            case "no difference seen":
                counts["not_seen"] += 1
            case word:
                counts["seen" if (word == "ahead") == positive else "contradicted"] += 1
    return GainCounts(**counts)


def gain_lines(computed: Sequence[Gain]) -> list[str]:
    """Return the head lines: the own method's printed gains, those of baselines, and gains printed as none."""
    own, others = (count_gains(computed, group) for group in ("own", "baselines"))
    none_printed = count_gains(computed, None, positive=False)
    lines = [own.words("own method"), others.words("baselines")]
    if none_printed != GainCounts():
        lines.append(none_printed.words("printed as zero or below", "printed losses"))
    return lines


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


@dataclass(frozen=True, slots=True)
class JudgedClaim:
    """A claim, ours by seed in its unit, and the verdict."""

    claim: Claim
    ours: list[float]
    verdict: Verdict

    @property
    def texts(self) -> tuple[str, str, str, str, str]:
        """Return claim, printed value, ours, verdict and reason."""
        printed = f"{self.claim.printed:g} {self.claim.unit}" if self.claim.printed is not None else "–"
        if self.claim.values is not None:
            printed = f"{len(printed_values(self.claim.values))} values"
        ours = f"{fmean(self.ours):.2f}" if self.ours else "–"
        return self.claim.claim, printed, ours, self.verdict.word, self.verdict.why


def judge_claims(claims: Sequence[Claim], tables: Mapping[str, Sequence[ComparedValue]]) -> list[JudgedClaim]:
    """Judge claims by compared values.

    claims: the claims of the papers. tables: by its name, the values of each table that was run.
    """
    judged = []
    for claim in claims:
        ours, reason = _ours(claim, tables.get(claim.table or "", []))
        judged.append(JudgedClaim(claim, ours, judge_value(ours, claim.printed, reason=claim.why or reason)))
    return judged


def _ours(claim: Claim, values: Sequence[ComparedValue]) -> tuple[list[float], str | None]:
    """Return our values by seed, and why they cannot be compared; None if they can."""
    by_name = {f"{value.column}/{value.row}": value for value in values if value.was_run and value.metric in ACCURACY}
    names = [name for name in (claim.row, claim.minus) if name is not None]
    cells = [by_name[name] for name in names if name in by_name]
    if not cells or len(cells) < len(names):
        missing = ", ".join(name for name in names if name not in by_name)
        return [], f"{NOT_RUN}: {missing} of `{claim.table}`" if claim.table and missing else NOT_RUN
    reasons = [value.verdict.why.partition(";")[0] for value in cells if value.verdict.word == "not comparable"]
    ours = cells[0].by_seed
    if len(cells) == 2:
        ours = {seed: ours[seed] - value for seed, value in cells[1].by_seed.items() if seed in ours}
    return list(ours.values()), reasons[0] if reasons else None
