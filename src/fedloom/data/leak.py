"""Checks that no group of samples crosses a split, and measures of how much a test set shares with the training set."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from math import log
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedloom.core.errors import ConfigError
from fedloom.data.dataset import Dataset
from fedloom.data.scenario import Scenario
from fedloom.data.views import Indices, evenly_spaced

_WORK = 2e9  # multiplications that a search for near duplicates may take, in about a second
_SIDE, _ALIKE = 16, 0.98  # of the grey pictures that are compared, and the cosine from which on they look the same
_LEAST_DIMENSION, _ODDS = 3, 1000
_ALARM = 0.05  # share of the rows compared
_BLOCK = 512  # samples whose neighbours are searched together


def _parts(scenario: Scenario) -> dict[str, tuple[Dataset, Indices]]:
    """Return the samples of each part, whose groups must not cross. Newcomers' test rows in an official test set are
    rows of the test set."""
    of_test = np.arange(len(scenario.test_set))
    parts = {
        "training": (scenario.train_set, scenario.train.order),
        "validation": (scenario.train_set, scenario.val.order),
        "test": (scenario.test_set, of_test),
    }
    if scenario.public is not None:
        parts["public"] = (scenario.public, np.arange(len(scenario.public)))
    if (newcomers := scenario.newcomers) is not None:
        rows = np.concatenate([newcomers.train.order, newcomers.val.order])
        parts["newcomers' training"] = (newcomers.train_set, rows)
        if newcomers.test_set is not scenario.test_set:
            parts["newcomers' test"] = (newcomers.test_set, newcomers.test.order)
    return {name: part for name, part in parts.items() if part[0].group is not None and len(part[1])}


def refuse_crossing_groups(scenario: Scenario) -> None:
    """Raise `ConfigError` if the training, validation, test, public and newcomers' samples have a group in common."""
    parts = {name: _groups(data)[rows] for name, (data, rows) in _parts(scenario).items()}
    for (name, groups), (other, other_groups) in combinations(parts.items(), 2):
        shared = np.intersect1d(groups, other_groups)
        if len(shared):
            rows = int(np.isin(groups, shared).sum()), int(np.isin(other_groups, shared).sum())
            raise ConfigError(
                f"scenario.group: {len(shared):,} groups have rows in both the {name} samples ({rows[0]:,}) and the "
                f"{other} samples ({rows[1]:,}); no split may part a group: change the key that makes these parts"
            )


def group_notes(scenario: Scenario) -> tuple[str, ...]:
    """Return notes on classes of one group, on a group of more than half of the rows, and on owners of one group."""
    parts = _parts(scenario).values()
    if not parts:
        return ()
    groups = np.concatenate([_groups(data)[rows] for data, rows in parts])
    labels = np.concatenate([data.y.numpy()[rows] for data, rows in parts])
    notes, sizes = [], np.bincount(groups)
    held = np.bincount(np.unique(labels * len(sizes) + groups) // len(sizes), minlength=scenario.num_classes)
    names = [name for name, count in zip(scenario.class_names, held.tolist(), strict=False) if count == 1]
    if names:
        notes.append(f"classes of one group, which is in one part alone and cannot be tested: {', '.join(names)[:200]}")
    if 2 * sizes.max() > len(groups):
        notes.append(f"one group holds {sizes.max():,} of {len(groups):,} rows: the parts cannot have their shares")
    pairs = np.stack([scenario.train.holders(), _groups(scenario.train_set)[scenario.train.order]])
    has_one = np.bincount(np.unique(pairs, axis=1)[0], minlength=scenario.clients) == 1
    if count := int((has_one & (scenario.test.sizes == 0)).sum()):
        notes.append(f"clients of one group, which trains and leaves them no test: {count:,} of {scenario.clients:,}")
    return tuple(notes)


def _groups(data: Dataset) -> Indices:
    assert data.group is not None, "samples with groups"
    return data.group.numpy()


def leak(scenario: Scenario, pictures: bool = False) -> dict[str, Any]:
    """Measure what the test set shares with the clients' training samples, as JSON values.

    groups, groups_seen, rows_seen: test groups, those in training too, and their test rows; of the suspected `column`
    where no key names groups. equal, relabelled: test rows equal to a training row, and those with another label there.
    near, compared: see `near_duplicates`; of pictures, which takes longer, only if asked for. Empty for remote
    clients, and where a key says that there are no groups.
    """
    train, test, rows = scenario.train_set, scenario.test_set, torch.from_numpy(scenario.train.order)
    unlike = train.input_shape != test.input_shape or train.x.dtype != test.x.dtype
    if scenario.remote or scenario.suspect == "none" or not len(rows) or not len(test) or unlike:
        return {}
    values: dict[str, Any] = {"test_rows": len(test)}
    held, groups = (data.suspect if data.group is None else data.group for data in (train, test))
    if held is not None and groups is not None:
        seen = torch.isin(groups, held[rows])
        counts = *(len(np.unique(ids.numpy())) for ids in (groups, groups[seen])), int(seen.sum())
        values |= dict(zip(("groups", "groups_seen", "rows_seen"), counts, strict=True))
        values |= {"column": scenario.suspect} if train.group is None else {}
    labels: dict[int, set[int]] = {}
    for row, label in zip(rows.tolist(), train.y[rows].tolist(), strict=True):
        labels.setdefault(hash(train.x[row].numpy().tobytes()), set()).add(label)
    twins = [(labels.get(hash(x.numpy().tobytes())), label) for x, label in zip(test.x, test.y.tolist(), strict=True)]
    is_same = [label in of for of, label in twins if of is not None]
    values |= {"equal": len(is_same), "relabelled": is_same.count(False)}
    return values | (near_duplicates(train, rows, test) if pictures or train.x.dim() == 2 else {})


def leak_sentences(measured: Mapping[str, Any]) -> list[str]:
    """Return a loud sentence on what `leak` has measured: on a suspected column, or else on near duplicates among rows
    without groups, if they are many; none where there is no alarm."""
    near, compared = (measured.get(key, 0) for key in ("near", "compared"))
    if column := measured.get("column"):
        seen, groups, rows = (measured[key] for key in ("groups_seen", "groups", "rows_seen"))
        text = f"{seen:,} of {groups:,} test '{column}' are in training ({rows:,} test rows)"
        return [f"{text}; say `group: {column}`, or `group: none` if their rows do not belong together"] if seen else []
    if "groups" in measured or near < max(5, _ALARM * compared):
        return []
    text = f"{near:,} of {compared:,} test rows nearly equal a training row, as rows of one person do"
    return [f"{text}; name their groups (`group`, in Python `groups=`), or say `group: none`"]


def near_duplicates(train: Dataset, rows: Tensor, test: Dataset) -> dict[str, int]:
    """Count the test samples that nearly equal one of the training samples `rows`, of some evenly spaced ones.

    Numbers are standardised. In D dimensions the logarithm of the distance to the k-th neighbour in training grows by
    psi(k) / D. A test row counts if its nearest neighbour is not equal and closer, by ln(1000) / D, than the line
    through farther neighbours says. Below three dimensions and forty rows nothing is measured. Pictures, grey and 16 x
    16, count from a centred cosine of 0.98 on; how often that errs is unknown.
    """
    if train.x.dim() not in (2, 4) or train.x.dtype == torch.int64 or len(rows) < 40:
        return {}
    known = torch.cat([_compared(train.x[rows[first : first + _BLOCK]]) for first in range(0, len(rows), _BLOCK)])
    most = max(1, int(_WORK / known.numel()))
    new = _compared(test.x[torch.from_numpy(evenly_spaced(np.arange(len(test)), most))])
    blocks = [slice(first, first + _BLOCK) for first in range(0, len(new), _BLOCK)]
    if train.x.dim() == 4:
        cosines = torch.cat([(new[block] @ known.T).max(1).values for block in blocks])
        return {"alike": int((cosines >= _ALIKE).sum()), "compared": len(new)}
    mean, std = known.mean(0), known.std(0)
    known, new = ((x - mean)[:, std > 0] / std[std > 0] for x in (known, new))
    count = min(64, len(known) // 4)
    logs = torch.cat([torch.cdist(new[block], known).topk(count, largest=False).values.log() for block in blocks])
    farther, psi = logs[:, count // 4 - 1 :], torch.digamma(torch.arange(count // 4, count + 1, dtype=torch.float64))
    usable = logs[:, 0].isfinite()
    slope = float((farther[usable] @ (psi - psi.mean())).mean() / (psi - psi.mean()).square().sum())
    if not 0 < slope <= 1 / _LEAST_DIMENSION:
        return {}
    expected = farther.mean(1) + slope * (float(torch.digamma(torch.ones(1))) - psi.mean())
    return {"near": int((usable & (logs[:, 0] < expected - slope * log(_ODDS))).sum()), "compared": len(new)}


def _compared(x: Tensor) -> Tensor:
    """Return the numbers of samples, or their grey pictures, centred and of length 1, float64 [n, d]."""
    if x.dim() == 2:
        return x.double()
    grey = torch.nn.functional.adaptive_avg_pool2d(x.double().mean(1, keepdim=True), _SIDE).flatten(1)
    return torch.nn.functional.normalize(grey - grey.mean(1, keepdim=True))
