"""All that it takes to make a run's nets: which model, for what input, once or several times over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from fedloom.core.streams import Streams
from fedloom.core.trees import Tree, clone
from fedloom.nets.bundle import Bundle
from fedloom.nets.net import MODELS, Net, tree_of


@dataclass(frozen=True, slots=True)
class Blueprint:
    """A registered model with its options. `input_shape` is without the batch.

    head_bias: False takes the bias out of the head. nets: names of several copies in one `Bundle`; empty for one net.
    """

    model: str
    input_shape: tuple[int, ...]
    num_classes: int
    options: Mapping[str, Any] = field(default_factory=dict)
    head_bias: bool = True
    nets: tuple[str, ...] = ()

    def build(self, streams: Streams, client: int = -1) -> Net:
        """A new net, initialised from the run's "init" stream, or from a client's own; a bundle's nets start alike.

        Raises `ConfigError` for an unknown model or one that does not fit `input_shape`.
        """
        factory = MODELS.get(self.model)
        with streams.isolated("init", client=client):
            net = factory(input_shape=self.input_shape, num_classes=self.num_classes, **self.options)
        return prepared(net, head_bias=self.head_bias, nets=self.nets)

    def weights(self, streams: Streams, client: int) -> Tree:
        """The first weights that a client draws for itself."""
        return clone(tree_of(self.build(streams, client)))


def prepared(net: Net, *, head_bias: bool, nets: tuple[str, ...]) -> Net:
    """`net` as a method wants it: without its head's bias (heads of more layers are for the method to refuse), or as a
    bundle of copies.
    """
    if not head_bias and isinstance(net.head, nn.Linear):
        net.head.register_parameter("bias", None)
    return Bundle(net, nets) if nets else net
