"""Deep copies of modules, and the state that modules keep in plain Python attributes."""

import copy
import random
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

M = TypeVar("M", bound=nn.Module)


def deep_copy(module: M, replacements: Mapping[int, Any] | None = None) -> M:
    """Return a deep copy of a `module`, with `replacements` for objects of these ids. Unlike `copy.deepcopy` it copies
    tensors with a history, without the history: old `weight_norm`, `spectral_norm` and pruning keep such tensors."""
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


_MAX_DEPTH, _MAX_ELEMENTS = 3, 64  # of containers that are compared
_MODULE_ATTRIBUTES = frozenset(vars(nn.Module()))


def plain_attributes(net: nn.Module) -> dict[str, Hashable]:
    """Return the plain attributes of a net's modules by path, in a form that compares equal for equal values, with
    buffers outside the state dict and without attributes of torch's own modules."""
    registered = {id(tensor) for tensor in [*net.parameters(), *_persistent_buffers(net)]}
    snapshot: dict[str, Hashable] = {}
    for prefix, module in net.named_modules():
        if type(module).__module__.startswith("torch.nn.") and type(module) is not nn.Module:
            continue
        attributes = {name: value for name, value in vars(module).items() if name not in _MODULE_ATTRIBUTES}
        attributes |= {name: module._buffers[name] for name in module._non_persistent_buffers_set}
        for name, value in attributes.items():
            snapshot[f"{prefix}.{name}".lstrip(".")] = _comparable(value, registered, _MAX_DEPTH)
    return snapshot


def unregistered_weights(net: nn.Module) -> list[str]:
    """Return the paths of plain attributes with modules or tensors that need gradients: nothing trains them."""
    registered = {id(known) for known in (*net.parameters(), *net.buffers(), *net.modules())}

    def holds_weights(value: Any, depth: int) -> bool:
        if isinstance(value, Tensor):
            return value.is_leaf and value.requires_grad and id(value) not in registered
        if isinstance(value, nn.Module):
            return id(value) not in registered and any(id(p) not in registered for p in value.parameters())
        elements = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
        return depth > 0 and any(holds_weights(element, depth - 1) for element in elements)

    return [
        f"{prefix}.{name}".lstrip(".")
        for prefix, module in net.named_modules()
        if not type(module).__module__.startswith(("torch.nn.", "fedloom.nets."))
        for name, value in vars(module).items()
        if name not in _MODULE_ATTRIBUTES and holds_weights(value, _MAX_DEPTH)
    ]


def _persistent_buffers(net: nn.Module) -> Iterator[Tensor]:
    for module in net.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and name not in module._non_persistent_buffers_set:
                yield buffer


def _comparable(value: Any, registered: set[int], depth: int) -> Hashable:
    """Return a hashable form, equal for equal values; objects of unknown classes are compared by class alone."""
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return value
    if isinstance(value, Tensor):
        if id(value) in registered or value.is_meta:
            return "entry"
        flat = value.detach().cpu().contiguous().flatten()
        return str(value.dtype), tuple(value.shape), flat.view(torch.uint8).numpy().tobytes()
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, value.tobytes() if value.dtype != object else len(value)
    for kind, state_of in _GENERATOR_STATES.items():
        if isinstance(value, kind):
            return state_of(value)
    if isinstance(value, Mapping) and depth:
        pairs = [(repr(key)[:64], _comparable(child, registered, depth - 1)) for key, child in _ends(value.items())]
        return "mapping", len(value), tuple(pairs)
    if isinstance(value, set | frozenset):
        return "set", len(value)
    if isinstance(value, list | tuple | deque) and depth:
        return "sequence", len(value), tuple(_comparable(child, registered, depth - 1) for child in _ends(value))
    return type(value).__name__


def _ends(container: Any) -> list[Any]:
    """Return the first and last elements of a long container: one that grows changes at its end."""
    elements = list(container)
    half = _MAX_ELEMENTS // 2
    return elements if len(elements) <= _MAX_ELEMENTS else [*elements[:half], *elements[-half:]]


_GENERATOR_STATES: dict[type, Callable[[Any], Hashable]] = {
    torch.Generator: lambda generator: generator.get_state().numpy().tobytes(),
    np.random.Generator: lambda generator: repr(generator.bit_generator.state),
    np.random.RandomState: lambda generator: repr(generator.get_state()),
    random.Random: lambda generator: hash(generator.getstate()),
}
