"""Copies of nets whose modules hold tensors that autograd made."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, TypeVar

from torch import Tensor, nn

M = TypeVar("M", bound=nn.Module)


def copied(module: M, stand_ins: Mapping[int, Any] | None = None) -> M:
    """A deep copy. stand_ins: what takes the place of objects, by their ids.

    Tensors with a history, which `copy.deepcopy` refuses, come without it: those that the old `weight_norm`,
    `spectral_norm` and pruning compute from a module's entries before each pass, or that a module has stored.
    """
    known = dict(stand_ins or {})
    for tensor in [*module.parameters(), *module.buffers()]:
        if tensor.is_inference():  # made in inference mode, where nothing can train
            plain = tensor.clone()
            known[id(tensor)] = nn.Parameter(plain, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else plain
    for part in module.modules():
        for value in vars(part).values():
            if isinstance(value, Tensor) and not value.is_leaf and id(value) not in known:
                known[id(value)] = value.detach().clone()
    return copy.deepcopy(module, known)
