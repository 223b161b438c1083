"""The work of a client as a method describes it: batches, per-sample losses, phases, predictors.

Reduce losses with `batch.mean`, so that padded rows never count."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple, Protocol, TypeAlias

import torch
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass as pydantic_dataclass
from torch import Tensor
from torch.nn import functional

from fedloom.core.trees import Tree
from fedloom.methods.contract.sample_statistics import Statistic
from fedloom.methods.contract.spec import Part
from fedloom.nets.loaded_net import Predictor as Predictor
from fedloom.nets.loaded_net import plain_logits as plain_logits
from fedloom.nets.net import Net, Role

Consts: TypeAlias = dict[str, Any]
Origin: TypeAlias = Literal["own", "received"]
TRAINABLE = frozenset({Role.BODY, Role.HEAD, Role.BN_AFFINE, Role.EXTRA})


class Batch(NamedTuple):
    """Samples of one step: inputs x [B, ...], labels y [B], and in methods with `Spec(views=2)` a `second` augmented
    view. Engines that run clients side by side pad their batches: only rows in `mask` [B] count (None counts all).

    Of samples with several labels y is [B, L]: 1, 0, -1 (not recorded), or `PADDING` in padded rows. Only classes in
    `rivals` [B, C] may repel a sample (None: all)."""

    x: Tensor
    y: Tensor
    mask: Tensor | None = None
    second: Tensor | None = None
    rivals: Tensor | None = None

    def by_label(self, values: Tensor) -> tuple[Tensor, "Batch"]:
        """Return `values` [B, ...] and a batch with one label a row: of several labels [B, L] every sample becomes L
        rows, of which its recorded positives count, and only labels recorded as 0 are their rivals."""
        if self.y.dim() == 1:
            return values, self
        rows, labels = self.y.shape
        repeated, y = values.repeat_interleave(labels, 0), torch.arange(labels, device=self.y.device).repeat(rows)
        return repeated, Batch(repeated, y, (self.y == 1).flatten(), rivals=(self.y == 0).repeat_interleave(labels, 0))

    def mean(self, values: Tensor, among: Tensor | None = None) -> Tensor:
        """Mean of `values` [B, ...] over the rows that count and, if given, are in `among` [B]; 0 if none is."""
        mask = self.mask if among is None else among if self.mask is None else self.mask & among
        if mask is None:
            return values.mean(0)
        mask = mask.view(-1, *(1,) * (values.dim() - 1))
        # not a product with the mask: 0 times the NaN of a padded row is NaN
        counted = torch.where(mask, values, 0.0)
        return counted.sum(0) / mask.sum().clamp(min=1)


class Objective(NamedTuple):
    """The result of a loss. Its parts need not be detached.

    Attributes:
        total: the scalar to minimise [].
        terms: its parts with their weights, for learning curves and the comparison of their gradients; names of
            cross-entropies start with "ce".
        taps: per-sample tensors [B, ...] that a training phase's `collect` refers to by name.
    """

    total: Tensor
    terms: Mapping[str, Tensor] = {}
    taps: Mapping[str, Tensor] = {}

    @staticmethod
    def sum(terms: Mapping[str, Tensor], taps: Mapping[str, Tensor] | None = None) -> "Objective":
        """The objective that is the sum of `terms`, in their order."""
        # without a 0 in front, so that the bits are those of the sum as a method would write it
        first, *others = terms.values()
        return Objective(functools.reduce(Tensor.add, others, first), terms, taps or {})


class LossFunction(Protocol):
    """A pure function: the same code runs in a loop, stacked, and on a node."""

    def __call__(self, net: Net, batch: Batch, consts: Consts) -> Tensor | Objective:
        """Return the scalar to minimise, or an `Objective`, from the `net` with the weights to differentiate, the
        `batch` of the step, and `consts` of the client's round, from `begin` and earlier phases."""


@pydantic_dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class OptimizerSpec:
    """A local optimiser; every training phase creates its own. sgd: g + weight_decay * w, then heavy-ball momentum.
    adam: Kingma & Ba with bias correction, weight decay in the gradient."""

    name: Annotated[
        Literal["sgd", "adam"], Field(description="Optimiser: stochastic gradient descent (sgd) or Adam.")
    ] = "sgd"
    lr: Annotated[float, Field(ge=0, allow_inf_nan=False, description="Learning rate, above 0.")] = 0.01
    momentum: Annotated[
        float, Field(ge=0, lt=1, description="Momentum of sgd, as the share of the last direction that is kept.")
    ] = 0.0
    weight_decay: Annotated[
        float,
        Field(ge=0, allow_inf_nan=False, description="Factor of the weights that are added to their gradient (L2)."),
    ] = 0.0
    betas: Annotated[
        tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]],
        Field(description="Decay rates of Adam's first and second moments."),
    ] = (0.9, 0.999)
    eps: Annotated[
        float, Field(gt=0, allow_inf_nan=False, description="Number that Adam adds to the root of the second moment.")
    ] = 1e-8
    decay: Annotated[
        float, Field(gt=0, le=1, description="Factor of the learning rate after every round; 1 keeps it constant.")
    ] = 1.0

    def lr_in(self, round_: int) -> float:
        """The learning rate of a round; rounds count from 1."""
        # Round 0, the opening one, has the rate of round 1.
        return self.lr * self.decay ** max(0, round_ - 1)


@dataclass(frozen=True, slots=True)
class Train:
    """A training phase: shuffled passes of gradient steps on a loss over the client's training data.

    Attributes:
        loss, epochs: the local objective, and the number of passes.
        trains: roles whose tensors move (batch-norm statistics move whenever the net is in training mode).
        nets: of a bundle, only these nets' tensors; None trains all.
        optimizer: None takes the run's; a mapping gives one to the entry of that name ("extra.scale"), or to those
            whose names begin with a word (a net of a bundle, "extra", "head"), and the others take the run's.
        grad_map: called with (gradients, parameters, consts) before the step; returns the gradients that it takes.
        project: called with (parameters, consts) after the step; returns the parameters that stay.
        ascent: called with (gradients, parameters, consts) in each step; returns moves of parameters. The step is then
            taken with the gradients at the moved parameters, on the same batch and with the same random numbers, to
            which alone `grad_map` and weight decay apply. Terms, taps and batch norm are those before the move.
        refresh: statistics of the whole training set, taken before every epoch; the loss finds them in `consts`.
        collect: statistics of taps, each before its step, over the last epoch, or all epochs if `throughout`.
        evaluates: roles whose modules stay in evaluation mode: no dropout, and statistics of batch norm do not move.
        steps: exactly so many steps, over as many passes as they need, instead of `epochs`.
        share: the part of the data in (0, 1] that a pass takes, drawn for each pass.
        until: asked after every pass, with the mean loss of each pass so far; True ends the phase.
        part: a fixed part of the client's data, instead of all.
        on: "received" trains on the samples that the server sent (`Start.received`), without augmentation.
    """

    loss: LossFunction
    epochs: int = 1
    trains: frozenset[Role] = TRAINABLE
    nets: tuple[str, ...] | None = None
    optimizer: OptimizerSpec | Mapping[str, OptimizerSpec] | None = None
    grad_map: Callable[[Tree, Tree, Consts], Tree] | None = None
    project: Callable[[Tree, Consts], Tree] | None = None
    ascent: Callable[[Tree, Tree, Consts], Tree] | None = None
    refresh: Mapping[str, Statistic] = field(default_factory=dict)
    collect: Mapping[str, Statistic] = field(default_factory=dict)
    throughout: bool = False
    evaluates: frozenset[Role] = frozenset()
    steps: int | None = None
    share: float = 1.0
    until: Callable[[Sequence[float]], bool] | None = None
    part: Part | None = None
    on: Origin = "own"

    def __post_init__(self) -> None:
        if self.epochs < 0 or (self.steps is not None and self.steps < 0):
            raise ValueError(f"Train(epochs={self.epochs}, steps={self.steps}): neither may be negative")
        if not 0 < self.share <= 1:
            raise ValueError(f"Train(share={self.share}): the part of the data must be above 0, and 1 at most")
        _require_one_origin("Train", self.part, self.on)

    def spec_of(self, name: str, default: OptimizerSpec) -> OptimizerSpec:
        """The optimiser of the entry `name`; `default` is the run's."""
        if isinstance(self.optimizer, Mapping):
            return self.optimizer.get(name, self.optimizer.get(name.partition(".")[0], default))
        return self.optimizer or default


@dataclass(frozen=True, slots=True)
class Collect:
    """A statistics pass over the client's training data: evaluation mode, no gradient, no augmentation.
    `Work.collected` and the constants of later phases have the `statistics` by name; `part` is a fixed part of the
    data, and "received" in `on` passes over the samples that the server sent."""

    statistics: Mapping[str, Statistic]
    part: Part | None = None
    on: Origin = "own"

    def __post_init__(self) -> None:
        _require_one_origin("Collect", self.part, self.on)


def _require_one_origin(phase: str, part: Part | None, on: Origin) -> None:
    if part is not None and on != "own":
        raise ValueError(f"{phase}(part=..., on='{on}'): a part is one of the client's own data; leave one of them out")


@dataclass(frozen=True, slots=True)
class Choose:
    """A phase that sets the client's weights by a `rule`, after statistics of its data and before training. The rule is
    called once with (weights, consts), where `consts` has the statistics of earlier `Collect` phases, and returns the
    entries that it sets, buffers too. It runs for each client alone, so it may branch on values: `lambda weights,
    consts: consts["models"][int(consts["losses"].argmin())]`. It draws no random numbers."""

    rule: Callable[[Tree, Consts], Tree]


Phase: TypeAlias = Train | Collect | Choose


# Added to the logit of a class, it leaves the class out of a softmax. No infinity: 0 times it is no NaN.
ABSENT = -1e9


PADDING = -2  # label of padded rows, where samples have several


def padded_labels(labels: Tensor, mask: Tensor | None) -> Tensor:
    """Return labels of padded batches; of several labels [..., B, L], `PADDING` outside of `mask` [..., B]."""
    if mask is None or labels.dim() == mask.dim():
        return labels
    return torch.where(mask.unsqueeze(-1), labels, PADDING)


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Compute -log softmax(logits)[label] of each sample: logits [B, C], labels [B] int64 -> [B].

    Of several labels [B, L] the sum of the binary cross entropies of a sample's recorded labels, times samples over
    recorded labels of the batch: so `Batch.mean` is the mean over the recorded labels, 0 without any. Logits and labels
    [B, L, K] of K predictions each give [B, K]."""
    if labels.dim() < logits.dim():  # [B, K] may also be labels of K predictions each, with logits [B, C, K]
        return functional.cross_entropy(logits, labels, reduction="none")
    recorded, positive = labels >= 0, (labels == 1).to(logits.dtype)
    losses = functional.binary_cross_entropy_with_logits(logits, positive, reduction="none")
    share = (labels[:, 0] != PADDING).sum(0) / recorded.sum((0, 1)).clamp(min=1)
    return torch.where(recorded, losses, 0.0).sum(1) * share


def kl_divergence(teacher: Tensor, student: Tensor, labels: Tensor | None = None) -> Tensor:
    """Compute KL(softmax(teacher) || softmax(student)) of each sample: logits [B, C] -> [B]. Where samples have several
    `labels` [B, L], recorded or not, it is the mean over labels of the KL of two Bernoulli distributions.

    Example:
        >>> teacher, student = torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 0.0]])
        >>> kl_divergence(teacher, student)
        tensor([0.3278])
    """
    if labels is not None and labels.dim() == 2:  # a softmax of each logit and 0
        teacher, student = (torch.stack([logits, torch.zeros_like(logits)], 1) for logits in (teacher, student))
    teacher_logs, student_logs = functional.log_softmax(teacher, dim=1), functional.log_softmax(student, dim=1)
    divergences = (teacher_logs.exp() * (teacher_logs - student_logs)).sum(1)
    return divergences if divergences.dim() == 1 else divergences.mean(1)
