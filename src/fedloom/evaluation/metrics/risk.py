"""Log odds of a class as risks: calibration by logistic regression, and thresholds, from the states of `ranks`.

A sample in a bin counts as at its middle, off by 0.3 % of its score at most."""

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import softplus

from fedloom.evaluation.metric import METRICS, MetricStates
from fedloom.evaluation.metrics.by_class import mean_of_defined
from fedloom.evaluation.metrics.ranks import ClassScores

DECISION = ("decision_sensitivity", "decision_specificity", "decision_ppv", "decision_npv")


@METRICS.register("calibration_slope")
class CalibrationSlope(ClassScores):
    """The slope of the logistic regression of a class on its log odds (Cox 1958), on all samples together.
    Below 1 the model is overconfident. Of two classes the value is that of the second, of more a mean. A class that a
    threshold separates from the others has none."""

    over: ClassVar[Literal["clients", "samples", "honest samples"]] = "samples"
    detailed: ClassVar[bool] = False
    on_request: ClassVar[bool] = True
    higher_is_better: ClassVar[bool | None] = None
    place: ClassVar[int] = 1  # in what `calibration` returns

    def compute(self) -> float:
        if self.bins.shape[1] == 2:
            return calibration(*self.counts(1))[self.place]
        return mean_of_defined(torch.tensor(self._of_classes(), dtype=torch.float64))

    def details(self) -> Mapping[str, Any]:
        parts = {"brier_parts": _brier_parts(*self.counts(1))} if self.bins.shape[1] == 2 else {}
        return {"by_class": self._of_classes()} | parts | ({"note": "binned"} if self.bins.shape[2] else {})

    def _of_classes(self) -> list[float]:
        return [calibration(*self.counts(label))[self.place] for label in range(self.bins.shape[1])]


@METRICS.register("calibration_intercept")
class CalibrationIntercept(CalibrationSlope):
    """The intercept of the regression that gives `calibration_slope`."""

    place: ClassVar[int] = 0


@METRICS.register("calibration_in_the_large")
class CalibrationInTheLarge(CalibrationSlope):
    """The intercept of that regression with slope 1; above 0 the model says too low risks on average."""

    place: ClassVar[int] = 2


def calibration(scores: Tensor, of_class: Tensor, others: Tensor) -> tuple[float, float, float]:
    """Intercept and slope of a logistic regression on distinct `scores` [T], and the intercept at slope 1, by counts of
    samples of the class and of others [T]; NaN where there is none."""
    hits, samples = of_class.double(), (of_class + others).double()
    total, positives, negatives = float(samples.sum()), scores[of_class > 0], scores[others > 0]
    if not len(positives) or not len(negatives) or not bool(scores.isfinite().all()):
        return math.nan, math.nan, math.nan
    from scipy.optimize import brentq  # too slow to import where nobody asks for calibration

    def excess(shift: float) -> float:
        value = float((samples * (shift + scores).sigmoid() - hits).sum())
        return value if abs(value) > 1e-15 * total else 0.0  # the rest is rounding

    ends = -50 - float(scores.max()), 50 - float(scores.min())
    in_the_large = float(brentq(excess, *ends, xtol=1e-13, maxiter=1000))
    if positives.min() >= negatives.max() or negatives.min() >= positives.max():  # the likelihood has no maximum
        return math.nan, math.nan, in_the_large
    mean = (samples * scores).sum() / total
    spread = ((samples * (scores - mean).square()).sum() / total).sqrt()
    x = torch.stack([torch.ones_like(scores), (scores - mean) / spread], 1)
    fit, step, best = torch.zeros(2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64), -math.inf
    for k in range(200):  # Newton's method, with half the step where the likelihood falls
        if k and float(step.abs().max()) <= 1e-12 * (1 + float(fit.abs().max())):
            break
        z = x @ (fit + step)
        likelihood = float((hits * z - samples * softplus(z)).sum())
        if likelihood < best:
            step = step / 2
            continue
        fit, best, p = fit + step, likelihood, z.sigmoid()
        step = torch.linalg.pinv((x * (samples * p * (1 - p))[:, None]).T @ x) @ x.T @ (hits - samples * p)
    slope = float(fit[1] / spread)
    return float(fit[0]) - slope * float(mean), slope, in_the_large


def _brier_parts(scores: Tensor, of_class: Tensor, others: Tensor) -> dict[str, float]:
    """The parts of mean (p - y)² by ten bins of p: reliability - resolution + uncertainty + variance within bins -
    covariance within bins (Stephenson et al. 2008). Arguments as for `calibration`."""
    risks, y, n = scores.sigmoid(), of_class.double(), (of_class + others).double()
    index = (10 * risks + 1e-9).long().clamp(max=9)
    sums = [index.bincount(w, minlength=10) for w in (n, n * risks, y, n * risks**2, y * risks)]
    n, p, y, squares, products = torch.stack(sums)[:, sums[0] > 0]
    rate = y.sum() / n.sum()
    parts = {
        "reliability": (p - y).square() / n,
        "resolution": n * (y / n - rate).square(),
        "uncertainty": n * rate * (1 - rate),
        "variance_within": squares - p * p / n,
        "covariance_within": 2 * (products - p * y / n),
    }
    return {name: float(part.sum() / n.sum()) for name, part in parts.items()}


def best_threshold(states: MetricStates, label: int, rule: str, amount: float = 0.0) -> dict[str, float]:
    """The best threshold on the log odds of the class `label`, by a `rule` and its `amount` as in `evaluation.decision`
    (the highest of equal ones), with the numbers of positives and negatives; empty unless there are both."""
    if (state := scores_in(states)) is None:
        return {}
    thresholds, hits, alarms = state.cuts(label)
    positives, negatives = float(hits[0]), float(alarms[0])
    if not positives * negatives:
        return {}
    allowed = math.floor((1 - amount) * (negatives if rule == "specificity" else positives) + 1e-9)
    gains = {
        "specificity": torch.where(alarms <= allowed, hits, -1.0),
        "sensitivity": torch.where(positives - hits <= allowed, -alarms, -math.inf),
        "youden": hits * negatives - alarms * positives,
        "net_benefit": hits * (1 - amount) - alarms * amount,
        "cost": hits * amount - alarms,
    }[rule]
    best = float(thresholds[gains >= gains.max() - 1e-9 * gains.max().abs()][-1])
    return {"threshold": best, "positives": positives, "negatives": negatives}


def at_threshold(states: MetricStates, label: int, threshold: float | None) -> dict[str, float]:
    """The values of `DECISION` that are defined, for positive log odds of the class `label` from `threshold` on."""
    if threshold is None or (state := scores_in(states)) is None:
        return {}
    scores, of_class, others = state.counts(label)
    positive = scores >= threshold
    hits, alarms = int(of_class[positive].sum()), int(others[positive].sum())
    missed, cleared = int(of_class.sum()) - hits, int(others.sum()) - alarms
    shares = (hits, missed), (cleared, alarms), (hits, alarms), (cleared, missed)
    by_name = dict(zip(DECISION, shares, strict=True))
    return {name: right / (right + wrong) for name, (right, wrong) in by_name.items() if right + wrong}


def scores_in(states: MetricStates) -> ClassScores | None:
    """The state with the scores of one model; None without samples, and where several models were tested."""
    state = states.states.get(ClassScores.shared)
    return state if isinstance(state, ClassScores) and (len(state.scores) or state.bins.shape[2]) else None
