"""Any user's module as a net: `wrap(module, head="fc")`."""

from __future__ import annotations

import copy

from torch import Tensor, nn

from fedloom.core.errors import ConfigError, nearest
from fedloom.nets.net import Net, as_asked


def wrap(module: nn.Module, head: str) -> Net:
    """`module` as a `Net` whose head is its linear layer called `head` (dotted, e.g. "classifier.6").

    `features(x)` is the input of that layer, so layers after it are left out: where it is the last one, the net
    computes what `module` does. Parameters and buffers are the module's own, not copies; `module` is not changed and
    stays usable. Only the modules on the way to the head are shallow copies (with a `training` flag of their own).
    In the net's state dict the head is "head.*", all else "body.*" under its old name. Raises `ConfigError` if there
    is no such layer or it is no `nn.Linear`.
    """
    layers = dict(module.named_modules())
    layer = layers.get(head) if head else None
    if not isinstance(layer, nn.Linear):
        linear = [name for name, child in layers.items() if name and isinstance(child, nn.Linear)]
        what = f"'{head}' is a {type(layer).__name__}" if layer else f"there is no layer '{head}'"
        raise ConfigError(
            f"cannot wrap {type(module).__name__}: {what}, the head must be an nn.Linear: {nearest(head, linear)}"
        )
    return Wrapped(_tapped(module, head.split(".")), layer, module)


class Wrapped(Net):
    """A user's module cut at its head. Made by `wrap`."""

    def __init__(self, body: nn.Module, head: nn.Linear, whole: nn.Module) -> None:
        super().__init__()
        self.body, self.head = body, head
        self._whole = (whole,)  # in a tuple: no child

    @property
    def plain(self) -> nn.Module:
        return self._whole[0]

    def features(self, x: Tensor) -> Tensor:
        try:
            self.body(x)
        except _Reached as reached:
            return reached.features
        raise ConfigError(f"{type(self.body).__name__} never calls the layer that was wrapped as its head")


class Whole(Net):
    """A user's module that has no linear layer at its end: logits, and no features."""

    classifier_block = ()

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    @property
    def plain(self) -> nn.Module:
        return self.body

    def features(self, x: Tensor) -> Tensor:
        raise ConfigError(f"{type(self.body).__name__} has no linear layer at its end, whose input features would be")

    @as_asked
    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.body(x)
        return logits


class _Reached(Exception):
    """Ends the forward pass of a wrapped module at its head, carrying the head's input."""

    def __init__(self, features: Tensor) -> None:
        super().__init__("reached the head")
        self.features = features


class _Tap(nn.Module):
    """Stands where the head stood."""

    def forward(self, x: Tensor) -> Tensor:
        raise _Reached(x)


def _tapped(module: nn.Module, path: list[str]) -> nn.Module:
    """`module` with a tap at `path`: the modules on the way are shallow copies, everything else is shared."""
    if not path:
        return _Tap()
    twin, children = copy.copy(module), dict(module.named_children())
    twin._modules = {**module._modules, path[0]: _tapped(children[path[0]], path[1:])}
    return twin
