"""The forecast of `fedloom advise`: the gain of a method over the plain one in a federation that was not measured.

A linear mixed model of all measured gains, in points:

    gain[m, s] = mean + setting[s] + method[m] + rest[m, s] + noise[m, s]

Every term is normal with a variance of its own: that of the noise comes from the differences over seeds, the others
maximise the likelihood. Effects of methods that were measured in few settings shrink towards the mean. The variant with
slopes adds features of the setting: `common * x[s]`, and `slope[m] * x[s]` with an effect of each method.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

Floats: TypeAlias = NDArray[np.float64]
_MEAN_VARIANCE = 100.0  # of the mean gain: its prior is a standard deviation of ten points around zero
_STEPS, _TOLERANCE = 400, 1e-4


class Gain(NamedTuple):
    """The mean gain of a method in a setting, in points, and the variance of this mean over seeds."""

    setting: str
    method: str
    points: float
    variance: float


class Forecast(NamedTuple):
    """The expected gain of a method in a new setting. sd: without the noise of seeds, which more seeds reduce."""

    gain: float
    sd: float

    @property
    def better(self) -> float:
        """The probability that the gain is above zero."""
        return float(ndtr(self.gain / self.sd))


class Feature(NamedTuple):
    """The features of a setting [p]: their means over dealing seeds, and the variances of these means."""

    mean: Floats
    variance: Floats


@dataclass(frozen=True, slots=True)
class Model:
    """A fitted model. variances: of setting, method and rest, then with slopes also of common and method slopes.
    weights: the inverse covariance of the gains times the gains; inverse: that matrix itself."""

    gains: Sequence[Gain]
    features: Mapping[str, Feature]
    variances: Floats
    inverse: Floats
    weights: Floats

    def forecast(self, method: str, setting: str) -> Forecast:
        """Forecast a method in a setting without gains. setting: one of `features`, where the model has slopes."""
        new = [Gain(setting, method, 0.0, 0.0)]
        cross = _covariance(self.variances, _kernels(new, self.gains, self.features))[0]
        prior = _covariance(self.variances, _kernels(new, new, self.features))[0, 0]
        return Forecast(float(cross @ self.weights), float(np.sqrt(prior - cross @ self.inverse @ cross)))


def fit(gains: Sequence[Gain], features: Mapping[str, Feature] | None = None) -> Model:
    """Fit the variances by the MM algorithm (Zhou et al., arXiv 1509.07426), without step size or chance.
    features: by setting, for the model with slopes."""
    features = features or {}
    kernels = _kernels(gains, gains, features)
    points, noise = np.array([gain.points for gain in gains]), np.diag([gain.variance for gain in gains])
    variances = np.full(len(kernels), points.var() / len(kernels))
    for _ in range(_STEPS):
        inverse = np.linalg.inv(_covariance(variances, kernels) + noise)
        weights = inverse @ points
        ratios = np.array([weights @ kernel @ weights / (inverse * kernel).sum() for kernel in kernels])
        if np.abs(variances * (np.sqrt(ratios) - 1)).max() < _TOLERANCE * points.var():
            break
        variances = variances * np.sqrt(ratios)
    return Model(gains, features, variances, inverse, weights)


def _covariance(variances: Floats, kernels: Sequence[Floats]) -> Floats:
    total: Floats = _MEAN_VARIANCE + sum(value * kernel for value, kernel in zip(variances, kernels, strict=True))
    return total


def _kernels(rows: Sequence[Gain], columns: Sequence[Gain], features: Mapping[str, Feature]) -> list[Floats]:
    same_setting = _equal([gain.setting for gain in rows], [gain.setting for gain in columns])
    same_method = _equal([gain.method for gain in rows], [gain.method for gain in columns])
    kernels = [same_setting, same_method, same_setting * same_method]
    if features:
        left, right = (np.array([features[gain.setting].mean for gain in side]) for side in (rows, columns))
        # A setting shares one error of its features, which are known from a few dealings only.
        errors = np.array([features[gain.setting].variance.sum() for gain in rows])
        products = (left @ right.T + same_setting * errors[:, None]) / left.shape[1]
        kernels += [products, products * same_method]
    return kernels


def _equal(rows: Sequence[str], columns: Sequence[str]) -> Floats:
    return np.asarray(np.array(rows)[:, None] == np.array(columns), dtype=np.float64)
