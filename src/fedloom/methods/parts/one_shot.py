"""FedAvg whose head is replaced at the end by one that a single round makes from class statistics of features.

The published methods put such heads on pre-trained bodies. Here the rounds before train the body as FedAvg does, to
the bit, so that methods that differ in their head alone can be compared; a pre-trained body is left as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Literal

import torch
from pydantic import BaseModel, Field
from torch import Tensor

from fedloom.core.errors import ConfigError
from fedloom.core.records import Record, get_number, get_tensor, get_tree
from fedloom.core.tables import ClassTable
from fedloom.core.trees import Tree
from fedloom.methods.contract import method
from fedloom.methods.contract.contexts import ClientContext, Diagnostic, ServerContext, Start, Task, Work
from fedloom.methods.contract.heads import require_linear_head
from fedloom.methods.contract.method import Method, Uploads
from fedloom.methods.contract.phases import Batch, Collect, Consts, Phase, Predictor, Train
from fedloom.methods.contract.sample_statistics import ClassMeans, Moments, unit_rows
from fedloom.methods.contract.spec import Sent, Spec
from fedloom.methods.parts.measures import features
from fedloom.methods.parts.prototype_pull import UNKNOWN
from fedloom.nets.net import Net


class OneShotOptions(method.Options):
    """Options of methods that make the head in one round."""

    body: Literal["fedavg", "first"] = Field(
        "fedavg",
        description="The body below the head: trained as FedAvg in the rounds before, or the first weights as they "
        "are, for a model that comes pre-trained; then the rounds before do nothing.",
    )


class OneShotHead(Method):
    """The rounds before the head: FedAvg, or nothing."""

    Options = OneShotOptions
    spec = Spec(features=True)
    head_round: ClassVar[type[HeadRound]]
    needs_bias: ClassVar[bool] = False

    def __init__(self, options: BaseModel | None = None) -> None:
        super().__init__(options)
        if self.options.body == "first":
            self.spec = replace(self.spec, sends={})

    def examine(self, tasks: Sequence[Task], participants: int) -> list[Diagnostic]:
        diagnostics, task = super().examine(tasks, participants), tasks[0]
        require_linear_head(task, self.name())
        if self.needs_bias and "head.bias" not in task.init:
            raise ConfigError(f"{self.name()} needs a head with a bias, which has the shares of the classes in it")
        return diagnostics

    def down(self, server: Record, client: int, ctx: ServerContext) -> Record:
        return {} if self.options.body == "first" else super().down(server, client, ctx)

    def begin(self, payload: Record, state: Record, ctx: ClientContext) -> Start:
        return Start(ctx.task.init, {}) if self.options.body == "first" else super().begin(payload, state, ctx)

    def phases(self, start: Start, ctx: ClientContext) -> list[Phase]:
        return [Train(self.loss, steps=0)] if self.options.body == "first" else super().phases(start, ctx)

    def end(self, work: Work, state: Record, ctx: ClientContext) -> tuple[Record, Record]:
        upload, state = super().end(work, state, ctx)
        return ({"samples": ctx.samples} if self.options.body == "first" else upload), state

    def aggregate(self, server: Record, uploads: Uploads, ctx: ServerContext) -> Record:
        return server if self.options.body == "first" else super().aggregate(server, uploads, ctx)

    def predictors(self, server: Record, state: Record | None, ctx: ServerContext) -> dict[str, Predictor]:
        offered = super().predictors(server, state, ctx)
        head = get_tree(server, "head") if "head" in server else {}
        return {kind: replace(predictor, tree=predictor.tree | head) for kind, predictor in offered.items()}

    def closing(self) -> Method:
        return self.head_round(self.options)


class HeadRound(Method):
    """The closing round: all clients with data send statistics of the features, and the server makes the head."""

    Options = OneShotOptions
    method_name: ClassVar[str]

    @classmethod
    def name(cls) -> str:
        return cls.method_name

    def aggregate(self, server: Record, uploads: Uploads, ctx: ServerContext) -> Record:
        model, (rows, bias) = get_tree(server, "model"), self.head(uploads)
        if not rows.isfinite().all():  # the run diverged: there is nothing to make a head of
            return server
        made = {"head.weight": rows} | ({"head.bias": bias} if "head.bias" in model else {})
        # beside the trained model and not in its place, since a node that leads elsewhere is known by far steps
        return server | {"head": {name: value.to(model[name].dtype) for name, value in made.items()}}

    def head(self, uploads: Uploads) -> tuple[Tensor, Tensor]:
        """Return the head's rows [C, d] and its bias [C], float64.

        Args:
            uploads: the clients' statistics.
        """
        raise NotImplementedError


class SumsRound(HeadRound):
    """A head from sums over all samples, of which the server needs no single client's."""

    spec = Spec(
        features=True,
        sends={name: Sent(labels=True) for name in ("squares", "class_sums", "class_shares")},
    )

    def phases(self, start: Start, ctx: ClientContext) -> list[Phase]:
        return [Collect({"moments": Moments(features_and_label)})]

    def end(self, work: Work, state: Record, ctx: ClientContext) -> tuple[Record, Record]:
        moments: Tree = work.collected["moments"]
        outer, width = moments["outer"] / moments["count"].clamp(min=1), ctx.task.feature_dim
        sent: Record = {
            "squares": outer[:width, :width].contiguous(),
            "class_sums": outer[width:, :width].contiguous(),
            "class_shares": outer.diagonal()[width:].contiguous(),
        }
        return sent | {"samples": ctx.samples}, state

    def means(self, uploads: Uploads) -> tuple[ClassTable, Tensor, Tensor, float]:
        """Return means over all N samples in float64: z by class [C, d], class shares [C], z z^T [d, d]; and N.

        Args:
            uploads: the clients' statistics.
        """
        squares, class_sums, shares = (self.mean(uploads, name) for name in self.spec.sends)
        samples = sum(get_number(upload, "samples") for upload in uploads.values())
        return ClassTable.from_sums(class_sums, shares), shares, squares, samples


class MeansRound(HeadRound):
    """A head from the clients' class means and class counts."""

    spec = Spec(
        features=True,
        sends={"means": Sent(per_client=True, labels=True), "class_counts": Sent(per_client=True, labels=True)},
    )

    def phases(self, start: Start, ctx: ClientContext) -> list[Phase]:
        return [Collect({"means": ClassMeans(features)})]

    def end(self, work: Work, state: Record, ctx: ClientContext) -> tuple[Record, Record]:
        return {**work.collected, "class_counts": ctx.class_counts}, state

    def class_means(self, uploads: Uploads) -> tuple[ClassTable, Tensor]:
        """Return the means [C, d] over all samples of each class, float64, and the clients' class counts [m, C].

        Args:
            uploads: the clients' statistics.
        """
        counts = torch.stack([get_tensor(upload, "class_counts") for upload in uploads.values()]).double()
        means: ClassTable = self.mean(uploads, "means", counts)
        return means, counts


def features_and_label(net: Net, batch: Batch, consts: Consts) -> Tensor:
    """Return the head's input and the label as a unit vector [B, d + C], whose outer products hold all class sums.

    Args:
        net: the net in evaluation mode.
        batch: its inputs and labels are read.
        consts: not used.
    """
    labels = unit_rows(batch.y, net.head.out_features)
    return torch.cat([net.features(batch.x).double(), labels], 1)


def masking_bias(held: Tensor) -> Tensor:
    """The bias [C] of a head whose rows need none: 0, and `UNKNOWN` for classes that nobody holds."""
    return torch.where(held, 0.0, UNKNOWN).double()
