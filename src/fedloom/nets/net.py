"""The net that all methods know: features, then a head."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from fedloom.core.registry import Registry
from fedloom.core.streams import Streams
from fedloom.core.trees import Tree
from fedloom.nets.functional_net import FunctionalNet
from fedloom.nets.roles import Role, tag_roles

N = TypeVar("N", bound="Net")
MODELS: Registry[Callable[..., Net]] = Registry("model", home="fedloom.nets")


class Net(nn.Module):
    """A net in two parts: `features(x)` [B, d] is the input of the head, and `head(z)` gives logits [B, C].

    Subclasses define `features` and `self.head`, an `nn.Linear` unless a method needs more. `net(x)` gives logits.
    A factory registered with `@MODELS.register(name)` takes `input_shape` (without the batch, e.g. (1, 28, 28)),
    `num_classes`, and options of its own, each typed `Annotated[type, Field(description=...)]`.

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
        """Return activations [B, c, ...] at several depths of the net, shallow to deep, and the features z [B, d].

        Nets with stages return the inputs of their last ReLUs; other nets return z alone.
        """
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
        logits: Tensor = self.head(self.features(x))
        return logits

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
    """Build a net of the registered model `name`, initialised from the run's "init" stream.

    The same seed gives the same weights, whatever was drawn before. `input_shape` is without the batch.

    Raises `ConfigError` for an unknown model or one that does not fit `input_shape`.

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
