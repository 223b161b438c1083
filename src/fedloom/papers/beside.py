"""The cells of a table that are done, beside the printed values: one line a printed value, and one an order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from statistics import fmean

from fedloom.papers.measured import ACCURACY, GAIN, VARIANT, Measured, pairs
from fedloom.papers.recipe import Recipe
from fedloom.papers.values import Printed
from fedloom.papers.verdicts import NEAR, NOT_RUN, Order, Verdict, judged, order, order_judged
from fedloom.study.text import listed, seeds_text

Failed = Mapping[tuple[str, str], Mapping[int, str]]  # why, by setting and row of the study, then by seed
_SETTING = "another setting: only the order is compared"
_DATA = "other data than the paper's, so nothing printed stands beside them"
_STAND_IN = "stand-in for "
_VARIANTS = {"authors": "released code", "sound": "our default"}


@dataclass(frozen=True, slots=True)
class Line:
    """One value: ours by seed, and theirs. `row`: as in the study; `method`: as printed. `ours` leaves out seeds that
    never reached a target. `seconds`, `estimated`: of one core, a run on average. Where other data stand in for the
    paper's, `column` says so, and nothing is `theirs`."""

    column: str
    row: str
    method: str
    metric: str
    domain: str | None
    seeds: list[int]
    ours: list[float]
    theirs: float | None
    theirs_std: float | None
    seconds: float | None
    estimated: float | None
    verdict: Verdict

    @property
    def run(self) -> bool:
        """Whether there is a run for it."""
        return bool(self.seeds)

    @property
    def missed(self) -> int:
        """How many seeds never reached the target."""
        return len(self.seeds) - len(self.ours)

    @property
    def ranked(self) -> float:
        """What an order goes by: the mean, or worse than any number of rounds where a seed never got there."""
        return inf if self.missed else fmean(self.ours)


@dataclass(frozen=True, slots=True)
class OrderLine:
    """The order of the methods in one column."""

    column: str
    metric: str
    domain: str | None
    found: Order | None
    verdict: Verdict


def lines(recipe: Recipe, found: Sequence[Measured], failed: Failed | None = None) -> list[Line]:
    """Every printed value, and every variant of a method (`authors`, `sound`) against the same one.

    A value that was not run, failed, or cannot be compared, is there with the reason.
    """
    apart = None if all(one.comparable for one in found) else _SETTING
    apart = _DATA if any(one.stand_in for one in found) else apart
    by_value: dict[tuple[str, str, str, str | None], list[Measured]] = {}
    for one in found:
        by_value.setdefault(one.key[:-1], []).append(one)
    return [
        _line(
            *(recipe, value, column, row),
            by_value.get((column or "", row, value.metric, value.domain), []),
            apart,
            failed or {},
        )
        for value, column, row in pairs(recipe)
    ]


def orders(found: Sequence[Line]) -> list[OrderLine]:
    """How far the order of the methods is the printed one, by column and measure. Variants do not count, and gains have
    the order of the accuracies that they come from."""
    groups: dict[tuple[str, str, str | None], list[Line]] = {}
    for line in found:
        if not VARIANT.search(line.row) and line.metric != GAIN:
            groups.setdefault((line.column, line.metric, line.domain), []).append(line)
    made = []
    for (column, metric, domain), members in groups.items():
        if all(line.theirs is None for line in members):
            continue  # nothing is printed for these data
        both = [(line.ranked, line.theirs) for line in members if line.run and line.theirs is not None]
        agree = order([ours for ours, _ in both], [theirs for _, theirs in both])
        reason = None if both else NOT_RUN
        made.append(OrderLine(column, metric, domain, agree, order_judged(agree, reason)))
    return made


def notes(found: Sequence[Line], failed: Failed | None = None) -> list[str]:
    """What limits the comparison: single seeds, other seeds for some methods, the same value on all seeds, what failed
    and what was not run."""
    run = [line for line in found if line.run]
    made = []
    for column, rows in _by_column(line for line in run if len(line.seeds) == 1).items():
        made.append(f"{column}: one seed only, so without an interval: {listed(rows)}.")
    for column in dict.fromkeys(line.column for line in run):
        by_row: dict[str, set[int]] = {}
        for line in run:
            if line.column == column:
                by_row.setdefault(line.row, set()).update(line.seeds)
        by_seeds: dict[tuple[int, ...], list[str]] = {}
        for row, every in by_row.items():
            by_seeds.setdefault(tuple(sorted(every)), []).append(row)
        if len(by_seeds) > 1:
            told = "; ".join(f"{seeds_text(same)} for {listed(rows)}" for same, rows in by_seeds.items())
            made.append(f"{column}: methods were run with different seeds ({told}).")
    tested = (line for line in run if line.metric in ACCURACY)
    for column, rows in _by_column(x for x in tested if len(x.ours) > 1 and len(set(x.ours)) == 1).items():
        made.append(f"{column}: the same value on every seed, as of nets that answer one class always: {listed(rows)}.")
    reasons: dict[tuple[str, str], list[str]] = {}
    prefix = _STAND_IN if found and found[0].column.startswith(_STAND_IN) else ""
    for (column, row), by_seed in (failed or {}).items():
        for why in dict.fromkeys(by_seed.values()):
            seeds = [seed for seed, other in by_seed.items() if other == why]
            reasons.setdefault((prefix + column, why), []).append(f"{row} ({seeds_text(seeds)})")
    made += [f"{column}: failed: {listed(rows)}: {why}" for (column, why), rows in reasons.items()]
    begun = {line.column for line in run} | {column for column, _ in reasons}
    missing = _by_column(line for line in found if line.verdict.why == NOT_RUN)
    for column, rows in missing.items():
        if column in begun:
            made.append(f"{column}: not run yet: {listed(rows)}.")
    if run and (columns := [column for column in missing if column not in begun]):
        made.append(f"Columns not run yet: {listed(columns)}.")
    return made


def _by_column(found: Iterable[Line]) -> dict[str, list[str]]:
    """The rows of lines by column, each once."""
    rows: dict[str, dict[str, None]] = {}
    for line in found:
        rows.setdefault(line.column, {})[line.row] = None
    return {column: list(names) for column, names in rows.items()}


def _line(
    recipe: Recipe,
    value: Printed,
    column: str | None,
    row: str,
    runs: Sequence[Measured],
    apart: str | None,
    failed: Failed,
) -> Line:
    by_seed = {one.seed: one.ours for one in sorted(runs, key=lambda one: one.seed)}
    known = {seed: ours for seed, ours in by_seed.items() if ours is not None}
    to_target = value.metric.startswith("rounds_to_")
    reason = _reason(recipe, value, column, row, apart, bool(runs), failed)
    if reason is None and runs and not known and not to_target:
        reason = f"no run gives {value.metric}{f' of {value.domain}' if value.domain else ''}"
    seeds, ours = list(by_seed if to_target else known), list(known.values())
    near, missed = None if to_target else NEAR, len(seeds) - len(ours)
    verdict = judged(ours, value.value, near=near, missed=missed, reason=reason)
    name = column or value.column
    theirs = (None, None) if apart == _DATA else (value.value, value.std)
    spent = [one.seconds for one in runs if one.seconds is not None]
    estimates = [one.estimated for one in runs if one.estimated is not None]
    return Line(
        f"{_STAND_IN}{name}" if apart == _DATA else name,
        row,
        value.method,
        value.metric,
        value.domain,
        seeds,
        ours,
        *theirs,
        fmean(spent) if spent else None,
        fmean(estimates) if estimates else None,
        verdict,
    )


def _reason(
    recipe: Recipe, value: Printed, column: str | None, row: str, apart: str | None, run: bool, failed: Failed
) -> str | None:
    """Why a printed value cannot be compared with ours, whatever ours is. apart: why none of the table can be."""
    name, _ = recipe.table.beside.get(row, (row, ""))
    if column is None:
        return "a mean over other columns"
    if name in recipe.table.columns[column].get("without", []):
        return "left out here; see what the recipe leaves open"
    if not run:
        why = next(iter(failed.get((column, name), {}).values()), None)
        return NOT_RUN if why is None else f"failed: {why}"
    if value.metric == GAIN and name == recipe.table.baseline:
        return "the gain of a method over itself"
    if value.metric == "ms_per_epoch":
        return "times of another machine: only their order is compared"
    if apart is not None:
        return apart
    variant = VARIANT.search(row)
    return None if variant is None else f"{_VARIANTS[variant[1]]}, not the printed method"
