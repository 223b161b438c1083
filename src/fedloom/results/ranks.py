"""Average ranks of methods over settings, for comparisons of many methods. Needs no torch."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean

from fedloom.results.comparability import run_identity
from fedloom.results.difference import LEVEL
from fedloom.results.group import ResultRow
from fedloom.results.paired import POOLED
from fedloom.results.row_names import row_names

MIN_TESTED = 5  # settings from which average ranks may be tested


@dataclass(frozen=True, slots=True)
class AverageRanks:
    """Mean rank of each method over settings, best first; rank 1 has the highest mean accuracy.

    - critical: Nemenyi's critical difference of two mean ranks at 5 %; None for fewer than five settings, over which
      nothing is tested.
    - friedman: p of Friedman's test that all methods rank alike; None where `critical` is.
    """

    protocol: str
    settings: int
    ranks: dict[str, float]
    critical: float | None
    friedman: float | None = None

    @property
    def cliques(self) -> list[tuple[float, float]]:
        """Return the largest groups of methods that lie within the critical difference, by lowest and highest rank."""
        if self.critical is None:
            return []
        values = list(self.ranks.values())
        groups: list[tuple[float, float]] = []
        for low in values:
            high = max(value for value in values if value <= low + self.critical)
            if high > low and not any(high <= last for _, last in groups):
                groups.append((low, high))
        return groups


def average_ranks(rows: Sequence[ResultRow]) -> list[AverageRanks]:
    """Rank methods within each setting, and average over the settings of one protocol and selection.

    Methods that some setting lacks, those that diverged somewhere, and training on pooled data are left out. So are a
    setting with a single method, runs that an earlier row shows under another name, and a protocol with fewer than two
    settings or three methods.

    Args:
        rows: the rows of a table.
    """
    by_protocol: dict[tuple[str, str], dict[str, dict[str, float]]] = {}
    seen: set[Hashable] = set()
    for row, name in zip(rows, row_names(rows), strict=True):
        if row["method"] == POOLED or run_identity(row) in seen:
            continue
        seen.add(run_identity(row))
        method = name.method
        accuracies = by_protocol.setdefault((row["protocol"], row["select"]), {}).setdefault(name.setting, {})
        accuracies[method] = float("nan") if row["diverged"] or method in accuracies else row["accuracy"]
    averaged = []
    for (protocol, _), all_settings in by_protocol.items():
        settings = {name: accuracies for name, accuracies in all_settings.items() if len(accuracies) > 1}
        if len(settings) < 2:
            continue
        common = [
            method
            for method in next(iter(settings.values()))
            if all(accuracies.get(method, float("nan")) >= 0 for accuracies in settings.values())
        ]
        if len(common) >= 3:
            averaged.append(_averaged(protocol, common, list(settings.values())))
    return averaged


def _averaged(protocol: str, methods: Sequence[str], settings: Sequence[dict[str, float]]) -> AverageRanks:
    from scipy.stats import friedmanchisquare, rankdata, studentized_range

    ranked = [rankdata([-accuracies[method] for method in methods]) for accuracies in settings]
    means = {method: fmean(float(ranks[k]) for ranks in ranked) for k, method in enumerate(methods)}
    n, k = len(settings), len(methods)
    critical = friedman = None
    if n >= MIN_TESTED:
        critical = float(studentized_range.ppf(LEVEL, k, 1e6)) / sqrt(2) * sqrt(k * (k + 1) / (6 * n))
        if any(len(set(ranks)) > 1 for ranks in ranked):  # the statistic is not defined where all methods tie
            friedman = float(friedmanchisquare(*zip(*ranked, strict=True)).pvalue)
    return AverageRanks(protocol, n, dict(sorted(means.items(), key=lambda pair: pair[1])), critical, friedman)
