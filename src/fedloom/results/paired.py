"""Compare rows of a table with the row of a baseline seed by seed, so that the seeds' common effect cancels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedloom._renamed import tell_new_names
from fedloom.core.errors import ConfigError
from fedloom.results.difference import Difference, compare_family, paired_differences
from fedloom.results.table import ResultRow
from fedloom.results.text import counted

POOLED = "central"  # trains on the pooled data of all clients: a reference, neither ranked nor part of a family


@tell_new_names("fedloom.results.paired.Paired")
@dataclass(frozen=True, slots=True)
class Paired:
    """The accuracy of one row of a table minus that of another, over the seeds that both ran.

    Attributes:
        label: label of the first row.
        reference: label of the other row.
        seeds: the common seeds.
        outcome: the difference as a share in [0, 1], with its interval and word.
        left_out: seeds that only one row has.
    """

    label: str
    reference: str
    seeds: list[int]
    outcome: Difference
    left_out: list[int]

    def words(self) -> str:
        """Return the comparison in one sentence."""
        skipped = f"; seeds {', '.join(map(str, self.left_out))} were run by one of them alone" if self.left_out else ""
        checks = f"; {text}" if (text := self.outcome.checks_text()) else ""
        return f"{self.label} against {self.reference}: {self.outcome.verdict}, {self.figures()}{checks}{skipped}"

    def figures(self) -> str:
        """Return the mean difference in points with its interval and number of seeds."""
        points = f"{100 * self.outcome.mean:+.1f} points"
        if self.outcome.low is None:
            return f"{points} with one seed"
        interval = f"95 % interval {self.outcome.interval_text(100)}"
        return f"{points}, {interval} over {counted(len(self.seeds), 'seed')}"


def paired(row: ResultRow, reference: ResultRow) -> Paired:
    """Compare two rows alone, seed by seed.

    Raises `ConfigError` if they have no common seed, or different protocols.

    Args:
        row: the row of a table to compare.
        reference: the row of the baseline.
    """
    for key in ("protocol", "select"):
        if row[key] != reference[key]:
            raise ConfigError(
                f"{row['label']} and {reference['label']} differ in {key}: such accuracies are not compared"
            )
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
    return [
        Paired(row["label"], reference["label"], seeds, outcome, sorted(set(row["seeds"]) ^ set(reference["seeds"])))
        for (row, seeds), outcome in zip(compared, compare_family(differences, reference["step"]), strict=True)
    ]


def all_paired(rows: Sequence[ResultRow], against: str) -> list[Paired]:
    """Compare every row with that of the method `against` in the same setting, in the order of `rows`.

    Settings of the optimiser and tuned keys may differ, because each method has the rates that suit it. Rows that
    cannot be compared, rows with a diverged run, and training on pooled data are left out: as in the headline, so that
    both correct over the same family. The rows compared with one reference are a family, further rows of `against`
    included.
    """
    pairs: dict[tuple[int, int], Paired] = {}
    for index, reference in enumerate(rows):
        if reference["method"] != against:
            continue
        family = [
            (position, row)
            for position, row in enumerate(rows)
            if row is not reference and _alike(row, reference) and set(row["seeds"]) & set(reference["seeds"])
        ]
        compared = paired_family([row for _, row in family], reference)
        pairs |= {(position, index): pair for (position, _), pair in zip(family, compared, strict=True)}
    return [pairs[key] for key in sorted(pairs)]


def _alike(row: ResultRow, reference: ResultRow) -> bool:
    """Whether two rows have one protocol, selection and setting, and no run that diverged."""
    if row["diverged"] or reference["diverged"] or row["method"] == POOLED:
        return False
    return same_setting(row, reference) and (row["protocol"], row["select"]) == (
        reference["protocol"],
        reference["select"],
    )


def same_setting(row: ResultRow, reference: ResultRow) -> bool:
    """Whether all keys are equal, also absent ones, but those of optimiser and methods, and keys tuned for both."""
    apart = ("optimizer.", f"{row['method']}.", f"{reference['method']}.")
    tuned = set(row["tuned"]) & set(reference["tuned"])
    mine, theirs = row["setting"], reference["setting"]
    keys = [key for key in mine.keys() | theirs.keys() if not key.startswith(apart) and key not in tuned]
    return all(mine.get(key) == theirs.get(key) for key in keys)
