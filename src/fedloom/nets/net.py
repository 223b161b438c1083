"""What a net is: features, then a head."""

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
    """A net in two parts: `features(x)` [B, d], the input of the head, and `head(z)` [B, C] logits.

    Subclasses define `self.head` (an `nn.Linear` unless a method asks for more) and `features`. Called as
    `net(x)`, it gives logits. A factory registered with `@MODELS.register(name)` takes `input_shape` (without the
    batch, e.g. (1, 28, 28)) and `num_classes`, and any options of its own.

    `channels_last`: engines keep its weights in that memory order, in which convolutions train up to 1.6 times faster
    (`benchmarks/channels_last.py`).

    `in_bfloat16`: while it trains, convolutions and linear layers below the head take their inputs and weights in that
    dtype; the weights themselves, what leaves `features` and `maps`, and everything after it stay float32.

    `within`: where it is set, `features` and `maps` run inside the context that it makes while the net trains (other
    kernels for the same operators, say).

    `extra`: what a method adds (`Method.extra`), trained and kept beside the net's own tensors; absent as a rule.

    Some papers cut the same net earlier: `classifier_block` names the submodules, in order, of what they call the
    classifier; `maps(x)` [B, f] is its input. Here it is the head alone.
    """

    head: nn.Linear
    classifier_block: ClassVar[tuple[str, ...]] = ("head",)
    channels_last: bool = True
    in_bfloat16 = False
    within: Callable[[], AbstractContextManager[Any]] | None = None
    extra: nn.Module
    _functional: FunctionalNet | None = None

    def __init_subclass__(cls, **named: Any) -> None:
        super().__init_subclass__(**named)
        for name in cls.__dict__.keys() & {"features", "maps"}:
            setattr(cls, name, as_asked(cls.__dict__[name]))

    def features(self, x: Tensor) -> Tensor:
        """x [B, *input_shape] -> z [B, d]. Every net defines its own."""
        raise TypeError(f"{type(self).__name__} defines no features(x): a net needs features(x) -> [B, d] and a head")

    def levels(self, x: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        """x [B, *input_shape] -> what lies at several depths, shallow to deep, [B, c, ...] each; and z [B, d].

        Here it is z alone; a net with stages gives what enters their last ReLUs.
        """
        z = self.features(x)
        return (z,), z

    def maps(self, x: Tensor) -> Tensor:
        """x [B, *input_shape] -> [B, f], what enters the classifier block."""
        return self.features(x)

    def classify(self, maps: Tensor) -> Tensor:
        """The classifier block: maps [B, f] -> logits [B, C]."""
        h = maps
        for name in self.classifier_block:
            h = getattr(self, name)(h)
        return h

    def forward(self, x: Tensor) -> Tensor:
        """x [B, *input_shape] -> logits [B, C]."""
        logits: Tensor = self.head(self.features(x))
        return logits

    @property
    def functional(self) -> FunctionalNet:
        """This net as a function of its weights, in evaluation mode: for teachers, say."""
        if self._functional is None:
            self._functional = FunctionalNet(self)
        return self._functional

    @property
    def plain(self) -> nn.Module:
        """The module as its author wrote it, with this net's tensors: the net itself, or what it wraps."""
        return self

    def roles(self) -> dict[str, Role]:
        """The role of every entry of the net's tree, in its order."""
        return tag_roles(self, "head")


def as_asked(part: Callable[[N, Tensor], Tensor]) -> Callable[[N, Tensor], Tensor]:
    """A part of a net, such as its own `features` or `maps`, in bfloat16 or within a context if the net says so."""

    @functools.wraps(part)
    def computed(self: N, x: Tensor) -> Tensor:
        if self.training and self.in_bfloat16:
            with torch.autocast(x.device.type, torch.bfloat16, cache_enabled=False):
                return part(self, x).float()
        if self.training and self.within is not None:
            with self.within():
                return part(self, x)
        return part(self, x)

    return computed


def build(name: str, *, input_shape: tuple[int, ...], num_classes: int, streams: Streams, **options: Any) -> Net:
    """A new net of the registered kind, initialised from the run's "init" stream.

    The same seed gives the same weights whatever was drawn before. Raises `ConfigError` for an unknown name or a
    model that does not fit `input_shape`.
    """
    factory = MODELS.get(name)
    with streams.isolated("init"):
        return factory(input_shape=input_shape, num_classes=num_classes, **options)


def tree_of(net: nn.Module) -> Tree:
    """The net's live tensors (parameters and persistent buffers) by name: views, not copies."""
    return dict(net.state_dict(keep_vars=False))
