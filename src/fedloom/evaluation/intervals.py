"""Confidence intervals of a test by a bootstrap of groups: whole groups are drawn again within each client. Where the
scores stay on nodes, by sums over the groups of each node (`group_sums`)."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedloom.core.text import is_share
from fedloom.data.dataset import Dataset
from fedloom.evaluation.metric import MetricStates, Scores
from fedloom.evaluation.metrics.basic import SampleScores
from fedloom.evaluation.metrics.ranks import bin_numbers, log_odds
from fedloom.evaluation.protocols import Evaluator

_FEW_GROUPS = 20  # with fewer, quantiles of the draws are too narrow

Tested = Mapping[int, Mapping[str, MetricStates]]


def group_sums(states: MetricStates, data: Dataset, by: str, bins: Tensor | None) -> MetricStates:
    """Return the states of a node's test with sums over the groups of its test samples, or over samples (by "row").
    They are the number of groups, the sums of k², k m and m² for k correct ones of m samples, and that of (sum of
    I)², where I is the derivative of the pooled AUROC by a sample's weight, times all samples. bins: pooled counts of
    scores [2, C, K]; None makes no sums."""
    samples = states.states.get(SampleScores.key)
    if bins is None or not isinstance(samples, SampleScores):
        return states
    labels, rows = data.y.cpu()[samples.indices], samples.indices
    _, group = torch.unique(rows if data.group is None or by == "row" else data.group.cpu()[rows], return_inverse=True)
    moved = auroc_influence(bins, bin_numbers(log_odds(samples.logits.double()), bins.shape[2]), labels)
    weights = torch.ones(len(rows)), samples.logits.argmax(1) == labels, moved
    size, correct, moved = (group.bincount(of.double()) for of in weights)
    sums = [correct @ correct, correct @ size, size @ size, moved @ moved]
    samples = replace(samples, sums=torch.stack([torch.tensor(float(len(size))), *sums]))
    return MetricStates(states.total, {**states.states, SampleScores.key: samples})


def auroc_influence(bins: Tensor, numbers: Tensor, labels: Tensor) -> Tensor:
    """The derivative of the mean AUROC by the weight of each sample [n] float64, times all samples.
    bins: counts of all scores, of each class and of the others [2, C, K]. numbers: bin of each sample's scores [n, C].
    labels: its class [n]."""
    counts, total = bins.double(), bins[:, 0].sum()
    positives, negatives = sums = counts.sum(2)
    below = (counts.cumsum(2) - counts / 2) / sums[:, :, None]  # share of the class and of the others, [2, C, K]
    by_class = (counts[0] * below[1]).sum(1) / positives
    is_class = labels[:, None] == torch.arange(len(positives))
    share = [of.T.gather(0, numbers) for of in below]
    moved = torch.where(is_class, (share[1] - by_class) / positives, (1 - share[0] - by_class) / negatives)
    return total * moved[:, ~by_class.isnan()].mean(1)


def _t_quantile(level: float, groups: int) -> float:
    from scipy.stats import t  # takes half a second, which runs without intervals are spared

    return float(t.ppf((1 + level) / 2, groups - 1 if groups < _FEW_GROUPS else math.inf))


def intervals_over_nodes(pooled: MetricStates, level: float) -> dict[str, Any]:
    """Return the intervals of the accuracy and the AUROC of pooled samples, value ± t s, from their `group_sums`, as
    `intervals` does; t is that of the normal distribution for 20 groups or more."""
    samples = pooled.states.get(SampleScores.key)
    count, *sums = samples.sums.tolist() if isinstance(samples, SampleScores) else (0.0,)
    by_name, groups = dict[str, dict[str, float | None]](), int(count)
    for name in ("accuracy", "auroc") if groups > 1 else ():
        value, square = pooled.value(name), sums[-1]
        if name == "accuracy":
            square = max(0.0, sums[0] - 2 * value * sums[1] + value**2 * sums[2])
        if math.isfinite(value):
            half = _t_quantile(level, groups) * math.sqrt(groups / (groups - 1) * square) / pooled.total
            low, high = np.clip([value - half, value + half], 0, 1).tolist() if half else (None, None)
            by_name[f"{name}_pooled"] = {"value": value, "low": low, "high": high, "undefined": 0}
    method = f"t with {groups - 1} degrees of freedom" if groups < _FEW_GROUPS else "normal"
    unit = {"by": "row" if groups == pooled.total else "group", "groups": groups}
    return unit | {"method": method, "level": level, "draws": 0, "values": by_name}


def intervals(
    evaluator: Evaluator,
    tested: Tested,
    further: Callable[[Scores], Mapping[str, float]],
    rng: np.random.Generator,
    *,
    by: str = "group",
    level: float = 0.95,
    draws: int = 2000,
) -> dict[str, Any]:
    """Return the intervals of metrics of a test, as JSON values: by name the value, low and high (None where more than
    5 % of the draws have no value, or all have one), and undefined, the number of draws without one.
    They are quantiles of the draws; with G < 20 groups, value ± t sqrt(G / (G - 1)) s, with the draws' deviation s and
    t of G - 1 degrees of freedom. Clients with one group each are one stratum. evaluator: made with `keep_scores`.
    tested: states of the split "test". further: values by name that are no metrics."""
    main, data = evaluator.names[0], evaluator.scenario.test_set
    tested_states = ((client, states[main].states.get(SampleScores.key)) for client, states in tested.items())
    samples = {client: scores for client, scores in tested_states if isinstance(scores, SampleScores)}
    rows = torch.cat([torch.zeros(0, dtype=torch.int64), *(scores.indices for scores in samples.values())]).numpy()
    group_ids = data.group if by == "group" else None
    ids, numbers = np.unique(rows if group_ids is None else group_ids.cpu().numpy()[rows], return_inverse=True)
    groups, group_of = len(ids), np.zeros(len(data), np.int64)
    group_of[rows] = numbers
    # A group that several clients hold is drawn as a whole, with the groups of one of them.
    client_of = np.full(groups, -1)
    client_of[numbers] = evaluator.scenario.test.owner_of(len(data))[rows]
    _, place, sizes = np.unique(client_of, return_inverse=True, return_counts=True)
    client_of[sizes[place] == 1] = -1
    order = np.argsort(client_of, kind="stable")
    _, first, place, sizes = np.unique(client_of[order], return_index=True, return_inverse=True, return_counts=True)

    def counted(times: np.ndarray) -> Mapping[str, float]:
        """Values where each group counts as often as `times` [G] says."""
        again = dict[int, dict[str, MetricStates]]()
        for client, scores in samples.items():
            repeats = times[group_of[scores.indices.numpy()]]
            if repeats.any():
                chosen = torch.from_numpy(np.repeat(np.arange(len(repeats)), repeats))
                again[client] = dict.fromkeys(evaluator.names, evaluator.drawn_again(scores, chosen))
        of_draw = evaluator.scores("test", again)
        return {name: of_draw.value(name) for name in evaluator.metrics} | dict(further(of_draw))

    estimates, drawn = counted(np.ones(groups, np.int64)) if groups else {}, list[Mapping[str, float]]()
    for _ in range(draws if groups else 0):
        picks = order[first[place] + (rng.random(groups) * sizes[place]).astype(np.int64)]
        drawn.append(counted(np.bincount(picks, minlength=groups)))
    few, by_name = groups < _FEW_GROUPS, dict[str, dict[str, float | None]]()
    for name, value in ((name, value) for name, value in estimates.items() if math.isfinite(value)):
        defined = np.array([v for draw in drawn if math.isfinite(v := draw.get(name, math.nan))])
        missing, bounds = draws - len(defined), [0.0, 0.0]
        if missing <= 0.05 * draws:
            bounds = np.quantile(defined, [(1 - level) / 2, (1 + level) / 2]).tolist()
        if few and bounds[0] < bounds[1]:
            half = _t_quantile(level, groups) * math.sqrt(groups / (groups - 1)) * float(defined.std())
            bounds = np.clip([value - half, value + half], *((0, 1) if is_share(name) else (None, None))).tolist()
        low, high = bounds if bounds[0] < bounds[1] else (None, None)
        by_name[name] = {"value": value, "low": low, "high": high, "undefined": missing}
    method = f"t with {groups - 1} degrees of freedom" if few else "quantiles"
    unit = {"by": "row" if group_ids is None else "group", "groups": groups}
    return unit | {"method": method, "level": level, "draws": draws, "values": by_name}
