"""Trees whose matrices travel as truncated singular value decompositions."""

from __future__ import annotations

import torch
from torch import Tensor

from fedloom.core.trees import Tree

PARTS = (":u", ":s", ":v")  # behind an entry's name


def rank_for(singular: Tensor, energy: float) -> int:
    """Fewest of the singular values [r], largest first, whose squares have the share `energy` of all; 1 at least.

    Example:
        >>> rank_for(torch.tensor([3.0, 1.0, 0.1]), 0.95)
        2
    """
    gathered = singular.square().cumsum(0)
    return min(len(singular), int((gathered < energy * gathered[-1]).sum()) + 1)


def factored(tree: Tree, energy: float) -> Tree:
    """Each floating entry of two dimensions or more as u [a, r], s [r], v [r, ...]; others as they are.

    An entry [a, b, c, ...] counts as one matrix [a, b c ...]. One that is not finite has no factors, and stays as it
    is: a run that diverged ends as those of other methods do. The largest number of each column of u is positive, so
    that factors are unique where singular values differ. Computed in float64, kept in the entry's dtype.

    Args:
        tree: weights by name.
        energy: part of the squared singular values, in (0, 1], that the rank r has to keep.
    """
    parts: Tree = {}
    for name, value in tree.items():
        if value.dim() < 2 or not value.is_floating_point() or not value.isfinite().all():
            parts[name] = value
            continue
        u, s, v = torch.linalg.svd(value.double().flatten(1), full_matrices=False)
        rank = rank_for(s, energy)
        u, s, v = u[:, :rank], s[:rank], v[:rank]
        sign = torch.where(u.gather(0, u.abs().argmax(0, keepdim=True)) < 0, -1.0, 1.0)  # [1, r]
        shaped = (v * sign.T).reshape(rank, *value.shape[1:])
        for suffix, factor in zip(PARTS, (u * sign, s, shaped), strict=True):
            parts[name + suffix] = factor.to(value.dtype).contiguous()
    return parts


def restored(parts: Tree) -> Tree:
    """The tree of which `factored` gave these parts, as far as they hold it."""
    tree: Tree = {}
    for name, value in parts.items():
        entry, mark, part = name.rpartition(":")
        if not mark:
            tree[name] = value
        elif part == "u":
            s, v = parts[entry + ":s"].double(), parts[entry + ":v"].double()
            product = (value.double() * s) @ v.flatten(1)
            tree[entry] = product.reshape(len(value), *v.shape[1:]).to(value.dtype)
    return tree
