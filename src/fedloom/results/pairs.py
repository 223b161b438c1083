"""Rows of a table, paired by seed and judged by the one rule, family by family."""

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedloom.core.text import ALPHA, BASELINE, counted, is_share, seeds_text
from fedloom.results.comparability import context_numbers, different_keys, run_identity, same_runs
from fedloom.results.difference import STEP, Difference, compare_family, paired_differences
from fedloom.results.group import ResultRow

POOLED = "central"  # trains on the pooled data of all clients: a reference, neither ranked nor part of a family
_CEILING = 3  # steps from 0 or 100 % within which accuracies have no room to differ


@dataclass(frozen=True, slots=True)
class Paired:
    """The accuracy of the row `label` of a table minus that of `reference`, over the `seeds` that both ran.

    outcome: the difference as a share in [0, 1]. left_out: seeds that only one row has. unlike: other keys in which the
    rows differ, with their values; empty if there are none."""

    label: str
    reference: str
    seeds: list[int]
    outcome: Difference
    left_out: list[int]
    unlike: str = ""

    def words(self) -> str:
        """Return the comparison in one sentence."""
        skipped = f"; {seeds_text(self.left_out)} run by one of them alone" if self.left_out else ""
        checks = f"; {text}" if (text := self.outcome.checks_text()) else ""
        unlike = f"; they differ in {self.unlike} too" if self.unlike else ""
        line = f"{self.outcome.verdict}, {self.outcome.figures()}"
        return f"{self.label} against {self.reference}: {line}{checks}{skipped}{unlike}"


def paired_family(
    rows: Sequence[ResultRow], reference: ResultRow, alpha: float = ALPHA, least: int = 0
) -> list[Paired]:
    """Compare comparable rows with one reference; left out are rows without a common seed and, counted, diverged ones
    and those with fewer than `least` common seeds. Each family that a study has planned is corrected alone.

    alpha: chance of a false word in a family."""
    compared = [
        (row, by_seed)
        for row in rows
        if (by_seed := paired_differences(row["seeds"], row["by_seed"], reference["seeds"], reference["by_seed"]))
    ]
    lost = reference["diverged"]
    differences = [None if lost or row["diverged"] or len(by_seed) < least else by_seed for row, by_seed in compared]
    pairs = []
    outcomes = compare_rows([row for row, _ in compared], differences, reference, "accuracy", alpha)
    for (row, by_seed), outcome in zip(compared, outcomes, strict=True):
        if outcome is not None:
            seeds = [*_planned(row, by_seed)]
            if _at_the_ceiling(seeds, row, reference):
                outcome = replace(outcome, notes=(*outcome.notes, "at the ceiling"))
            left_out, unlike = sorted({*row["seeds"]} ^ {*reference["seeds"]}), different_keys(row, reference)
            pairs.append(Paired(row["label"], reference["label"], seeds, outcome, left_out, unlike))
    return pairs


def compare_rows(
    rows: Sequence[ResultRow],
    differences: Sequence[Mapping[int, float] | None],
    reference: ResultRow,
    measure: str,
    alpha: float = ALPHA,
) -> list[Difference | None]:
    """Judge the differences of rows from one reference in a `measure`, family by family; equal runs of two names count
    once.

    A study's words are those of its planned seeds: more seeds give an unplanned look, which changes none. Where seeds
    are added until rows are decided, they are those of the last recorded look. differences: by seed; None for a row
    that cannot be tested, which is counted. alpha: as for `compare_family`."""
    planned = [None if values is None else _planned(row, values) for row, values in zip(rows, differences, strict=True)]
    families = [row["plan"].family if row["plan"].study == reference["plan"].study else "added later" for row in rows]
    step = reference["step"] if measure == "accuracy" else STEP
    how: dict[str, Any] = {"margin": reference["plan"].margin if is_share(measure) else 0.0, "alpha": alpha}
    outcomes = _by_family(rows, families, planned, step, how)
    every = outcomes if planned == differences else _by_family(rows, families, differences, step, how)
    has_looks = measure == "accuracy" and reference["method"] == BASELINE
    for k, (row, outcome, more) in enumerate(zip(rows, outcomes, every, strict=True)):
        plan, later = row["plan"], more if more and outcome and more.n > outcome.n else None
        if outcome is not None and plan.sequential and plan.study == reference["plan"].study:
            look = plan.looks.get(row["protocol"]) if has_looks else None
            numbers: dict[str, Any] = {key: getattr(look, key, None) for key in _OF_A_LOOK}
            outcomes[k] = replace(outcome, **numbers, alpha=alpha if look is None else look.alpha)
        elif outcome is not None:
            missing = len({*plan.seeds} - {*(planned[k] or ())})
            notes = (f"{missing} of {counted(len(plan.seeds), 'planned seed')} missing",) if missing else ()
            outcomes[k] = replace(outcome, notes=notes, unplanned=later)
    return outcomes


_OF_A_LOOK = ("adjusted", "equivalent_p", "tested", "planned")  # what depends on the other rows of then


def _planned(row: ResultRow, values: Mapping[int, float]) -> Mapping[int, float]:
    """Return the values of the planned seeds, or of those of the last look; all if none is among them."""
    seeds = row["plan"].looks.get(row["protocol"], row["plan"]).seeds
    return {seed: value for seed, value in values.items() if seed in seeds} or values


def _by_family(
    rows: Sequence[ResultRow],
    families: Sequence[str],
    differences: Sequence[Mapping[int, float] | None],
    step: float,
    how: Mapping[str, Any],
) -> list[Difference | None]:
    by_family: dict[str, dict[Hashable, Mapping[int, float] | None]] = {}
    keys = [(family, run_identity(row)) for family, row in zip(families, rows, strict=True)]
    for (family, run), values in zip(keys, differences, strict=True):
        by_family.setdefault(family, {})[run] = values
    judged: dict[tuple[str, Hashable], Difference] = {}
    for family, by_run in by_family.items():
        tested = {run: [*values.values()] for run, values in by_run.items() if values is not None}
        absent = len(by_run) - len(tested)
        outcomes = compare_family([*tested.values()], step, absent=absent, family=family, **how)
        judged |= {(family, run): outcome for run, outcome in zip(tested, outcomes, strict=True)}
    return [judged.get(key) for key in keys]


def all_paired(rows: Sequence[ResultRow], against: str) -> list[Paired]:
    """Compare every row with that of the method `against` in the same setting, in the order of `rows`.

    Which rows compare is told in `comparability`. Rows with a diverged run, training on pooled data, and the runs of
    the reference under another name are left out, as in the headline. Further rows of `against` are compared, too."""
    contexts = context_numbers(rows)
    pairs: dict[tuple[int, int], Paired] = {}
    for index, reference in enumerate(rows):
        if reference["method"] != against or reference["diverged"]:
            continue
        if any(same_runs(reference, rows[earlier]) for earlier in range(index) if contexts[earlier] == contexts[index]):
            continue
        family = {
            position: row
            for position, row in enumerate(rows)
            if contexts[position] == contexts[index] and row["method"] != POOLED and not same_runs(row, reference)
        }
        compared = iter(paired_family(list(family.values()), reference))
        for position, row in family.items():
            if {*row["seeds"]} & {*reference["seeds"]} and not row["diverged"]:
                pairs[position, index] = next(compared)
    return [pairs[key] for key in sorted(pairs)]


def _at_the_ceiling(seeds: Collection[int], *rows: ResultRow) -> bool:
    room = _CEILING * rows[0]["step"] + 1e-12  # for accuracies that are exactly that far
    values = [value for row in rows for seed, value in zip(row["seeds"], row["by_seed"], strict=True) if seed in seeds]
    return all(value <= room for value in values) or all(value >= 1 - room for value in values)


def family_note(rows: Sequence[ResultRow]) -> str:
    """Return a sentence that says over which rows p values are corrected."""
    names = ", ".join(name for name in dict.fromkeys(row["plan"].family for row in rows) if name)
    unplanned = "All methods of a setting are one family: no plan names primary ones."
    return f"Families of the study, each corrected alone: {names}." if names else unplanned
