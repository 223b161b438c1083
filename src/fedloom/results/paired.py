"""Compare two groups of runs seed by seed, so that the seeds' common effect cancels. Needs no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING, Any

from fedloom._renamed import missing_attribute
from fedloom.core.errors import ConfigError
from fedloom.results.statistics import mean_std
from fedloom.results.table import ResultRow
from fedloom.results.text import counted

LEVEL = 0.95


@dataclass(frozen=True, slots=True)
class Paired:
    """The accuracy of one row of a table minus that of another, over the seeds that both ran.

    label, reference: the labels of the two rows. difference: mean, as a share in [0, 1]. low, high: its 95 % t
    interval; None for fewer than two common seeds. left_out: seeds that only one row has.
    """

    label: str
    reference: str
    seeds: list[int]
    difference: float
    low: float | None
    high: float | None
    left_out: list[int]

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise missing_attribute("fedloom.results.paired.Paired", name)

    @property
    def seen(self) -> bool:
        """Whether the interval excludes a difference of zero."""
        return self.low is not None and self.high is not None and not self.low <= 0 <= self.high

    def words(self) -> str:
        """Return the comparison in one sentence."""
        points = f"{100 * self.difference:+.1f} points"
        skipped = f"; seeds {', '.join(map(str, self.left_out))} were run by one of them alone" if self.left_out else ""
        if self.low is None or self.high is None:
            return f"{self.label} against {self.reference}: {points} with one seed; chance is not ruled out{skipped}"
        inside = f"{points}, {LEVEL:.0%} t interval {100 * self.low:+.1f} to {100 * self.high:+.1f}"
        interval = f"{inside} over {counted(len(self.seeds), 'seed')}"
        prefix = "" if self.seen else "no difference seen, "
        return f"{self.label} against {self.reference}: {prefix}{interval}{skipped}"


def paired(row: ResultRow, reference: ResultRow) -> Paired:
    """Compare two rows seed by seed. Raises `ConfigError` if they have no common seed, or different protocols."""
    for key in ("protocol", "select"):
        if row[key] != reference[key]:
            raise ConfigError(
                f"{row['label']} and {reference['label']} differ in {key}: such accuracies are not compared"
            )
    ours, theirs = (dict(zip(side["seeds"], side["by_seed"], strict=True)) for side in (row, reference))
    seeds = sorted(ours.keys() & theirs.keys())
    if not seeds:
        raise ConfigError(f"{row['label']} and {reference['label']} have no seed in common")
    differences = [ours[seed] - theirs[seed] for seed in seeds]
    mean, _ = mean_std(differences)
    low, high = interval(differences) or (None, None)
    return Paired(row["label"], reference["label"], seeds, mean, low, high, sorted(ours.keys() ^ theirs.keys()))


def all_paired(rows: Sequence[ResultRow], against: str) -> list[Paired]:
    """Compare every row with that of the method `against` in the same setting.

    Settings of the optimiser and tuned keys may differ, because each method has the rates that suit it. Rows that
    cannot be compared, and rows with a diverged run, are left out.
    """
    pairs = []
    for row in rows:
        for reference in rows:
            pair = reference["method"] == against != row["method"] and _alike(row, reference)
            if pair and set(row["seeds"]) & set(reference["seeds"]):
                pairs.append(paired(row, reference))
    return pairs


def _alike(row: ResultRow, reference: ResultRow) -> bool:
    """Whether two rows have one protocol, selection and setting, and no run that diverged."""
    if row["diverged"] or reference["diverged"]:
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


def interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % t interval of the mean of `values`; None for fewer than two values."""
    mean, std = mean_std(values)
    if std is None:
        return None
    from scipy.stats import t  # imports numpy

    half = float(t.ppf((1 + LEVEL) / 2, len(values) - 1)) * std / sqrt(len(values))
    return mean - half, mean + half
