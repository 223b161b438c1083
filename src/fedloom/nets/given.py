"""A model that comes as a Python object: a module with its weights, or a function that makes one."""

from __future__ import annotations

import hashlib
import inspect
import pickle
import re
from collections.abc import Callable
from typing import Any, NoReturn, TypeAlias

import torch
from torch import Tensor, nn

from fedloom.core.errors import ConfigError
from fedloom.core.streams import Streams
from fedloom.nets.copies import copied
from fedloom.nets.net import Net
from fedloom.nets.wrap import Whole, Wrapped, wrap

Source: TypeAlias = nn.Module | Callable[..., nn.Module]
_OFFERED = ("input_shape", "num_classes")


class Given:
    """A module, which is copied as it is, or a function that makes one.

    A function is called with those of `input_shape` (without the batch) and `num_classes` that it names, and draws from
    torch's generator alone.
    """

    def __init__(self, source: Source) -> None:
        self.source = source

    def __call__(self, *, input_shape: tuple[int, ...], num_classes: int, head: str | None = None) -> Net:
        """A net of its own, cut at the layer called `head`, if there is one. Raises `ConfigError` if that fails."""
        module = self.module(input_shape, num_classes)
        if isinstance(module, Net):
            return module
        return Whole(module) if head is None else wrap(module, head)

    def module(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        """A module of its own, on the CPU. Raises `ConfigError` if it cannot be made or copied."""
        made: Any
        try:
            if isinstance(self.source, nn.Module):
                made = copied(self.source)
            else:
                offered = dict(zip(_OFFERED, (input_shape, num_classes), strict=True))
                named = inspect.signature(self.source).parameters.keys() & offered.keys()
                made = self.source(**{name: offered[name] for name in named})
        except ConfigError:
            raise
        except Exception as error:
            what = "copied" if isinstance(self.source, nn.Module) else f"made with {' and '.join(_OFFERED)} at most"
            raise ConfigError(f"model {self.title}: it cannot be {what}: {one_line(error)}") from error
        if not isinstance(made, nn.Module):
            raise ConfigError(f"model {self.title}: need a torch.nn.Module, or what makes one, got {type(made)}")
        if any(map(nn.parameter.is_lazy, _entries(made).values())):
            raise ConfigError(f"model {self.title}: it has lazy layers without sizes; state them")
        return made.cpu()

    def digest(self, input_shape: tuple[int, ...], num_classes: int) -> str:
        """`digest_of` a module of its own; of one that a function makes, drawn from seed 0."""
        with Streams(0).isolated("init"):
            return digest_of(self.module(input_shape, num_classes))

    @property
    def title(self) -> str:
        """What it is called in messages."""
        return title_of(self.source) if isinstance(self.source, nn.Module) else _name_of(self.source)

    def __reduce__(self) -> tuple[Any, ...]:
        """To another process; a function that cannot go there says so when it is called."""
        if not isinstance(self.source, nn.Module):
            try:
                pickle.dumps(self.source)
            except Exception as error:  # whatever the object's own pickling raises
                return Given, (_Stayed(self.title, one_line(error)),)
        return Given, (self.source,)


class _Stayed:
    """Stands for a function that another process has."""

    def __init__(self, name: str, why: str) -> None:
        self.__name__, self.why = name, why

    def __call__(self) -> NoReturn:
        raise ConfigError(
            f"model {self.__name__}: it cannot be sent to another process ({self.why}); define it at the top level of "
            "a file"
        )


def title_of(module: nn.Module) -> str:
    """The class of a module, of a wrapped one that of the user's own."""
    return type(module.body if isinstance(module, Wrapped | Whole) else module).__name__


def digest_of(net: nn.Module) -> str:
    """Hash (16 hex digits) of a net as it is now: its printed structure, and all its entries with their values.

    What Python code computes with them is not part of it.
    """
    digest = hashlib.sha256(re.sub(r" at 0x[0-9a-f]+", "", repr(net)).encode())
    for name, value in _entries(net).items():
        digest.update(str((name, value.dtype, tuple(value.shape), value.requires_grad)).encode())
        digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]


def one_line(error: BaseException) -> str:
    """An error as one line: its class, and the first line of its text."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def _entries(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name, those too that are no part of the state."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _name_of(function: Callable[..., Any]) -> str:
    plain = getattr(function, "func", function)  # of a functools.partial
    return getattr(plain, "__name__", type(plain).__name__)
