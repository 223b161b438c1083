"""Describe a scenario in JSON values, for the terminal, the run folder and reports."""

from __future__ import annotations

from math import ceil, floor, isfinite, isinf, log10
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedloom.data.dataset import Dataset
from fedloom.data.scenario import Scenario
from fedloom.data.statistics import feature_shift, label_skew

PICTURED_CLIENTS = 200


def describe_scenario(scenario: Scenario) -> dict[str, Any]:
    """Return class and domain counts of the first clients, and skew measures of all, as JSON values.

    Of remote clients only the number is known.
    """
    data = scenario.train_set
    if scenario.remote:
        return {"name": scenario.name, "clients": scenario.clients, "classes": list(data.classes)}
    skew = label_skew(scenario.train, data.y.numpy(), scenario.num_classes)
    attack = scenario.attack
    attack_entry = (
        {} if attack is None else {"attack": {"name": attack.kind, **attack.model_dump(), "clients": scenario.bad}}
    )
    return (
        attack_entry
        | {
            "name": scenario.name,
            "clients": scenario.clients,
            "classes": list(data.classes),
            "class_counts": scenario.class_counts(PICTURED_CLIENTS).tolist(),
            "domains": list(data.domains),
            "domain_counts": scenario.domain_counts(PICTURED_CLIENTS).tolist() if data.domain is not None else [],
            "feature_shift": feature_shift(data),
            "draws": scenario.draws,
            "acceptance": scenario.acceptance,
            "total_variation": skew.total_variation,
            "classes_per_client": skew.classes_per_client,
            "imbalance": None if isinf(skew.imbalance) else skew.imbalance,
            "size_ratio": None if isinf(skew.size_ratio) else skew.size_ratio,
            "empty_clients": len(skew.empty_clients),
            "empty_classes": list(skew.empty_classes),
            "train_samples": len(scenario.train.order),
            "val_samples": len(scenario.val.order),
            "test_samples": len(scenario.test_set),
            "notes": list(scenario.notes),
        }
        | _client_test_sizes(scenario)
        | ({"newcomers": list(scenario.newcomer_ids)} if scenario.newcomer_ids else {})
    )


def _client_test_sizes(scenario: Scenario) -> dict[str, Any]:
    """Return the smallest and the median number of test samples over clients that have any; empty if none has."""
    sizes = sorted(size for size in scenario.test.sizes.tolist() if size)
    return {"client_test_smallest": sizes[0], "client_test_median": float(median(sizes))} if sizes else {}


def describe_input(data: Dataset, rows: np.ndarray | None = None) -> dict[str, Any]:
    """Return how samples must look for a net trained on `data`, as JSON values.

    Keys: `shape` of one sample; `dtype` as stored: uint8, float32, or int64 for token ids; `mean` and `std` [c] that
    normalise stored values, or None; `white`: the stored value of a picture's brightest pixel, None for what is no
    picture; `ids`: the number of token ids, and `words` those from id 2 on; `features`: the columns of a table, or
    "column=word"; `ranges`: for each feature the lowest and highest value, rounded outwards to about a tenth of their
    distance, so that they do not state the value of one person.

    Args:
        data: the training set.
        rows: numbers of the samples that clients train on, for `ranges`; None takes all.
    """
    mean, std = (None if moments is None else moments.tolist() for moments in (data.mean, data.std))
    tokens = data.x.dtype == torch.int64
    return {
        "shape": list(data.input_shape),
        "dtype": str(data.x.dtype).removeprefix("torch."),
        "mean": mean,
        "std": std,
        "white": _white(data) if data.x.dim() == 4 else None,
        "ids": max(int(data.x.max()) + 1, len(data.words) + 2) if tokens else None,
        "words": list(data.words),
        "features": list(data.features),
        "ranges": _ranges(data.x if rows is None else data.x[torch.from_numpy(rows)]) if data.features else [],
    }


def _ranges(x: Tensor) -> list[tuple[float, float]]:
    """Return the rounded range of each feature of rows [n, d]; none without rows."""
    if not len(x):
        return []
    lowest, highest = x.min(0).values.tolist(), x.max(0).values.tolist()
    return [_rounded_outwards(*ends) for ends in zip(lowest, highest, strict=True)]


def _rounded_outwards(low: float, high: float) -> tuple[float, float]:
    """Return a range on a grid whose step is a power of ten, at most a tenth of the range.

    Example:
        >>> _rounded_outwards(17.3, 93.8)
        (17.0, 94.0)
    """
    if not isfinite(high - low) or low == high:
        return low, high
    exponent = floor(log10((high - low) / 10))
    step = 10.0**exponent
    return round(floor(low / step) * step, -exponent), round(ceil(high / step) * step, -exponent)


def _white(data: Dataset) -> float | None:
    """Return the stored value of white: as the format defines it, 255 for bytes above 127, else the largest value."""
    if data.white is not None:
        return data.white
    if float(data.x.min()) < 0:
        return None
    largest = float(data.x.max())
    return 255.0 if data.x.dtype == torch.uint8 and largest >= 128 else largest
