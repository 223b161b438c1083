"""Statistics over seeds. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, stdev


def mean_std(values: Sequence[float]) -> tuple[float, float | None]:
    """Return mean and sample standard deviation (n - 1); the latter is None for a single value."""
    return fmean(values), (stdev(values) if len(values) > 1 else None)
