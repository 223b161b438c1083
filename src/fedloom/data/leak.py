"""The flow of data from files to parts, checks that no group crosses a split, and what tests share with training."""

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedloom.core.errors import ConfigError
from fedloom.data.dataset import Dataset
from fedloom.data.scenario import PICTURED_CLIENTS, Scenario
from fedloom.data.views import Indices, evenly_spaced, positives


def parts(scenario: Scenario) -> dict[str, tuple[Dataset, Indices]]:
    """Return the samples of each part. Newcomers' test rows in an official test set are rows of the test set."""
    data, test_set = scenario.train_set, scenario.test_set
    samples = {"training": (data, scenario.train.order), "validation": (data, scenario.val.order)}
    samples["test"] = (test_set, np.arange(len(test_set)))
    if scenario.public is not None:
        samples["public"] = (scenario.public, np.arange(len(scenario.public)))
    if (newcomers := scenario.newcomers) is not None:
        rows = np.concatenate([newcomers.train.order, newcomers.val.order])
        samples["newcomers' training"] = (newcomers.train_set, rows)
        if newcomers.test_set is not scenario.test_set:
            samples["newcomers' test"] = (newcomers.test_set, newcomers.test.order)
    return {name: part for name, part in samples.items() if len(part[1])}


def stage(sites: Indices, names: Sequence[str], groups: Indices | None) -> dict[str, Any]:
    """Return the rows and groups of a stage, in all and at its first sites, as JSON values; None for unnamed groups.
    sites, groups: those of each row [n], -1 for none; `names` names the sites."""
    rows, held = np.bincount(sites[sites >= 0], minlength=len(names)).tolist(), [None] * len(names)
    if groups is not None:
        is_known, numbers = (sites >= 0) & (groups >= 0), int(groups.max(initial=0)) + 1
        pairs = np.unique(sites[is_known] * numbers + groups[is_known])
        held = np.bincount(pairs // numbers, minlength=len(names)).tolist()
    by_site = [[name, count, of] for name, count, of in zip(names, rows, held, strict=True) if count]
    total = None if groups is None else len(np.unique(groups[groups >= 0]))
    return {"rows": len(sites), "groups": total, "sites": by_site[:PICTURED_CLIENTS]}


def flow_of(scenario: Scenario) -> dict[str, Any]:
    """Return the stages of the source, then those of the parts, which also count the classes; empty for remote clients.
    A site is a client, under the name of its owner where clients are owners that the data came with."""
    if scenario.remote:
        return {}
    data, newcomers, stages = scenario.train_set, scenario.newcomers, dict(scenario.flow)
    sites = {id(of): np.full(len(of), -1) for of, _ in parts(scenario).values()}
    for who, first in [(scenario, 0), *([] if newcomers is None else [(newcomers, scenario.clients)])]:
        for of, views in ((data, who.train), (data, who.val), (who.test_set, who.test)):
            if id(of) in sites:
                sites[id(of)][views.order] = views.holders() + first
    names = [*map("client {}".format, range(scenario.clients)), *map("newcomer {}".format, scenario.newcomer_ids)]
    if scenario.by_owners and data.domain is not None:
        for site, row in zip(*np.unique(sites[id(data)], return_index=True), strict=True):
            names[site] = data.domains[data.domain[row]] if site >= 0 else names[site]
    for part, (data, rows) in parts(scenario).items():
        labels, groups = data.y.cpu().numpy()[rows], None if data.group is None else data.group.cpu().numpy()[rows]
        classes = np.bincount(labels, minlength=data.num_classes) if labels.ndim == 1 else (labels == 1).sum(0)
        stages[part] = stage(sites[id(data)][rows], names, groups) | {"classes": classes.tolist()}
    return stages


_WORK = 2e9  # multiplications that a search for near duplicates may take, in about a second
_MOST = 500  # test samples that are compared
_SIDE, _MOST_PICTURES = 16, 20_000  # of the training pictures that are compared: more take too long
_LEAST_DIMENSION, _ODDS = 3, 1000
_ALARM = 0.05  # share of the rows compared
_BLOCK = 512  # samples whose neighbours are searched together
_START = 4096  # bytes of a sample that are compared before the whole of it
_MOST_BYTES = 2**30  # that are compared at a time, in about a second
_OF_LABELS = 0x9E3779B97F4A7C15  # odd: labels differ in all of its multiples


def refuse_crossing_groups(scenario: Scenario) -> None:
    """Raise `ConfigError` if the training, validation, test, public and newcomers' samples have a group in common."""
    held = [(name, _groups(of)[rows]) for name, (of, rows) in parts(scenario).items() if of.group is not None]
    for (name, groups), (second, other_groups) in combinations(held, 2):
        shared = np.intersect1d(groups, other_groups)
        if len(shared):
            rows = int(np.isin(groups, shared).sum()), int(np.isin(other_groups, shared).sum())
            raise ConfigError(
                f"scenario.group: {len(shared):,} groups have rows in both the {name} samples ({rows[0]:,}) and the "
                f"{second} samples ({rows[1]:,}); no split may part a group: change the key that makes these parts"
            )


def refuse_groups_across_clients(scenario: Scenario) -> None:
    """Raise `ConfigError` if a group has samples of several clients, or if no key names groups."""
    if scenario.train_set.group is None:
        raise ConfigError("scenario.cross_owner = refuse: no groups are known here; name them by scenario.group")
    kinds = (scenario.train, scenario.train_set), (scenario.val, scenario.train_set), (scenario.test, scenario.test_set)
    held = [np.stack([_groups(data)[views.order], views.holders()]) for views, data in kinds if len(views.order)]
    groups, clients = np.unique(np.unique(np.concatenate(held, 1), axis=1)[0], return_counts=True)
    if len(shared := groups[clients > 1]):
        raise ConfigError(
            f"scenario.cross_owner = refuse: {len(shared):,} of {len(groups):,} groups have rows at several clients; "
            "leave the key out, and each row stays with its owner and each group on one side of the split"
        )


def group_notes(scenario: Scenario) -> tuple[str, ...]:
    """Return notes on classes of one group, on a group of more than half of the rows, and on owners of one group."""
    if not (grouped := [part for part in parts(scenario).values() if part[0].group is not None]):
        return ()
    groups = np.concatenate([_groups(data)[rows] for data, rows in grouped])
    of_rows, classes = positives(np.concatenate([data.y.numpy()[rows] for data, rows in grouped]))
    notes, sizes = [], np.bincount(groups)
    held = np.bincount(np.unique(classes * len(sizes) + groups[of_rows]) // len(sizes), minlength=scenario.num_classes)
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


def leak(scenario: Scenario) -> dict[str, Any]:
    """Measure what the test set shares with the clients' training samples, as JSON values. groups, groups_seen,
    rows_seen: test groups, those in training too, and their test rows; of the suspected `column` where no key names
    groups. equal, relabelled: test samples equal to a training sample, and those with another label there. near,
    compared: see `near_duplicates`. Empty for remote clients, and where a key says that there are no groups."""
    train, test, rows = scenario.train_set, scenario.test_set, torch.from_numpy(scenario.train.order)
    unlike = train.input_shape != test.input_shape or train.x.dtype != test.x.dtype
    if scenario.remote or scenario.suspect == "none" or not len(rows) or not len(test) or unlike:
        return {}
    values: dict[str, Any] = {"test_rows": len(test)}
    held, groups = (data.suspect if data.group is None else data.group for data in (train, test))
    if held is not None and groups is not None:
        is_seen = torch.isin(groups, held[rows])
        counts = *(len(np.unique(ids.numpy())) for ids in (groups, groups[is_seen])), int(is_seen.sum())
        values |= dict(zip(("groups", "groups_seen", "rows_seen"), counts, strict=True))
        values |= {"column": scenario.suspect} if train.group is None else {}
    hashes, labelled, size = _equal_samples(train, scenario.train.order, test)
    if size <= _MOST_BYTES:
        is_equal, is_same = (np.isin(of_test, of_train) for of_train, of_test in (hashes, labelled))
        values |= {"equal": int(is_equal.sum()), "relabelled": int((is_equal & ~is_same).sum())}
    return values | near_duplicates(train, rows, test)


def repeated_samples_notes(train: Dataset, train_rows: Indices, test: Dataset) -> tuple[str, ...]:
    """Return notes on test samples that repeat one of the training samples `train_rows` of `train`: how many there are,
    and how many training samples repeat each other (a high number suggests coincidence)."""
    if (train.classes, train.x.dtype, train.input_shape) != (test.classes, test.x.dtype, test.input_shape):
        return ()
    _, (of_train, of_test), size = _equal_samples(train, train_rows, test)
    if size > _MOST_BYTES:
        why = f"{size:,} bytes are more than {_MOST_BYTES:,}"
        return (f"test samples were not compared with training samples, which would show those in both: {why}",)
    if not (in_both := int(np.isin(of_test, of_train).sum())):
        return ()
    counts = np.unique(of_train, return_counts=True)[1]
    repeated_in_training = int(counts[counts > 1].sum())
    note = f"{in_both:,} of {len(test):,} test samples equal a training sample in all values and in the label"
    also = f"{repeated_in_training:,} of {len(train_rows):,} training samples equal another one"
    return (note, also) if repeated_in_training else (note,)


_Pair = Sequence[np.ndarray]


def _equal_samples(train: Dataset, train_rows: Indices, test: Dataset) -> tuple[_Pair, _Pair, int]:
    """Return hashes of the training samples `train_rows`, and of the test samples, that equal another sample of either:
    of their values, and of values and label; and the bytes that this compares, too many if above `_MOST_BYTES`."""
    sets, rows = (train, test), [train_rows, np.arange(len(test), dtype=np.int64)]
    width, size = train.x.element_size() * math.prod(train.input_shape), 0
    hashes = labelled = [np.zeros(0, np.int64)] * 2
    # Hash a short prefix first: most samples differ there, and only the candidates are hashed whole.
    for compared in sorted({min(_START, width), width} - {0}):
        size = compared * sum(map(len, rows))
        if size > _MOST_BYTES:
            break
        hashes = [_hashes(data.x, part, compared) for data, part in zip(sets, rows, strict=True)]
        values, counts = np.unique(np.concatenate(hashes), return_counts=True)
        is_repeated = [np.isin(part, values[counts > 1]) for part in hashes]
        rows, hashes = ([of[kept] for of, kept in zip(pair, is_repeated, strict=True)] for pair in (rows, hashes))
        labels = [_hashes(data.y, part).view(np.uint64) for data, part in zip(sets, rows, strict=True)]
        labelled = [
            of ^ (label * np.uint64(_OF_LABELS)).view(np.int64) for of, label in zip(hashes, labels, strict=True)
        ]
    return hashes, labelled, size


def _hashes(values: Tensor, rows: Indices, compared: int | None = None) -> np.ndarray:
    """Return a hash of the first bytes of `values` [n, ...] in each of the `rows` [m]; of all bytes for None."""
    flat = values.contiguous().numpy().reshape(len(values), math.prod(values.shape[1:])).view(np.uint8)[:, :compared]
    return np.fromiter((hash(flat[row].tobytes()) for row in rows.tolist()), np.int64, len(rows))


def leak_sentences(measured: Mapping[str, Any]) -> list[str]:
    """Return a loud sentence on what `leak` has measured: on a suspected column, or else on near duplicates among rows
    without groups, if they are many; none where there is no alarm."""
    near, compared = (measured.get(key, 0) for key in ("near", "compared"))
    if column := measured.get("column"):
        repeated, groups, rows = (measured[key] for key in ("groups_seen", "groups", "rows_seen"))
        text = f"{repeated:,} of {groups:,} test '{column}' are in training ({rows:,} test rows)"
        return (
            [f"{text}; say `group: {column}`, or `group: none` if their rows do not belong together"]
            if repeated
            else []
        )
    if "groups" in measured or near < max(5, _ALARM * compared):
        return []
    text = f"{near:,} of {compared:,} test samples nearly equal a training sample, as those of one person do"
    return [f"{text}; name their groups (`group`, in Python `groups=`), or say `group: none`"]


def near_duplicates(train: Dataset, rows: Tensor, test: Dataset) -> dict[str, int]:
    """Count the test samples that nearly equal one of the training samples `rows`, of some evenly spaced ones.
    Numbers are standardised, pictures become grey and at most 16 x 16. In D dimensions the logarithm of the distance to
    the k-th neighbour in training grows by psi(k) / D. A test sample counts if its nearest neighbour is not equal and
    closer, by ln(1000) / D, than the line through farther neighbours says. Nothing is measured below three dimensions
    and forty samples, and for texts and more than 20,000 pictures."""
    most = _MOST_PICTURES if train.x.dim() == 4 else len(rows)
    if train.x.dim() not in (2, 4) or train.x.dtype == torch.int64 or not 40 <= len(rows) <= most:
        return {}
    reference = torch.cat([_vectors(train.x[rows[first : first + _BLOCK]]) for first in range(0, len(rows), _BLOCK)])
    count = min(_MOST, max(1, int(_WORK / reference.numel())))
    compared = _vectors(test.x[torch.from_numpy(evenly_spaced(np.arange(len(test)), count))])
    mean, std = reference.mean(0), reference.std(0)
    reference, compared = ((x - mean)[:, std > 0] / std[std > 0] for x in (reference, compared))
    count = min(64, len(reference) // 4)
    blocks = [torch.cdist(block, reference) for block in torch.tensor_split(compared, 1 + len(compared) // _BLOCK)]
    logs = torch.cat([distances.topk(count, largest=False).values.log() for distances in blocks])
    farther, psi = logs[:, count // 4 - 1 :], torch.digamma(torch.arange(count // 4, count + 1, dtype=torch.float64))
    usable = logs[:, 0].isfinite()
    slope = float((farther[usable] @ (psi - psi.mean())).mean() / (psi - psi.mean()).square().sum())
    if not 0 < slope <= 1 / _LEAST_DIMENSION:
        return {}
    expected = farther.mean(1) + slope * (float(torch.digamma(torch.ones(1))) - psi.mean())
    return {"near": int((usable & (logs[:, 0] < expected - slope * math.log(_ODDS))).sum()), "compared": len(compared)}


def _vectors(x: Tensor) -> Tensor:
    """Return numbers as they are, and pictures as centred grey ones of length 1, float64 [n, d]."""
    if x.dim() == 2:
        return x.double()
    size = min(_SIDE, x.shape[2]), min(_SIDE, x.shape[3])
    grey = torch.nn.functional.adaptive_avg_pool2d(x.double().mean(1, keepdim=True), size).flatten(1)
    return torch.nn.functional.normalize(grey - grey.mean(1, keepdim=True))
