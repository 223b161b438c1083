"""Trees: flat, ordered `dict[str, Tensor]`, and all weight arithmetic.

Two rules hold for every sum over clients: it is taken in float64 in the order given (client order), and integer
tensors (batch-norm counters) are never averaged: the first tree's value is kept."""

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from fedloom.core.text import lists_by_key

Tree: TypeAlias = dict[str, Tensor]

# A block of numbers fits the cache and is long enough for sequential reads. Entries of fewer than _SMALL numbers are
# summed together, and _TREES_PER_PASS trees in each pass over the sums.
_BLOCK, _SMALL, _TREES_PER_PASS = 65_536, 16_384, 16
_USABLE_WEIGHTS = "need one for each tree, >= 0, with a positive sum"


# Adds weights[k] * trees[k] to a sum [n], for trees whose entries follow tree by tree in the list, in their order and
# with the bits of `Tensor.add_`; returns False, and adds nothing, if it cannot.
CompiledAdd: TypeAlias = Callable[[Tensor, list[Tensor], list[float]], bool]
_compiled_add: CompiledAdd | None = None


def use_compiled_add(add: CompiledAdd | None) -> None:
    """Let weighted sums be computed by compiled code, which costs or saves time alone; None computes them by torch."""
    global _compiled_add
    _compiled_add = add


def clone(tree: Tree) -> Tree:
    """Return a detached copy that shares no memory with `tree`."""
    return {name: value.detach().clone() for name, value in tree.items()}


def select(tree: Tree, names: Collection[str]) -> Tree:
    """Return the entries `names`, in the order of `tree`, not copied."""
    return {name: value for name, value in tree.items() if name in names}


def weighted_mean(trees: Iterable[Tree], weights: Iterable[float]) -> Tree:
    """Return sum_k weights_k trees_k / sum_k weights_k for floating tensors (float64 in the given order, then cast),
    and integer tensors of the first tree. Raises `ValueError` for no tree, other names or shapes, or bad weights."""
    pairs = itertools.zip_longest(trees, weights)
    first_tree, sums, means, all_weights = Tree(), list[_Sum](), Tree(), list[float]()
    group = list(itertools.islice(pairs, _TREES_PER_PASS))
    while group:
        following = list(itertools.islice(pairs, 1))
        all_weights += [weight for _, weight in group if weight is not None]
        # `zip_longest` fills up with None if one of the two is shorter.
        if any(tree is None or weight is None or weight < 0 for tree, weight in group):
            raise ValueError(f"weights {all_weights}: {_USABLE_WEIGHTS}")
        first_tree = first_tree or group[0][0]
        sums = sums or _zero_sums(first_tree)
        for tree, _ in group:
            _require_equal_layout(first_tree, tree)
        # A weight of 0 leaves a tree out, because 0 * NaN, of a client that diverged, would be NaN.
        positive_pairs = [(tree, weight) for tree, weight in group if weight > 0]
        # Written in this way, it also refuses a sum that is NaN.
        if not following and not sum(all_weights) > 0:
            raise ValueError(f"weights {all_weights}: {_USABLE_WEIGHTS}")
        for entry_sum in sums:
            entry_sum.add([tree for tree, _ in positive_pairs], [weight for _, weight in positive_pairs])
            if not following:  # one entry after another, so that few trees never need all sums at once
                means |= entry_sum.divided(first_tree, float(sum(all_weights)))
        group = following and [*following, *itertools.islice(pairs, _TREES_PER_PASS - 1)]
    if not all_weights:
        raise ValueError("weighted_mean of no trees: at least one client must have sent weights")
    return _in_order(first_tree, means)


def combine(trees: Sequence[Tree], coefficients: Sequence[float]) -> Tree:
    """Return sum_k coefficients_k trees_k for floating tensors, and integer tensors of the first tree: for steps and
    extrapolations. Sums are float64, cast to the entry's dtype."""
    values: Tree = {}
    for entry_sum in _zero_sums(trees[0]):
        entry_sum.add(trees, coefficients)
        values |= entry_sum.divided(trees[0], 1.0)
    return _in_order(trees[0], values)


@dataclass(slots=True)
class _Sum:
    """The running sum `total` [n] float64 of the entries `names`, which have one dtype and lie one after another. It
    takes memory from the first `add` until it is `divided`."""

    names: list[str]
    total: Tensor | None = None

    def add(self, trees: Sequence[Tree], weights: Sequence[float]) -> None:
        """Add weight * tree for each tree, in blocks that stay in the cache."""
        if not trees:
            return
        if self.total is None:
            entries = [trees[0][name] for name in self.names]
            size = sum(entry.numel() for entry in entries)
            self.total = torch.zeros(size, dtype=torch.float64, device=entries[0].device)
        if _compiled_add is not None and self.total.device.type == "cpu":
            listed = [tree[name] for tree in trees for name in self.names]
            if _compiled_add(self.total, listed, [float(weight) for weight in weights]):
                return
        flat_entries = [[tree[name].reshape(-1) for name in self.names] for tree in trees]
        flat_trees = [tensors[0] if len(tensors) == 1 else torch.cat(tensors) for tensors in flat_entries]
        # Block by block over all trees: the block of the sum stays in the cache while the trees stream by.
        for start in range(0, self.total.numel(), _BLOCK):
            block = self.total[start : start + _BLOCK]
            for tensor, weight in zip(flat_trees, weights, strict=True):
                block.add_(tensor[start : start + _BLOCK], alpha=weight)

    def divided(self, first: Tree, divisor: float) -> Tree:
        """Return sum / divisor in the shapes and dtypes of the `first` tree, and give the sum's memory back."""
        assert self.total is not None, "some weight is positive"
        sizes = [first[name].numel() for name in self.names]
        parts = zip(self.names, torch.split(self.total.div_(divisor), sizes), strict=True)
        # Without the copy, a float64 entry would be a view, which keeps the whole sum in memory.
        means = {name: part.to(first[name].dtype, copy=True).view(first[name].shape) for name, part in parts}
        self.total = None
        return means


def _zero_sums(tree: Tree) -> list[_Sum]:
    """Return empty sums: one for each large floating entry, and one for the small entries of each dtype."""
    floating = ((name, value) for name, value in tree.items() if value.is_floating_point())
    groups = lists_by_key((value.dtype if value.numel() < _SMALL else name, name) for name, value in floating)
    return [_Sum(names) for names in groups.values()]


def _in_order(first: Tree, means: Tree) -> Tree:
    """Return the means in the order of the first tree, whose integer entries are copied."""
    layout = torch.contiguous_format
    return {name: means[name] if name in means else value.clone(memory_format=layout) for name, value in first.items()}


def _require_equal_layout(first: Tree, tree: Tree) -> None:
    if tree.keys() != first.keys():
        raise ValueError(f"trees differ in names: {sorted(tree.keys() ^ first.keys())}")
    for name, value in first.items():
        if tree[name].shape != value.shape:
            raise ValueError(f"trees differ in shape: {name} {tuple(value.shape)}, {tuple(tree[name].shape)}")


def squared_distance(a: Tree, b: Tree) -> Tensor:
    """Return the sum of (a - b)^2 over all entries, a scalar through which gradients flow into `a` and `b`."""
    terms = [(a[name] - b[name]).square().sum() for name in a]
    return torch.stack(terms).sum() if terms else torch.zeros(())


def nbytes(tree: Tree) -> int:
    """Return the bytes of the tensors' values, without names or headers."""
    return sum(value.numel() * value.element_size() for value in tree.values())


def sent_to(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor of the CPU to `device`. On CUDA the copy is queued from pinned memory, and nothing waits for it."""
    if device.type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def tree_on(tree: Mapping[str, Tensor], device: torch.device) -> Tree:
    """Copy a tree to `device`, in the plain memory order: one copy for each dtype, as a copy of each entry waits."""
    names_by_dtype = lists_by_key((tensor.dtype, name) for name, tensor in tree.items())
    copied: Tree = {}
    for names in names_by_dtype.values():
        flat = sent_to(torch.cat([tree[name].detach().reshape(-1) for name in names]), device)
        pieces = torch.split(flat, [tree[name].numel() for name in names])
        copied |= {name: piece.view(tree[name].shape) for name, piece in zip(names, pieces, strict=True)}
    return {name: copied[name] for name in tree}
