"""Arithmetic of updates that are trees, in float64 and in blocks that fit the memory."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedloom.core.trees import Tree
from fedloom.methods.contract.contexts import Task
from fedloom.nets.roles import Role

_BLOCK = 1 << 22  # float64 numbers of a block
_NO_WEIGHTS = frozenset({Role.BN_STAT, Role.COUNTER, Role.BUFFER})
Move = tuple[Tree, Tree | None]
"""Weights after and before; None where the first tree is a difference already."""


def weight_names(tree: Tree, task: Task, without: Collection[str] = ()) -> list[str]:
    """Name the entries of a tree that are trained weights: no buffers, such as statistics and counters of batch norm.

    Args:
        tree: weights, or a part of them.
        task: has the roles of the entries; entries that it does not know count as weights.
        without: names that are left out.
    """
    return [
        name
        for name, value in tree.items()
        if value.is_floating_point() and task.roles.get(name) not in _NO_WEIGHTS and name not in without
    ]


def flat(tree: Tree, names: Sequence[str]) -> Tensor:
    """Return the entries `names` one after another [P], float64."""
    parts = [tree[name].detach().reshape(-1).to("cpu", torch.float64) for name in names]
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)


def evenly(items: Sequence[int], most: int) -> list[int]:
    """Return the items, or `most` evenly spaced ones of them."""
    if len(items) <= most:
        return list(items)
    return [items[round(k * (len(items) - 1) / (most - 1))] for k in range(most)]


@dataclass(frozen=True, slots=True)
class Geometry:
    """Lengths and angles of m updates and their weighted mean; all float64.

    Attributes:
        squared: squared length of each update [m].
        to_mean: its product with the mean [m].
        squared_distances: its squared distance to the mean [m].
        mean_squared: squared length of the mean.
        products: products of each pair among the chosen updates [k, k].
    """

    squared: Tensor
    to_mean: Tensor
    squared_distances: Tensor
    mean_squared: float
    products: Tensor


def geometry(moves: Sequence[Move], names: Sequence[str], weights: Tensor, chosen: Sequence[int]) -> Geometry:
    """Measure m updates.

    Args:
        moves: the m updates.
        names: the entries that count.
        weights: weights of the mean [m], float64, which sum to 1.
        chosen: indices of the updates that are compared in pairs.
    """
    count, picked = len(moves), torch.tensor(chosen, dtype=torch.int64)
    squared, to_mean, distances = (torch.zeros(count, dtype=torch.float64) for _ in range(3))
    mean_squared, products = 0.0, torch.zeros(len(chosen), len(chosen), dtype=torch.float64)
    for rows in _blocks(moves, names):
        mean = weights @ rows
        squared += rows.square().sum(1)
        to_mean += rows @ mean
        distances += (rows - mean).square().sum(1)
        mean_squared += float(mean @ mean)
        part = rows[picked]
        products += part @ part.T
    return Geometry(squared, to_mean, distances, mean_squared, products)


def _blocks(moves: Sequence[Move], names: Sequence[str]) -> Iterator[Tensor]:
    """Yield the updates [m, columns] in float64, some columns at a time."""
    width = max(1, _BLOCK // max(1, len(moves)))
    for name in names:
        for start in range(0, moves[0][0][name].numel(), width):
            stop = start + width
            yield torch.stack([_part(after, before, name, start, stop) for after, before in moves])


def _part(after: Tree, before: Tree | None, name: str, start: int, stop: int) -> Tensor:
    values = after[name].detach().reshape(-1)[start:stop].to("cpu", torch.float64)
    return values if before is None else values - before[name].detach().reshape(-1)[start:stop].to("cpu", torch.float64)


def ratio(top: float, bottom: float) -> float | None:
    """Return top / bottom; None where that is not defined."""
    return top / bottom if bottom > 0 else None
