"""A user's module as a net: `wrap(module, head="fc")`."""

from __future__ import annotations

import copy

from torch import Tensor, nn

from fedloom.core.errors import ConfigError, suggest_name
from fedloom.nets.net import Net, in_context


def wrap(module: nn.Module, head: str) -> Net:
    """Return `module` as a `Net` whose head is its linear layer called `head` (dotted, e.g. "classifier.6").

    `features(x)` is the input of that layer, and layers after it are left out; so if it is the last layer, the net
    computes what `module` does. Parameters and buffers are shared with `module`, which stays usable: only the modules
    on the way to the head are shallow copies, with a `training` flag of their own. In the net's state dict the head
    is "head.*", and all else is "body.*" under its old name.

    Raises `ConfigError` if there is no such layer or it is no `nn.Linear`.

    Example:
        >>> net = wrap(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), head="2")
        >>> list(net.state_dict())
        ['body.0.weight', 'body.0.bias', 'head.weight', 'head.bias']
    """
    layers = dict(module.named_modules())
    layer = layers.get(head) if head else None
    if not isinstance(layer, nn.Linear):
        linear_layers = [name for name, child in layers.items() if name and isinstance(child, nn.Linear)]
        problem = f"'{head}' is a {type(layer).__name__}" if layer else f"there is no layer '{head}'"
        raise ConfigError(
            f"cannot wrap {type(module).__name__}: {problem}, the head must be an nn.Linear: "
            f"{suggest_name(head, linear_layers)}"
        )
    return Wrapped(_with_tap(module, head.split(".")), layer, module)


# The names `Wrapped` and `_Tap` enter the digest of a user's model: its printed structure is hashed.
class Wrapped(Net):
    """A user's module that is cut at its head. `wrap` makes it."""

    def __init__(self, body: nn.Module, head: nn.Linear, module: nn.Module) -> None:
        super().__init__()
        self.body, self.head = body, head
        self._module = (module,)  # a tuple, so that it is no child

    @property
    def original_module(self) -> nn.Module:
        return self._module[0]

    def features(self, x: Tensor) -> Tensor:
        try:
            self.body(x)
        except _HeadReached as reached:
            return reached.features
        raise ConfigError(f"{type(self.body).__name__} never calls the layer that was wrapped as its head")


class HeadlessNet(Net):
    """A user's module that does not end in a linear layer: it has logits, but no features."""

    classifier_block = ()

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    @property
    def original_module(self) -> nn.Module:
        return self.body

    def features(self, x: Tensor) -> Tensor:
        raise ConfigError(f"{type(self.body).__name__} has no linear layer at its end, whose input features would be")

    @in_context
    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.body(x)
        return logits


class _HeadReached(Exception):
    """Ends the forward pass of a wrapped module at its head, and carries the head's input."""

    def __init__(self, features: Tensor) -> None:
        super().__init__("reached the head")
        self.features = features


class _Tap(nn.Module):
    """Replaces the head and ends the pass there."""

    def forward(self, x: Tensor) -> Tensor:
        raise _HeadReached(x)


def _with_tap(module: nn.Module, path: list[str]) -> nn.Module:
    """Return `module` with a tap at `path`; modules on the way are shallow copies, everything else is shared."""
    if not path:
        return _Tap()
    twin, children = copy.copy(module), dict(module.named_children())
    twin._modules = {**module._modules, path[0]: _with_tap(children[path[0]], path[1:])}
    return twin
