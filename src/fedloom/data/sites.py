"""Columns of several sites, compared by their moments: units, sentinels, codings and orders of columns that differ."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedloom.core.files import package_table

_TABLE = package_table(Path(__file__).with_suffix(".toml"))["units"]
FACTORS = {float(factor): units for factor, units in _TABLE.items()}
_SCALES = [(a, 0.0, units) for factor, units in FACTORS.items() for a in (factor, 1 / factor)]
# (a, b, units): the site's numbers are a * x + b, with x in the units of the others
_SCALES += [(1.8, 32.0, "°F and °C"), (1 / 1.8, -32 / 1.8, "°C and °F")]
_SENTINELS = [sign * float(mark) for mark in (9999, 999, 99, 888, 777, 99999) for sign in (1, -1)] + [-9.0, -1.0, 9.0]
_CODES = [(0.0, 1.0), (1.0, 2.0), (0.0, 100.0), (-1.0, 1.0)]  # of two values
FEWEST_ROWS = 20  # of a site that is compared
_FAR = 6.0  # usual distances between sites, beyond which one is unlike the others
_NEAR, _NEAR_LOG = 0.75, 0.5  # within these deviations, and logarithms of a deviation, sites are alike
_USUAL = 0.25  # that honest sites differ at least: deviations of a mean, and logarithms of a deviation
_OVERLAP = 1.28  # deviations from the mean to the 90 % quantile of a normal distribution


@dataclass(frozen=True, slots=True)
class UnlikeColumn:
    """A column of a site unlike the others'. reason: what would explain it, if known. is_note: honest sites do so."""

    site: int
    column: str
    numbers: str
    reason: str
    is_note: bool


@dataclass(frozen=True, slots=True)
class _Column:
    """A column of a site with its mean and standard deviation over `count` cells, and those of the others [sites]."""

    mean: float
    deviation: float
    count: float
    means: np.ndarray
    deviations: np.ndarray

    @property
    def usual(self) -> tuple[float, float]:
        return float(np.median(self.means)), float(np.median(self.deviations))

    def distance(self, mean: float, deviation: float) -> float:
        """Return how far a mean and a deviation are from the others', in units of how much these differ."""
        centre, width = self.usual
        if 0 in (width, deviation):
            return 0.0
        steps = abs(mean - centre) / np.hypot(_mad(self.means), width * np.hypot(_USUAL, self.count**-0.5))
        if mean > 0 and (self.means > 0).all():  # populations and sums of money differ by factors
            logs = np.log(self.means)
            steps = min(steps, abs(np.log(mean / centre)) / np.hypot(_mad(logs), _USUAL * width / centre))
        logs = np.log(np.maximum(self.deviations, 1e-9 * width))
        return float(max(steps, abs(np.log(deviation / width)) / np.hypot(_mad(logs), _USUAL)))

    def mismatch(self, mean: float, deviation: float) -> float:
        """Return how badly a mean and a deviation fit the others'; up to 1 they could be one of them."""
        centre, width = self.usual
        if min(width, deviation) <= 0:
            return np.inf
        return float(max(abs(mean - centre) / width / _NEAR, abs(np.log(deviation / width)) / _NEAR_LOG))

    @property
    def numbers(self) -> str:
        mean, deviation = self.usual
        return f"mean {self.mean:.4g}, deviation {self.deviation:.4g}; the others' {mean:.4g} and {deviation:.4g}"

    def other_unit(self) -> str:
        mean, deviation = self.usual
        overlaps = abs(self.mean - mean) < _OVERLAP * (self.deviation + deviation)
        mismatches = [  # twice as large for small factors, because honest sites get there
            (2 if 1 / 3 < a < 3 else 1) * self.mismatch((self.mean - b) / a, self.deviation / a) for a, b, _ in _SCALES
        ]
        fitting = [_SCALES[at][2] for at in np.argsort(mismatches) if mismatches[at] <= 1]
        return f"as {', or '.join(fitting[:2])} differ" if fitting and not overlaps else ""

    def sentinel(self) -> str:
        """Explain the moments by a share q of cells with a mark m of missing values: with the variance v of the others,
        the variance is (1 - q) v + q / (1 - q) (m - mean)^2."""
        mean, deviation = self.usual
        for mark in _SENTINELS:
            share = 0.0
            for _ in range(20 if abs(mark - mean) > 5 * deviation else 0):
                odds = max(0.0, self.deviation**2 - (1 - share) * deviation**2) / (mark - self.mean) ** 2
                share = odds / (1 + odds)
            rest = (self.mean - share * mark) / (1 - share)
            if 0.9 <= share * self.count <= self.count / 2 and self.mismatch(rest, deviation) <= 1:
                return f"{mark:g} in {share:.1%} of the cells would explain it, as a mark of missing values"
        return ""

    def other_code(self) -> str:
        """Explain two values that are coded otherwise: their variance is (mean - low) (high - mean), exactly."""
        codes = [_codes(*moments) for moments in zip(self.means, self.deviations, strict=True)]
        usual, present = set.intersection(*codes), _codes(self.mean, self.deviation)
        if not self.deviations.any() or not usual or not present or usual & present:
            return ""
        (low, high), (other_low, other_high) = min(usual), min(present)
        return f"coded {other_low:g} and {other_high:g} in place of {low:g} and {high:g}"


def unlike_columns(
    names: Sequence[str], means: np.ndarray, deviations: np.ndarray, counts: np.ndarray
) -> Iterator[UnlikeColumn]:
    """Compare each site with the median of the others, column by column, by means and standard deviations over `counts`
    cells, each [sites, columns]. If half of a site's findings lack a reason, all are notes."""
    for site in range(len(counts)):
        far, reasons = dict[int, _Column](), dict[int, str]()
        for at in np.flatnonzero(counts[site] >= FEWEST_ROWS).tolist():
            others = (counts[:, at] >= FEWEST_ROWS) & (np.arange(len(counts)) != site)
            moments = float(means[site, at]), float(deviations[site, at]), float(counts[site, at])
            column = _Column(*moments, means[others, at], deviations[others, at])
            if not others.any():
                continue
            code = column.other_code()
            if code or column.distance(column.mean, column.deviation) >= _FAR:
                far[at], reasons[at] = column, code or column.other_unit() or column.sentinel()
        for at, column in far.items():
            places = {of.mismatch(column.mean, column.deviation): to for to, of in far.items() if to != at}
            if not reasons[at] and places and min(places) <= 1:
                reasons[at] = f"as '{names[places[min(places)]]}' of the others, in another order of columns"
        explained = sum(map(bool, reasons.values()))
        for at, column in far.items():
            is_note = not reasons[at] or 2 * explained <= len(far)
            yield UnlikeColumn(site, names[at], column.numbers, reasons[at], is_note)


def _codes(mean: float, deviation: float) -> set[tuple[float, float]]:
    return {
        (low, high)
        for low, high in _CODES
        if low <= mean <= high and abs(deviation**2 - (mean - low) * (high - mean)) <= 1e-6 * (high - low) ** 2
    }


def _mad(values: np.ndarray) -> float:
    return 1.4826 * float(np.median(np.abs(values - np.median(values))))
