"""Compare rows of a table with the row of a baseline seed by seed, so that the seeds' common effect cancels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedloom.core.errors import ConfigError
from fedloom.core.text import counted
from fedloom.results.comparability import (
    comparable,
    context_numbers,
    different_keys,
    different_settings,
    run_identity,
    same_runs,
)
from fedloom.results.difference import Difference, compare_family, paired_differences
from fedloom.results.group import ResultRow

POOLED = "central"  # trains on the pooled data of all clients: a reference, neither ranked nor part of a family


@dataclass(frozen=True, slots=True)
class Paired:
    """The accuracy of one row of a table minus that of another, over the seeds that both ran.

    Attributes:
        label: label of the first row.
        reference: label of the other row.
        seeds: the common seeds.
        outcome: the difference as a share in [0, 1], with its interval and word.
        left_out: seeds that only one row has.
        unlike: other keys in which the rows differ, with their values; empty if there are none.
    """

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
        return (
            f"{self.label} against {self.reference}: {self.outcome.verdict}, {self.figures()}{checks}{skipped}{unlike}"
        )

    def figures(self) -> str:
        """Return the mean difference in points with its interval and number of seeds."""
        points = f"{100 * self.outcome.mean:+.1f} points"
        if self.outcome.low is None:
            return f"{points} with one seed"
        interval = f"95 % interval {self.outcome.interval_text(100)}"
        return f"{points}, {interval} over {counted(len(self.seeds), 'seed')}"


def paired(row: ResultRow, reference: ResultRow) -> Paired:
    """Compare two rows alone, seed by seed.

    Raises `ConfigError` if they have no common seed, or differ in protocol, selection or setting.

    Args:
        row: the row of a table to compare.
        reference: the row of the baseline.
    """
    if not comparable(row, reference):
        names = [key for key in ("protocol", "select") if row[key] != reference[key]]
        why = names[0] if names else different_settings(row, reference) or "the name of their setting"
        raise ConfigError(f"{row['label']} and {reference['label']} differ in {why}: such accuracies are not compared")
    pairs = paired_family([row], reference)
    if not pairs:
        raise ConfigError(f"{row['label']} and {reference['label']} have no seed in common")
    return pairs[0]


def paired_family(rows: Sequence[ResultRow], reference: ResultRow) -> list[Paired]:
    """Compare comparable rows with one reference, as one family; rows without a common seed are left out."""
    compared, differences = [], []
    for row in rows:
        by_seed = paired_differences(row["seeds"], row["by_seed"], reference["seeds"], reference["by_seed"])
        if by_seed:
            compared.append((row, sorted(by_seed)))
            differences.append(list(by_seed.values()))
    outcomes = compare_rows([row for row, _ in compared], differences, reference["step"])
    return [
        Paired(
            row["label"],
            reference["label"],
            seeds,
            outcome,
            sorted(set(row["seeds"]) ^ set(reference["seeds"])),
            different_keys(row, reference),
        )
        for (row, seeds), outcome in zip(compared, outcomes, strict=True)
    ]


def compare_rows(rows: Sequence[ResultRow], differences: Sequence[Sequence[float]], step: float) -> list[Difference]:
    """Judge the differences of rows from one reference as one family, in which equal runs of two names count once.

    Args:
        rows: the rows of a table.
        differences: of each row, one difference for each common seed.
        step: the smallest step of the measure.
    """
    runs = [run_identity(row) for row in rows]
    distinct = dict(zip(runs, differences, strict=True))
    outcomes = dict(zip(distinct, compare_family(list(distinct.values()), step), strict=True))
    return [outcomes[run] for run in runs]


def all_paired(rows: Sequence[ResultRow], against: str) -> list[Paired]:
    """Compare every row with that of the method `against` in the same setting, in the order of `rows`.

    Which rows compare is told in `comparability`. Rows with a diverged run, training on pooled data, and the runs of
    the reference under another name are left out: as in the headline, so that both correct over the same family. The
    rows compared with one reference are a family, further rows of `against` included.
    """
    contexts = context_numbers(rows)
    pairs: dict[tuple[int, int], Paired] = {}
    for index, reference in enumerate(rows):
        if reference["method"] != against or reference["diverged"]:
            continue
        if any(same_runs(reference, rows[earlier]) for earlier in range(index) if contexts[earlier] == contexts[index]):
            continue
        family = [
            (position, row)
            for position, row in enumerate(rows)
            if contexts[position] == contexts[index]
            and not (row["diverged"] or row["method"] == POOLED or same_runs(row, reference))
            and set(row["seeds"]) & set(reference["seeds"])
        ]
        compared = paired_family([row for _, row in family], reference)
        pairs |= {(position, index): pair for (position, _), pair in zip(family, compared, strict=True)}
    return [pairs[key] for key in sorted(pairs)]
