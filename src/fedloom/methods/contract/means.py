"""The mean of upload entries, of every kind of value."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import torch
from torch import Tensor

from fedloom.core.records import Value
from fedloom.core.tables import ClassTable
from fedloom.core.trees import weighted_mean


def mean_of(values: Iterable[Value], weights: Iterable[float] | Tensor) -> Value:
    """Average trees, class tables or tensors, in their order and in float64.

    Trees keep their dtypes (`weighted_mean`), and may come one by one. Of class tables [C, d], each row is the mean
    over the clients that hold the class; weights are one for each table, or one for each table and class [m, C]; the
    result is float64. Raises `TypeError` for values of another kind, and `ValueError` for none.
    """
    iterator = iter(values)
    first = next(iterator, None)
    if first is None:
        raise ValueError("mean of nothing: at least one client must have sent this")
    all_values = itertools.chain([first], iterator)
    if isinstance(first, dict):
        return weighted_mean(all_values, weights)  # type: ignore[arg-type]
    if isinstance(first, ClassTable):
        return ClassTable.stack(list(all_values)).to(torch.float64).mean_over_clients(_as_tensor(weights))  # type: ignore[arg-type]
    if isinstance(first, Tensor):
        trees = ({"": tensor.double()} for tensor in all_values)  # type: ignore[union-attr]
        return weighted_mean(trees, weights)[""]
    raise TypeError(f"mean of {type(first).__name__}: only trees, class tables and tensors have one")


def _as_tensor(weights: Iterable[float] | Tensor) -> Tensor:
    return weights if isinstance(weights, Tensor) else torch.tensor(list(weights), dtype=torch.float64)
