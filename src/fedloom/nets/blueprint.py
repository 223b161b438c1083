"""All that it takes to make a run's nets: which models, for what input, and what a method adds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from torch import nn

from fedloom.core.errors import ConfigError
from fedloom.core.streams import Streams
from fedloom.core.trees import Tree, clone
from fedloom.nets.bundle import Bundle
from fedloom.nets.copies import copied
from fedloom.nets.frozen_parameters import freeze_as_buffers
from fedloom.nets.given import Given
from fedloom.nets.net import MODELS, Net, tree_of

Share: TypeAlias = Literal["all", "trainable"]
Extra: TypeAlias = Callable[[Net], nn.Module | None]


@dataclass(frozen=True, slots=True)
class Blueprint:
    """A registered model with its options. `input_shape` is without the batch.

    head_bias: False takes the bias out of the head. nets: several nets in one `Bundle`, by name, None for this model or
    the name of another; empty for one net. extra: makes what a method adds to the net. make: makes the net in place of
    a registered model. share: "trainable" leaves frozen parameters out of the net's tree (`freeze_as_buffers`).
    """

    model: str
    input_shape: tuple[int, ...]
    num_classes: int
    options: Mapping[str, Any] = field(default_factory=dict)
    head_bias: bool = True
    nets: Mapping[str, str | None] = field(default_factory=dict)
    extra: Extra | None = None
    make: Callable[..., Net] | None = None
    share: Share = "all"

    def build(self, streams: Streams, client: int = -1) -> Net:
        """A new net, initialised from the run's "init" stream, or from a client's own; a bundle's nets of one model
        start alike.

        Raises `ConfigError` for an unknown model or one that does not fit `input_shape`.
        """
        with streams.isolated("init", client=client):
            return prepared(
                self._made(None),
                head_bias=self.head_bias,
                nets=self.nets,
                extra=self.extra,
                other=self._made,
                share=self.share,
            )

    def _made(self, model: str | None) -> Net:
        options = self.options if model is None else {}
        factory = self.make if self.make and model is None else MODELS.get(self.model if model is None else model)
        try:
            return factory(input_shape=self.input_shape, num_classes=self.num_classes, **options)
        except RuntimeError as error:
            if "can't allocate memory" not in str(error):
                raise
            raise ConfigError(f"model {self.model}: does not fit into memory; make it smaller") from None

    def weights(self, streams: Streams, client: int) -> Tree:
        """The first weights that a client draws for itself. Raises `ConfigError` for a model that came with its own."""
        if isinstance(self.make, Given) and isinstance(self.make.source, nn.Module):
            raise ConfigError(
                f"model {self.model}: every client would draw weights of its own, and a module comes with its weights; "
                "give a function that makes it"
            )
        return clone(tree_of(self.build(streams, client)))


def _unregistered(model: str) -> Net:
    raise ConfigError(f"a net of the model '{model}' beside the run's own needs a registered model for the run, too")


def prepared(
    net: Net,
    *,
    head_bias: bool = True,
    nets: Mapping[str, str | None] | None = None,
    extra: Extra | None = None,
    other: Callable[[str], Net] = _unregistered,
    share: Share = "all",
) -> Net:
    """`net` as a method wants it.

    Without its head's bias (heads of more layers are for the method to refuse); as a bundle of `nets`, copies of it or
    what `other` makes of a model's name; its frozen parameters as buffers, in its tree if `share` is all; with what
    `extra` makes of it as its child `extra`.
    """
    if nets:
        made = {name: copied(net) if model is None else other(model) for name, model in nets.items()}
        for one in made.values():
            _strip(one, head_bias)
        net = Bundle(made)
    else:
        _strip(net, head_bias)
    freeze_as_buffers(net, persistent=share == "all")
    added = extra(net) if extra else None
    if added is not None:
        net.extra = added
    return net


def _strip(net: Net, head_bias: bool) -> None:
    head = getattr(net, "head", None)
    if not head_bias and isinstance(head, nn.Linear):
        head.register_parameter("bias", None)
