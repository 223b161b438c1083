"""The net that all methods know (features, then a head), its tensors' roles, deep copies, and nets as functions."""

import copy
import functools
import random
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import AbstractContextManager
from enum import StrEnum
from typing import Any, ClassVar, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedloom.core.registry import Registry
from fedloom.core.streams import Streams
from fedloom.core.trees import Tree

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


BATCH_NORM = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


class Role(StrEnum):
    """The purpose of a tensor. Methods say in roles which tensors are shared, private or frozen."""

    BODY = "body"
    HEAD = "head"
    BN_AFFINE = "bn_affine"
    BN_STAT = "bn_stat"
    COUNTER = "counter"
    BUFFER = "buffer"  # of any other module: running statistics of instance norm, say
    EXTRA = "extra"  # of the module that a method adds (`Method.extra`)


EXTRA = "extra"  # name of the child that holds a method's added module
ALL_ROLES = frozenset(Role)
BN_ROLES = frozenset({Role.BN_AFFINE, Role.BN_STAT, Role.COUNTER})


def tag_roles(module: nn.Module, head: str) -> dict[str, Role]:
    """Return the role of every state-dict entry of `module`, in its order; `head` is the name of the head submodule.
    Batch norm keeps its role inside the head."""
    roles: dict[str, Role] = {}
    # a module under two names has its entries twice in the state dict
    for prefix, child in module.named_modules(remove_duplicate=False):
        inside_head = prefix == head or prefix.startswith(f"{head}.")
        entries = {**child._parameters, **child._buffers}
        for name, tensor in entries.items():
            path = f"{prefix}.{name}" if prefix else name
            if isinstance(child, BATCH_NORM):
                role = Role.BN_AFFINE if isinstance(tensor, nn.Parameter) else Role.BN_STAT  # frozen ones are buffers
                role = Role.COUNTER if name == "num_batches_tracked" else role
            elif prefix == EXTRA or prefix.startswith(f"{EXTRA}."):
                role = Role.EXTRA
            elif name in child._buffers and not isinstance(tensor, nn.Parameter):  # as above
                role = Role.BUFFER
            else:
                role = Role.HEAD if inside_head else Role.BODY
            roles[path] = role
    return {name: roles[name] for name in module.state_dict()}


def has_batch_norm(module: nn.Module) -> bool:
    """Return whether batch statistics enter the forward pass in training; engines then skip batches of one."""
    return any(isinstance(child, BATCH_NORM) for child in module.modules())


class FunctionalNet:
    """A net without weights, for teachers, anchors and other clients' classifiers: every call takes a tree, and
    computes in evaluation mode. Gradients reach the arguments alone, so pass detached trees; a tree may have more
    entries. `trainable`: names of the entries that train."""

    def __init__(self, net: "Net") -> None:
        # trees carry these tensors, so the copy needs no memory for them; it shares buffers outside the state dict
        carried = [*net.parameters(), *_persistent_buffers(net)]
        placeholders = {id(tensor): _placeholder(tensor) for tensor in carried}
        self._net = deep_copy(net, placeholders).eval()
        entries = [*self._net.named_parameters(), *self._net.named_buffers()]
        self._names = {name for name, _ in entries}  # a tensor under several names has the first of them
        self.trainable = frozenset(name for name, _ in self._net.named_parameters())
        self._calls = NetCalls(self._net)

    def logits(self, tree: Tree, x: Tensor) -> Tensor:
        """Return the logits [B, C] of x [B, *input_shape] with the weights `tree`."""
        return self._call(lambda net, x: cast(Tensor, net(x)), tree, x)

    def features(self, tree: Tree, x: Tensor) -> Tensor:
        """Return the features [B, d] of x [B, *input_shape] with the weights `tree`."""
        return self._call(lambda net, x: net.features(x), tree, x)

    def classify(self, tree: Tree, maps: Tensor) -> Tensor:
        """Return the logits [B, C] of the classifier block on `maps` [B, f]; `tree` holds its weights."""
        return self._call(lambda net, maps: net.classify(maps), tree, maps)

    def _call(self, function: "Callable[[Net, Tensor], Tensor]", tree: Tree, x: Tensor) -> Tensor:
        entries = {f"net.{name}": value for name, value in tree.items() if name in self._names}
        return cast(Tensor, functional_call(self._calls, entries, (function, x)))


def _placeholder(tensor: Tensor) -> Tensor:
    empty = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
    return nn.Parameter(empty, requires_grad=False) if isinstance(tensor, nn.Parameter) else empty


class NetCalls(nn.Module):
    """Calls functions of a net with weights that `functional_call` puts in."""

    def __init__(self, net: "Net") -> None:
        super().__init__()
        self.net = net

    def forward(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return function(self.net, *arguments)


N = TypeVar("N", bound="Net")
MODELS: "Registry[Callable[..., Net]]" = Registry("model", home="fedloom.nets")


class Net(nn.Module):
    """A net in two parts: `features(x)` [B, d] is the input of the head, and `head(z)` gives logits [B, C].

    Subclasses define `features` and `self.head`, an `nn.Linear` unless a method needs more. `net(x)` gives logits.
    A factory registered with `@MODELS.register(name)` takes `input_shape` (without the batch, e.g. (1, 28, 28)),
    `num_classes`, and its options, each typed `Annotated[type, Field(description=...)]`.

    Some papers cut the net earlier: `classifier_block` names in order the submodules that they call the classifier,
    and `maps(x)` [B, f] is the input of the first. By default the block is the head alone.

    Attributes:
        channels_last: engines keep the weights in this memory order, in which convolutions train up to 1.6 times
            faster (`python -m benchmarks kernels nets`).
        in_bfloat16: in training, convolutions and linear layers below the head compute in bfloat16. Weights, the
            outputs of `features` and `maps`, and everything after them stay float32.
        kernel_context: if set, `features` and `maps` run inside the context that it makes. An engine sets it to replace
            the kernels of operators.
        test_context: the same for a net in evaluation mode that has no `kernel_context`.
        extra: the module that a method adds (`Method.extra`); absent as a rule.
    """

    head: nn.Linear
    classifier_block: ClassVar[tuple[str, ...]] = ("head",)
    channels_last: bool = True
    in_bfloat16 = False
    kernel_context: Callable[[], AbstractContextManager[Any]] | None = None
    test_context: Callable[[], AbstractContextManager[Any]] | None = None
    extra: nn.Module
    _functional: FunctionalNet | None = None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name in cls.__dict__.keys() & {"features", "maps"}:
            setattr(cls, name, in_context(cls.__dict__[name]))

    def features(self, x: Tensor) -> Tensor:
        """Return the features [B, d] of x [B, *input_shape]. Every net defines its own."""
        raise TypeError(f"{type(self).__name__} defines no features(x): a net needs features(x) -> [B, d] and a head")

    def levels(self, x: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        """Return activations [B, c, ...] at several depths, shallow to deep (the inputs of the last ReLUs of stages, or
        z alone), and the features z [B, d]."""
        z = self.features(x)
        return (z,), z

    def maps(self, x: Tensor) -> Tensor:
        """Return the input [B, f] of the classifier block for x [B, *input_shape]."""
        return self.features(x)

    def classify(self, maps: Tensor) -> Tensor:
        """Return the logits [B, C] of the classifier block for `maps` [B, f]."""
        hidden = maps
        for name in self.classifier_block:
            hidden = getattr(self, name)(hidden)
        return hidden

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits [B, C] of x [B, *input_shape]."""
        return cast(Tensor, self.head(self.features(x)))

    @property
    def functional(self) -> FunctionalNet:
        """This net as a function of its weights, in evaluation mode: for teachers, say."""
        if self._functional is None:
            self._functional = FunctionalNet(self)
        return self._functional

    @property
    def original_module(self) -> nn.Module:
        """The module as its author wrote it, with this net's tensors: the net itself, or the module that it wraps."""
        return self

    def roles(self) -> dict[str, Role]:
        """Return the role of every entry of the net's tree, in its order."""
        return tag_roles(self, "head")


def in_context(forward: Callable[[N, Tensor], Tensor]) -> Callable[[N, Tensor], Tensor]:
    """Wrap a method such as `features`: it trains in bfloat16, or runs in `kernel_context`, if the net says so."""

    @functools.wraps(forward)
    def wrapped(self: N, x: Tensor) -> Tensor:
        if self.training and self.in_bfloat16:
            with torch.autocast(x.device.type, torch.bfloat16, cache_enabled=False):
                return forward(self, x).float()
        context = self.kernel_context or (None if self.training else self.test_context)
        if context is not None:
            with context():
                return forward(self, x)
        return forward(self, x)

    return wrapped


def build(name: str, *, input_shape: tuple[int, ...], num_classes: int, streams: Streams, **options: Any) -> Net:
    """Build a net of the registered model `name`, for samples of `input_shape` and `num_classes`, from the run's "init"
    stream: the same seed gives the same weights. Raises `ConfigError` for an unknown model or one that does not fit.

    Example:
        >>> from fedloom.core.streams import Streams
        >>> net = build("mlp", input_shape=(1, 28, 28), num_classes=10, streams=Streams(0), hidden=(50,))
        >>> net(torch.zeros(4, 1, 28, 28)).shape
        torch.Size([4, 10])
    """
    factory = MODELS.get(name)
    with streams.isolated("init"):
        return factory(input_shape=input_shape, num_classes=num_classes, **options)


def tree_of(net: nn.Module) -> Tree:
    """Return the net's parameters and persistent buffers by name: the tensors themselves, not copies."""
    return dict(net.state_dict(keep_vars=False))
