"""The words in which a method says what a client does: batches, losses, statistics, phases, predictors."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from fedloom.core.tables import ClassTable
from fedloom.core.trees import Tree
from fedloom.nets.net import Net
from fedloom.nets.roles import Role

Consts: TypeAlias = dict[str, Any]
TRAINABLE = frozenset({Role.BODY, Role.HEAD, Role.BN_AFFINE})


class Batch(NamedTuple):
    """`x` [B, ...] inputs, `y` [B] int64 labels, `mask` [B] bool (None = every row counts).

    Engines that run clients side by side pad their batches; padded rows have `mask` False and must not count.
    """

    x: Tensor
    y: Tensor
    mask: Tensor | None = None

    def mean(self, values: Tensor, among: Tensor | None = None) -> Tensor:
        """Mean of `values` [B, ...] over the rows that count and, if given, are in `among` [B]; 0 if none is."""
        mask = self.mask if among is None else among if self.mask is None else self.mask & among
        if mask is None:
            return values.mean(0)
        mask = mask.view(-1, *(1,) * (values.dim() - 1))
        kept = torch.where(mask, values, 0.0)
        return kept.sum(0) / mask.sum().clamp(min=1)


class Objective(NamedTuple):
    """What a loss may return beside the scalar to minimise.

    `terms`: its parts as they enter the total, weights included, for learning curves and for the comparison of
    their gradients; cross-entropies have names that start with "ce". `taps`: per-sample tensors [B, ...] that a
    training phase's `collect` refers to by name. Neither needs to be detached.
    """

    total: Tensor
    terms: Mapping[str, Tensor] = {}
    taps: Mapping[str, Tensor] = {}

    @staticmethod
    def sum(terms: Mapping[str, Tensor], taps: Mapping[str, Tensor] | None = None) -> Objective:
        """The objective that is the sum of `terms`, in their order."""
        first, *others = terms.values()
        return Objective(functools.reduce(Tensor.add, others, first), terms, taps or {})


class LossFunction(Protocol):
    """Pure: (net, batch, constants) -> scalar. The same code runs in a loop, stacked, and on a node."""

    def __call__(self, net: Net, batch: Batch, consts: Consts) -> Tensor | Objective: ...


Measure: TypeAlias = Callable[[Net, Batch, Consts], Tensor]


@dataclass(frozen=True, slots=True)
class ClassMeans:
    """Statistic: mean over the samples of each class. `of` gives [B, d]; the result is a ClassTable [C, d], float32.

    `of` is a function in a `Collect` phase, the name of a tap in a `Train` phase. Sums are float64.
    """

    of: Measure | str

    def add(self, sums: Tree, values: Tensor, batch: Batch, num_classes: int) -> Tree:
        rows = one_hot(batch.y, num_classes).double()
        if batch.mask is not None:
            rows = rows * batch.mask.unsqueeze(-1)
        fresh = {"sums": rows.T @ values.double(), "counts": rows.sum(0)}
        return {name: sums[name] + fresh[name] for name in fresh} if sums else fresh

    def result(self, sums: Tree) -> ClassTable:
        return ClassTable.from_sums(sums["sums"], sums["counts"]).to(torch.float32)


@dataclass(frozen=True, slots=True)
class SampleMean:
    """Statistic: mean over all samples. `of` gives [B, ...]; the result is a tensor [...], float32."""

    of: Measure | str

    def add(self, sums: Tree, values: Tensor, batch: Batch, num_classes: int) -> Tree:
        count = torch.tensor(float(len(values))) if batch.mask is None else batch.mask.sum()
        fresh = {"sums": batch.mean(values.double()) * count, "counts": count}
        return {name: sums[name] + fresh[name] for name in fresh} if sums else fresh

    def result(self, sums: Tree) -> Tensor:
        return (sums["sums"] / sums["counts"].clamp(min=1)).float()


Statistic: TypeAlias = ClassMeans | SampleMean


@dataclass(frozen=True, slots=True)
class OptimizerSpec:
    """A local optimiser, made afresh for every training phase.

    sgd: g + weight_decay * w, then heavy-ball momentum. adam: Kingma & Ba with bias correction; weight decay
    is added to the gradient.
    """

    name: Literal["sgd", "adam"] = "sgd"
    lr: float = 0.01
    momentum: float = 0.0
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8


@dataclass(frozen=True, slots=True)
class Train:
    """A training phase: `epochs` shuffled passes of gradient steps on `loss` over the client's training data.

    trains: roles whose tensors move (batch-norm statistics move whenever the net is in training mode); nets: of a
    bundle, only these nets' tensors (None: all).
    optimizer: None takes the run's. grad_map(gradients, parameters, consts): changes gradients before the step;
    project(parameters, consts): changes parameters after it, both by name.
    refresh: statistics of the whole training set, taken in evaluation mode before every epoch; the loss finds them
    in `consts`. collect: statistics of taps, gathered over the last epoch, each before its step.
    """

    loss: LossFunction
    epochs: int
    trains: frozenset[Role] = TRAINABLE
    nets: tuple[str, ...] | None = None
    optimizer: OptimizerSpec | None = None
    grad_map: Callable[[Tree, Tree, Consts], Tree] | None = None
    project: Callable[[Tree, Consts], Tree] | None = None
    refresh: Mapping[str, Statistic] = field(default_factory=dict)
    collect: Mapping[str, Statistic] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Collect:
    """A statistics pass over the client's training data: evaluation mode, no gradient, no augmentation."""

    statistics: Mapping[str, Statistic]


Phase: TypeAlias = Train | Collect


def plain_logits(net: Net, x: Tensor) -> Tensor:
    """The net's own output [B, C]."""
    logits: Tensor = net(x)
    return logits


@dataclass(frozen=True, slots=True)
class Predictor:
    """Weights and how to predict with them: `logits(net, x)` -> [B, C], the net holding `tree`."""

    tree: Tree
    logits: Callable[[Net, Tensor], Tensor] = plain_logits
