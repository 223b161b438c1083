"""Deep copies of modules that hold tensors which autograd made."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, TypeVar

from torch import Tensor, nn

M = TypeVar("M", bound=nn.Module)


def deep_copy(module: M, replacements: Mapping[int, Any] | None = None) -> M:
    """Return a deep copy of a module.

    `copy.deepcopy` refuses tensors with a history; here they are copied without it. Old `weight_norm`, `spectral_norm`
    and pruning compute such tensors before each pass, and some modules store them.

    Args:
        module: the module.
        replacements: objects by the `id` of those that they replace in the copy.
    """
    memo = dict(replacements or {})
    for tensor in [*module.parameters(), *module.buffers()]:
        if tensor.is_inference():  # made in inference mode, where nothing can train
            clone = tensor.clone()
            memo[id(tensor)] = nn.Parameter(clone, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else clone
    for submodule in module.modules():
        for attribute in vars(submodule).values():
            if isinstance(attribute, Tensor) and not attribute.is_leaf and id(attribute) not in memo:
                memo[id(attribute)] = attribute.detach().clone()
    return copy.deepcopy(module, memo)
