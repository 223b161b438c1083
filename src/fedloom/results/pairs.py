"""Rows of a table, paired by seed and judged by the one rule, family by family."""

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, replace

from fedloom.core.errors import ConfigError
from fedloom.results.comparability import (
    comparable,
    context_numbers,
    different_keys,
    different_settings,
    run_identity,
    same_runs,
)
from fedloom.results.difference import MARGIN, Difference, compare_family, paired_differences
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
        skipped = f"; seeds {', '.join(map(str, self.left_out))} were run by one of them alone" if self.left_out else ""
        checks = f"; {text}" if (text := self.outcome.checks_text()) else ""
        unlike = f"; they differ in {self.unlike} too" if self.unlike else ""
        line = f"{self.outcome.verdict}, {self.outcome.figures()}"
        return f"{self.label} against {self.reference}: {line}{checks}{skipped}{unlike}"


def paired(row: ResultRow, reference: ResultRow) -> Paired:
    """Compare a row with a baseline's alone, seed by seed. Raises `ConfigError` if they have no common seed, a run of
    one diverged, or they differ in protocol, selection or setting."""
    if not comparable(row, reference):
        names = [key for key in ("protocol", "select") if row[key] != reference[key]]
        why = names[0] if names else different_settings(row, reference) or "the name of their setting"
        raise ConfigError(f"{row['label']} and {reference['label']} differ in {why}: such accuracies are not compared")
    pairs = paired_family([row], reference)
    if not pairs:
        why = "a diverged run" if row["diverged"] or reference["diverged"] else "no seed in common"
        raise ConfigError(f"{row['label']} and {reference['label']} have {why}")
    return pairs[0]


def paired_family(rows: Sequence[ResultRow], reference: ResultRow) -> list[Paired]:
    """Compare comparable rows with one reference; left out are rows without a common seed and, counted, diverged ones.
    Each family that a study has planned is corrected alone."""
    compared = [
        (row, by_seed)
        for row in rows
        if (by_seed := paired_differences(row["seeds"], row["by_seed"], reference["seeds"], reference["by_seed"]))
    ]
    lost = reference["diverged"]
    differences = [None if lost or row["diverged"] else list(by_seed.values()) for row, by_seed in compared]
    pairs = []
    outcomes = compare_rows([row for row, _ in compared], differences, reference["step"])
    for (row, by_seed), outcome in zip(compared, outcomes, strict=True):
        if outcome is not None:
            if _at_the_ceiling(by_seed, row, reference):
                outcome = replace(outcome, notes=("at the ceiling",))
            left_out, unlike = sorted({*row["seeds"]} ^ {*reference["seeds"]}), different_keys(row, reference)
            pairs.append(Paired(row["label"], reference["label"], [*by_seed], outcome, left_out, unlike))
    return pairs


def compare_rows(
    rows: Sequence[ResultRow], differences: Sequence[Sequence[float] | None], step: float, margin: float = MARGIN
) -> list[Difference | None]:
    """Judge the differences of rows from one reference, family by family; equal runs of two names count once.

    differences: None for a row that cannot be tested, which is counted. step, margin: as for `compare_family`."""
    families: dict[str, dict[Hashable, Sequence[float] | None]] = {}
    for row, values in zip(rows, differences, strict=True):
        families.setdefault(row["family"], {})[run_identity(row)] = values
    judged: dict[tuple[str, Hashable], Difference] = {}
    for name, by_run in families.items():
        tested = {run: values for run, values in by_run.items() if values is not None}
        absent = len(by_run) - len(tested)
        outcomes = compare_family([*tested.values()], step, margin=margin, absent=absent, family=name)
        judged |= {(name, run): outcome for run, outcome in zip(tested, outcomes, strict=True)}
    return [judged.get((row["family"], run_identity(row))) for row in rows]


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
    names = ", ".join(name for name in dict.fromkeys(row["family"] for row in rows) if name)
    unplanned = "All methods of a setting are one family: no plan names primary ones."
    return f"Families of the study, each corrected alone: {names}." if names else unplanned
