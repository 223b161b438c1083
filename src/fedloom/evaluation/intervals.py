"""Confidence intervals of a test by a bootstrap of groups: whole groups are drawn again within each client. Where the
scores stay on nodes, by sums over the groups of each node (`with_group_sums`)."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from fedloom.core.text import is_share
from fedloom.evaluation.metric import MetricStates, Scores
from fedloom.evaluation.metrics.basic import SampleScores
from fedloom.evaluation.metrics.calibration import DECISION, at_threshold
from fedloom.evaluation.protocols import Evaluator

_FEW_GROUPS = 20  # with fewer, quantiles of the draws are too narrow
_MOST_BLOCKS = 200  # of groups whose derivatives a node computes; s has then an error of some 5 %
_STEP = 1e-4  # of weights, in derivatives

Decision: TypeAlias = tuple[int, float]
Tested = Mapping[int, Mapping[str, MetricStates]]


def with_group_sums(
    states: MetricStates, evaluator: Evaluator, by: str, pooled: MetricStates, decision: Decision | None
) -> MetricStates:
    """Return the states of a node's test with sums over the groups of its test samples, or over samples (by "row").
    They are the number of groups, and for each of `linear_values` the sum of squared derivatives by the groups'
    weights: first of the node's own value, then of that of all nodes. More than 200 groups are put together in 200.
    pooled: the states of all nodes. decision: class and threshold."""
    samples, data = states.states.get(SampleScores.key), evaluator.scenario.test_set
    if not isinstance(samples, SampleScores) or not states.total:
        return states
    ids = samples.indices if data.group is None or by == "row" else data.group.cpu()[samples.indices]
    _, group = torch.unique(ids, return_inverse=True)
    count, block = int(group.max()) + 1, group % _MOST_BLOCKS
    parts = [evaluator.drawn_again(samples, (block == k).nonzero()[:, 0]) for k in range(min(count, _MOST_BLOCKS))]
    own, sums = MetricStates.merged(part.weighted(1.0) for part in parts), [torch.tensor([float(count)])]
    for whole in (own, pooled):
        moved = ([MetricStates.merged([whole, part.weighted(step)]) for part in parts] for step in (_STEP, -_STEP))
        above, below = ([[*linear_values(of, evaluator, decision).values()] for of in of_step] for of_step in moved)
        change = torch.tensor(above, dtype=torch.float64) - torch.tensor(below, dtype=torch.float64)
        sums.append((change / (2 * _STEP)).nan_to_num(0, 0, 0).square().sum(0))
    return with_sums(states, torch.cat(sums))


def with_sums(states: MetricStates, sums: Tensor) -> MetricStates:
    """Return states with other sums [S] for intervals."""
    samples: Any = states.states[SampleScores.key]
    return replace(states, states={**states.states, SampleScores.key: replace(samples, sums=sums)})


def linear_values(states: MetricStates, evaluator: Evaluator, decision: Decision | None) -> dict[str, float]:
    """Return the values of states that change smoothly with the weights of samples, NaN where one is not defined: the
    metrics of the `evaluator`, and the values at the class and threshold of a `decision`."""
    values = {name: states.value(name) for name, kind in evaluator.metrics.items() if kind.smooth}
    if decision is None:
        return values
    return values | dict.fromkeys(DECISION, math.nan) | at_threshold(states, *decision)


def _t_quantile(level: float, groups: int) -> float:
    from scipy.special import stdtrit  # runs without intervals are spared it

    return float(stdtrit(groups - 1 if groups < _FEW_GROUPS else math.inf, (1 + level) / 2))


def intervals_over_nodes(
    evaluator: Evaluator, scores: Scores, sent: Tested, decision: Decision | None, level: float
) -> dict[str, Any]:
    """Return the intervals of a test on nodes, value ± t s, from the sums that they `sent`, as `intervals` does, also
    of pooled values; t is that of the normal distribution for 20 groups or more. s² is G / (G - 1) times the sum of
    squared derivatives by the weights of G groups: of all nodes; or of each client, and the sum over clients divided by
    their number squared, for a mean over clients. evaluator, scores: those of the test. decision: class and threshold.
    level: coverage of the intervals."""
    states = ((client, of[evaluator.names[0]].states.get(SampleScores.key)) for client, of in sent.items())
    sums = {client: state.sums.tolist() for client, state in states if isinstance(state, SampleScores)}
    groups, pooled = int(sum(of[0] for of in sums.values())), linear_values(scores.pooled, evaluator, decision)
    place, width = {name: k for k, name in enumerate(pooled, 1)}, len(pooled)
    together = [float(groups), *np.sum([*sums.values()], 0)[1:].tolist()] if sums else []
    estimates = dict[str, tuple[float, float]]()  # values, and their s²

    def square(name: str, of: Sequence[float], offset: int) -> float:
        return of[0] / (of[0] - 1) * of[place[name] + offset] if of[0] > 1 and name in place else math.inf

    for name, kind in evaluator.metrics.items() if sums else ():
        if (by_client := scores.averaged(name)) is not None:
            squares = [square(name, sums[client], 0) for client in by_client]
            estimates[name] = scores.value(name), sum(squares) / max(1, len(squares)) ** 2
        if by_client is None or (kind.detailed and scores.is_pooled(name)):
            pooled_name = name if by_client is None else f"{name}_pooled"
            estimates[pooled_name] = scores.pooled.value(name), square(name, together, width)
    for name in DECISION if sums and decision else ():
        estimates[name] = pooled[name], square(name, together, width)
    by_name = dict[str, dict[str, float | None]]()
    for name, (value, of_value) in estimates.items():
        if math.isfinite(value):
            half = _t_quantile(level, groups) * math.sqrt(of_value)
            ends = np.clip([value - half, value + half], *((0, 1) if is_share(name) else (None, None))).tolist()
            low, high = ends if 0 < half < math.inf else (None, None)
            by_name[name] = {"value": value, "low": low, "high": high, "undefined": 0}
    method = f"t with {groups - 1} degrees of freedom" if groups < _FEW_GROUPS else "normal"
    unit = {"by": "row" if groups == scores.pooled.total else "group", "groups": groups}
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
