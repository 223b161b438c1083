"""What modules keep in plain attributes of Python, which no engine sends, stores or resets."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

_DEPTH, _ELEMENTS = 3, 64  # of containers, as far as they are looked into
_TORCHS_OWN = frozenset(vars(nn.Module()))


def attributes_of(net: nn.Module) -> dict[str, Hashable]:
    """The present values of all plain attributes of a net's modules, by path, in a form that can be compared.

    Buffers that are no part of the state count as plain. Parameters, and whatever torch's own modules keep, do not.
    """
    registered = {id(tensor) for tensor in [*net.parameters(), *_persistent(net)]}
    values: dict[str, Hashable] = {}
    for prefix, module in net.named_modules():
        if type(module).__module__.startswith("torch.nn.") and type(module) is not nn.Module:
            continue
        named = {name: value for name, value in vars(module).items() if name not in _TORCHS_OWN}
        named |= {name: module._buffers[name] for name in module._non_persistent_buffers_set}
        for name, value in named.items():
            values[f"{prefix}.{name}".lstrip(".")] = _comparable(value, registered, _DEPTH)
    return values


def unregistered(net: nn.Module) -> list[str]:
    """Plain attributes, by path, that hold modules with parameters, or tensors that need gradients: nothing trains
    them."""
    registered = {id(tensor) for tensor in net.parameters()} | {id(tensor) for tensor in net.buffers()}
    registered |= {id(module) for module in net.modules()}

    def holds(value: Any, depth: int) -> bool:
        if isinstance(value, Tensor):
            return value.is_leaf and value.requires_grad and id(value) not in registered
        if isinstance(value, nn.Module):
            return id(value) not in registered and any(id(p) not in registered for p in value.parameters())
        elements = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
        return depth > 0 and any(holds(element, depth - 1) for element in elements)

    return [
        f"{prefix}.{name}".lstrip(".")
        for prefix, module in net.named_modules()
        if not type(module).__module__.startswith(("torch.nn.", "fedloom.nets."))
        for name, value in vars(module).items()
        if name not in _TORCHS_OWN and holds(value, _DEPTH)
    ]


def _persistent(net: nn.Module) -> Iterator[Tensor]:
    for module in net.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and name not in module._non_persistent_buffers_set:
                yield buffer


def _comparable(value: Any, registered: set[int], depth: int) -> Hashable:
    """Equal for equal values. Nothing is told of objects that cannot be looked into."""
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return value
    if isinstance(value, Tensor):
        if id(value) in registered or value.is_meta:
            return "entry"
        flat = value.detach().cpu().contiguous().flatten()
        return str(value.dtype), tuple(value.shape), flat.view(torch.uint8).numpy().tobytes()
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, value.tobytes() if value.dtype != object else len(value)
    for kind, state in _GENERATORS.items():
        if isinstance(value, kind):
            return state(value)
    if isinstance(value, Mapping) and depth:
        pairs = [(repr(key)[:64], _comparable(child, registered, depth - 1)) for key, child in _some(value.items())]
        return "mapping", len(value), tuple(pairs)
    if isinstance(value, set | frozenset):
        return "set", len(value)
    if isinstance(value, list | tuple | deque) and depth:
        return "sequence", len(value), tuple(_comparable(child, registered, depth - 1) for child in _some(value))
    return type(value).__name__


def _some(elements: Any) -> list[Any]:
    """The first and the last elements: what grows changes its end."""
    every = list(elements)
    return every if len(every) <= _ELEMENTS else [*every[: _ELEMENTS // 2], *every[-_ELEMENTS // 2 :]]


_GENERATORS: dict[type, Callable[[Any], Hashable]] = {
    torch.Generator: lambda generator: generator.get_state().numpy().tobytes(),
    np.random.Generator: lambda generator: repr(generator.bit_generator.state),
    np.random.RandomState: lambda generator: repr(generator.get_state()),
    random.Random: lambda generator: hash(generator.getstate()),
}
