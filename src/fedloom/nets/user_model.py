"""A model that a user passes as a Python object: a module with its weights, or a function that makes one."""

import copy
import hashlib
import inspect
import pickle
import re
from collections.abc import Callable
from typing import Any, NoReturn, TypeAlias, cast

import torch
from torch import Tensor, nn

from fedloom.core.errors import ConfigError, suggest_name
from fedloom.core.streams import Streams
from fedloom.nets.net import Net, deep_copy, in_context


def wrap(module: nn.Module, head: str) -> Net:
    """Return `module` as a `Net` whose head is its linear layer called `head` (dotted, e.g. "classifier.6").
    `features(x)` is the input of that layer, and layers after it are left out. Parameters and buffers are shared with
    `module`, which stays usable. In the state dict the head is "head.*", and all else is "body.*" under its old name.
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
        why = f"{problem}, the head must be an nn.Linear: {suggest_name(head, linear_layers)}"
        raise ConfigError(f"cannot wrap {type(module).__name__}: {why}")
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
        return cast(Tensor, self.body(x))


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


ModelSource: TypeAlias = nn.Module | Callable[..., nn.Module]
NOT_SENT = "model {}: it cannot be sent to another process ({}); define it at the top level of a file"
_ARGUMENTS = ("input_shape", "num_classes")


class UserModel:
    """The factory of nets for a user's model: a module, which is copied, or a function that makes one. It is called
    with those of `input_shape` and `num_classes` that it names, and may draw from torch's generator alone."""

    def __init__(self, source: ModelSource) -> None:
        self.source = source

    def __call__(self, *, input_shape: tuple[int, ...], num_classes: int, head: str | None = None) -> Net:
        """Return a new net, cut at the layer called `head` if that is not None. Raises `ConfigError` if that fails."""
        module = self.module(input_shape, num_classes)
        if isinstance(module, Net):
            return module
        return HeadlessNet(module) if head is None else wrap(module, head)

    def module(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        """Return a new module on the CPU for samples of `input_shape`. Raises `ConfigError` if that fails."""
        module: Any
        try:
            if isinstance(self.source, nn.Module):
                module = deep_copy(self.source)
            else:
                arguments = dict(zip(_ARGUMENTS, (input_shape, num_classes), strict=True))
                accepted = inspect.signature(self.source).parameters.keys() & arguments.keys()
                module = self.source(**{name: arguments[name] for name in accepted})
        except ConfigError:
            raise
        except Exception as error:
            action = "copied" if isinstance(self.source, nn.Module) else f"made with {' and '.join(_ARGUMENTS)} at most"
            raise ConfigError(f"model {self.title}: it cannot be {action}: {error_line(error)}") from error
        if not isinstance(module, nn.Module):
            raise ConfigError(f"model {self.title}: need a torch.nn.Module, or what makes one, got {type(module)}")
        if any(map(nn.parameter.is_lazy, _entries(module).values())):
            raise ConfigError(f"model {self.title}: it has lazy layers without sizes; state them")
        return module.cpu()

    def digest(self, input_shape: tuple[int, ...], num_classes: int) -> str:
        """Return the `model_digest` of a new module, with weights drawn from seed 0 if a function makes it."""
        with Streams(0).isolated("init"):
            return model_digest(self.module(input_shape, num_classes))

    @property
    def title(self) -> str:
        return class_name(self.source) if isinstance(self.source, nn.Module) else _function_name(self.source)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle for another process. A function that cannot be pickled becomes an error that is raised on its call."""
        reason = None if isinstance(self.source, nn.Module) else self.cannot_be_sent()
        return UserModel, (self.source if reason is None else _UnpicklableFunction(self.title, reason),)

    def cannot_be_sent(self) -> str | None:
        """Return why another process cannot get this model; None if it can."""
        try:
            pickle.dumps(self.source)
        except Exception as error:  # whatever the object's own pickling raises
            return error_line(error)
        return None


class _UnpicklableFunction:
    """Replaces, in another process, a function that could not be sent there."""

    def __init__(self, name: str, reason: str) -> None:
        self.__name__, self.reason = name, reason

    def __call__(self) -> NoReturn:
        raise ConfigError(NOT_SENT.format(self.__name__, self.reason))


def class_name(module: nn.Module) -> str:
    """Return the name of a module's class; of a wrapped module, the user's class."""
    return type(module.body if isinstance(module, Wrapped | HeadlessNet) else module).__name__


def model_digest(module: nn.Module) -> str:
    """Return a hash (16 hex digits) of a module's printed structure and its entries, without its Python code."""
    # addresses in the printed structure differ from process to process
    digest = hashlib.sha256(re.sub(r" at 0x[0-9a-f]+", "", repr(module)).encode())
    for name, tensor in _entries(module).items():
        digest.update(str((name, tensor.dtype, tuple(tensor.shape), tensor.requires_grad)).encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]


def error_line(error: BaseException) -> str:
    """Return an error as one line: its class and the first line of its text."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def _entries(module: nn.Module) -> dict[str, Tensor]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _function_name(function: Callable[..., Any]) -> str:
    unwrapped = getattr(function, "func", function)  # of a functools.partial
    return getattr(unwrapped, "__name__", type(unwrapped).__name__)
