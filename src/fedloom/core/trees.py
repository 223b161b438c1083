"""Trees: flat, ordered `dict[str, Tensor]`, and all weight arithmetic.

Two rules hold for every sum over clients: it is taken in float64 in the order given (client order), and integer
tensors (batch-norm counters) are never averaged: the first tree's value is kept.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

Tree: TypeAlias = dict[str, Tensor]

# Numbers that are summed at once: enough for torch's threads to share, few enough for the cache. Entries of fewer than
# _FEW are summed together.
_BLOCK, _FEW = 65_536, 16_384


def clone(tree: Tree) -> Tree:
    """A detached copy that shares no memory with `tree`."""
    return {name: value.detach().clone() for name, value in tree.items()}


def select(tree: Tree, names: Collection[str]) -> Tree:
    """The entries called `names`, in `tree`'s order, not copied."""
    return {name: value for name, value in tree.items() if name in names}


def weighted_mean(trees: Sequence[Tree], weights: Sequence[float]) -> Tree:
    """sum_k (weights_k / sum(weights)) * trees_k for every floating tensor; integer tensors from the first tree.

    All trees have the same names and shapes; at least one weight is positive. Sums in float64, in the given
    order, then cast to the entry's own dtype.
    Raises `ValueError` for no tree, differing names or shapes, or weights that are negative or sum to zero.
    """
    if not trees:
        raise ValueError("weighted_mean of no trees: at least one client must have sent weights")
    total = float(sum(weights))
    if len(weights) != len(trees) or min(weights) < 0 or not total > 0:
        raise ValueError(f"weights {list(weights)} for {len(trees)} trees: need one each, >= 0, with a positive sum")
    first = trees[0]
    for tree in trees[1:]:
        if tree.keys() != first.keys():
            raise ValueError(f"trees differ in names: {sorted(tree.keys() ^ first.keys())}")
        for name, value in first.items():
            if tree[name].shape != value.shape:
                raise ValueError(f"trees differ in shape: {name} {tuple(value.shape)}, {tuple(tree[name].shape)}")
    pairs = [(tree, weight / total) for tree, weight in zip(trees, weights, strict=True) if weight > 0]
    return _weighted_sums([tree for tree, _ in pairs], [weight for _, weight in pairs])


def combine(trees: Sequence[Tree], coefficients: Sequence[float]) -> Tree:
    """sum_k coefficients_k * trees_k for every floating tensor, whatever the signs; integer tensors from the first.

    For steps and extrapolations; a mean of clients is `weighted_mean`. Sums in float64, cast to the entry's dtype.
    """
    return _weighted_sums(trees, coefficients)


def _weighted_sums(trees: Sequence[Tree], weights: Sequence[float]) -> Tree:
    """sum of weight * tree in float64, in the order given, in the entries' own dtypes; integers from the first."""
    sums: Tree = {}
    few: dict[torch.dtype, list[str]] = {}
    for name, value in trees[0].items():
        sums[name] = value.clone(memory_format=torch.contiguous_format)
        if value.numel() < _FEW and value.is_floating_point():
            few.setdefault(value.dtype, []).append(name)
        elif value.is_floating_point():
            _weighted_sum([tree[name].reshape(-1) for tree in trees], weights, sums[name].view(-1))
    for names in few.values():
        flat = [torch.cat([tree[name].reshape(-1) for name in names]) for tree in trees]
        _weighted_sum(flat, weights, flat[0])
        for name, part in zip(names, torch.split(flat[0], [sums[name].numel() for name in names]), strict=True):
            sums[name].view(-1).copy_(part)
    return sums


def _weighted_sum(tensors: Sequence[Tensor], weights: Sequence[float], into: Tensor) -> None:
    """sum of weight * tensor, all of them [n], into the last argument, which may be one of them.

    Taken in blocks that stay in the cache: half the time of adding float32 to float64 tensors whole, the same bits.
    """
    total = torch.empty(min(_BLOCK, into.numel()), dtype=torch.float64, device=into.device)
    block = torch.empty_like(total)
    for start in range(0, into.numel(), _BLOCK):
        end = min(start + _BLOCK, into.numel())
        sums, addend = total[: end - start].zero_(), block[: end - start]
        for tensor, weight in zip(tensors, weights, strict=True):
            sums.add_(addend.copy_(tensor[start:end]), alpha=weight)
        into[start:end] = sums


def squared_distance(a: Tree, b: Tree) -> Tensor:
    """sum over all entries of (a - b)^2, a scalar through which gradients flow into `a` and `b`."""
    terms = [(a[name] - b[name]).square().sum() for name in a]
    return torch.stack(terms).sum() if terms else torch.zeros(())


def nbytes(tree: Tree) -> int:
    """Bytes of the tensors' values, without names or headers."""
    return sum(value.numel() * value.element_size() for value in tree.values())
