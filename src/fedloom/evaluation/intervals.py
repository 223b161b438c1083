"""Confidence intervals of a test by a bootstrap of groups: whole groups are drawn again within each client."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from scipy.stats import t as student

from fedloom.core.text import is_share
from fedloom.evaluation.metric import MetricStates, Scores
from fedloom.evaluation.metrics.basic import SampleScores
from fedloom.evaluation.protocols import Evaluator

_FEW_GROUPS = 20  # with fewer, quantiles of the draws are too narrow

Tested = Mapping[int, Mapping[str, MetricStates]]


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
    tested: states of the split "test". further: values by name that are no metrics.
    """
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
            t = float(student.ppf((1 + level) / 2, groups - 1))
            half = t * math.sqrt(groups / (groups - 1)) * float(defined.std())
            bounds = np.clip([value - half, value + half], *((0, 1) if is_share(name) else (None, None))).tolist()
        low, high = bounds if bounds[0] < bounds[1] else (None, None)
        by_name[name] = {"value": value, "low": low, "high": high, "undefined": missing}
    method = f"t with {groups - 1} degrees of freedom" if few else "quantiles"
    unit = {"by": "row" if group_ids is None else "group", "groups": groups}
    return unit | {"method": method, "level": level, "draws": draws, "values": by_name}
