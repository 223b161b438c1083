"""A predictor: weights with the rule by which they predict, which methods offer and protocols test."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

from torch import Tensor

from fedloom.core.trees import Tree
from fedloom.nets.net import Net


def plain_logits(net: Net, x: Tensor) -> Tensor:
    """Return the net's own output [B, C]."""
    return cast(Tensor, net(x))


@dataclass(frozen=True, slots=True)
class Predictor:
    """Weights and how to predict with them.

    Attributes:
        tree: the weights that the net holds.
        logits: maps (net, x) to class scores [B, C].
        consts: what the phases of `Method.adapt` find in their `consts`.
        labels_only: whether the highest entry of a row names the class and nothing more, as with votes, so that no
            metric of scores is defined.
    """

    tree: Tree
    logits: Callable[[Net, Tensor], Tensor] = plain_logits
    consts: dict[str, Any] = field(default_factory=dict)
    labels_only: bool = False
