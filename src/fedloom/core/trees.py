"""Trees: flat, ordered `dict[str, Tensor]`, and all weight arithmetic.

Two rules hold for every sum over clients: it is taken in float64 in the order given (client order), and integer
tensors (batch-norm counters) are never averaged: the first tree's value is kept.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

Tree: TypeAlias = dict[str, Tensor]

# Numbers that are summed at once: few enough for the cache, enough for memory to be read in a row. Entries of fewer
# than _FEW are summed together, and _TOGETHER trees in each pass over the sums.
_BLOCK, _FEW, _TOGETHER = 65_536, 16_384, 16
_USABLE = "need one for each tree, >= 0, with a positive sum"


def clone(tree: Tree) -> Tree:
    """A detached copy that shares no memory with `tree`."""
    return {name: value.detach().clone() for name, value in tree.items()}


def select(tree: Tree, names: Collection[str]) -> Tree:
    """The entries called `names`, in `tree`'s order, not copied."""
    return {name: value for name, value in tree.items() if name in names}


def weighted_mean(trees: Iterable[Tree], weights: Iterable[float]) -> Tree:
    """sum_k weights_k trees_k / sum_k weights_k for every floating tensor; integer tensors from the first tree.

    All trees have the same names and shapes; at least one weight is positive. Sums in float64, in the given
    order, then cast to the entry's own dtype. Trees and weights may come one by one, and are summed as they come.
    Raises `ValueError` for no tree, differing names or shapes, or weights that are negative or sum to zero.
    """
    pairs = itertools.zip_longest(trees, weights)
    first, sums, seen = Tree(), list[_Sum](), list[float]()
    while group := list(itertools.islice(pairs, _TOGETHER)):
        seen += [weight for _, weight in group if weight is not None]
        if any(tree is None or weight is None or weight < 0 for tree, weight in group):
            raise ValueError(f"weights {seen}: {_USABLE}")
        first = first or group[0][0]
        sums = sums or _sums_like(first)
        for tree, _ in group:
            _check_alike(first, tree)
        counted = [(tree, weight) for tree, weight in group if weight > 0]
        for one in sums:
            one.add([tree for tree, _ in counted], [weight for _, weight in counted])
    if not seen:
        raise ValueError("weighted_mean of no trees: at least one client must have sent weights")
    if not sum(seen) > 0:
        raise ValueError(f"weights {seen}: {_USABLE}")
    return _in_order(first, sums, float(sum(seen)))


def combine(trees: Sequence[Tree], coefficients: Sequence[float]) -> Tree:
    """sum_k coefficients_k * trees_k for every floating tensor, whatever the signs; integer tensors from the first.

    For steps and extrapolations; a mean of clients is `weighted_mean`. Sums in float64, cast to the entry's dtype.
    """
    sums = _sums_like(trees[0])
    for one in sums:
        one.add(trees, coefficients)
    return _in_order(trees[0], sums, 1.0)


@dataclass(frozen=True, slots=True)
class _Sum:
    """The running sum of some entries of one dtype, one after another: `total` [n] in float64."""

    names: list[str]
    total: Tensor

    def add(self, trees: Sequence[Tree], weights: Sequence[float]) -> None:
        """Add weight * tree, tree after tree, in blocks that stay in the cache."""
        entries = [[tree[name].reshape(-1) for name in self.names] for tree in trees]
        flat = [own[0] if len(own) == 1 else torch.cat(own) for own in entries]
        for start in range(0, self.total.numel(), _BLOCK):
            block = self.total[start : start + _BLOCK]
            for tensor, weight in zip(flat, weights, strict=True):
                block.add_(tensor[start : start + _BLOCK], alpha=weight)


def _sums_like(tree: Tree) -> list[_Sum]:
    """Sums that begin at zero: one for each large floating entry, small ones of one dtype together."""
    groups: dict[str | torch.dtype, list[str]] = {}
    for name, value in tree.items():
        if value.is_floating_point():
            groups.setdefault(value.dtype if value.numel() < _FEW else name, []).append(name)
    sizes = [(names, sum(tree[name].numel() for name in names)) for names in groups.values()]
    return [_Sum(names, torch.zeros(size, dtype=torch.float64, device=tree[names[0]].device)) for names, size in sizes]


def _in_order(first: Tree, sums: Sequence[_Sum], over: float) -> Tree:
    """The sums, divided, as entries like those of the first tree, of which integers are copies."""
    found: Tree = {}
    for one in sums:
        parts = torch.split(one.total.div_(over), [first[name].numel() for name in one.names])
        for name, part in zip(one.names, parts, strict=True):
            found[name] = part.to(first[name].dtype, copy=True).view(first[name].shape)
    plain = torch.contiguous_format
    return {name: found[name] if name in found else value.clone(memory_format=plain) for name, value in first.items()}


def _check_alike(first: Tree, tree: Tree) -> None:
    if tree.keys() != first.keys():
        raise ValueError(f"trees differ in names: {sorted(tree.keys() ^ first.keys())}")
    for name, value in first.items():
        if tree[name].shape != value.shape:
            raise ValueError(f"trees differ in shape: {name} {tuple(value.shape)}, {tuple(tree[name].shape)}")


def squared_distance(a: Tree, b: Tree) -> Tensor:
    """sum over all entries of (a - b)^2, a scalar through which gradients flow into `a` and `b`."""
    terms = [(a[name] - b[name]).square().sum() for name in a]
    return torch.stack(terms).sum() if terms else torch.zeros(())


def nbytes(tree: Tree) -> int:
    """Bytes of the tensors' values, without names or headers."""
    return sum(value.numel() * value.element_size() for value in tree.values())
