"""The client of methods in which features are pulled to the global prototype of their class: FedProto and others."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from fedloom.core.records import Record, get_table
from fedloom.core.tables import ClassTable
from fedloom.methods.contract.contexts import ClientContext, Diagnostic, ServerContext, Start, Task, Work
from fedloom.methods.contract.heads import require_same_width
from fedloom.methods.contract.losses import cross_entropy
from fedloom.methods.contract.method import Method
from fedloom.methods.contract.phases import Batch, Collect, Consts, Objective, Phase, Predictor, Train
from fedloom.methods.contract.sample_statistics import ClassMeans
from fedloom.methods.contract.spec import Sent, Spec
from fedloom.methods.parts.measures import features
from fedloom.nets.net import Net
from fedloom.nets.roles import ALL_ROLES

UNKNOWN = -1e6  # the score of a class without a prototype: finite, so that losses stay so


class PrototypePull(Method):
    """Private nets of any kind with features of one width. Down and up: a table [C, d] of prototypes.

    Local: CE + weight mean over the batch of `distance`, |z - row_y|^2 / d unless a method has its own, and 0 for
    samples whose class has no row; then the class means of z, in evaluation mode. Options have `weight`. Predictors:
    the net's own head, and "nearest" prototype.
    """

    spec = Spec(private=ALL_ROLES, architectures="any", sends={"prototypes": Sent(labels=True)})

    def examine(self, tasks: Sequence[Task], participants: int) -> list[Diagnostic]:
        require_same_width(tasks, self.name())
        return super().examine(tasks, participants)

    def server_init(self, ctx: ServerContext) -> Record:
        classes, width = ctx.task.num_classes, ctx.task.feature_dim
        return {"prototypes": ClassTable(torch.zeros(classes, width), torch.zeros(classes, dtype=torch.bool))}

    def down(self, server: Record, client: int, ctx: ServerContext) -> Record:
        return {"prototypes": server["prototypes"]}

    def begin(self, payload: Record, state: Record, ctx: ClientContext) -> Start:
        table = get_table(payload, "prototypes")
        return Start(super().begin(payload, state, ctx).tree, {"rows": table.values, "known": table.held})

    def phases(self, start: Start, ctx: ClientContext) -> list[Phase]:
        return [Train(self.loss, ctx.task.local_epochs), Collect({"prototypes": ClassMeans(features)})]

    def loss(self, net: Net, batch: Batch, consts: Consts) -> Objective:
        z = net.features(batch.x)
        ce = batch.mean(cross_entropy(net.head(z), batch.y))
        distance = self.distance(z, consts["rows"][batch.y])
        pull = batch.mean(torch.where(consts["known"][batch.y], distance, 0.0))
        return Objective.sum({"ce": ce, "prototypes": self.options.weight * pull}, {"features": z})

    def distance(self, z: Tensor, rows: Tensor) -> Tensor:
        """Return how far features are from the prototypes of their classes: z [B, d], rows [B, d] -> [B]."""
        return (z - rows).square().mean(1)

    def end(self, work: Work, state: Record, ctx: ClientContext) -> tuple[Record, Record]:
        return {"prototypes": work.collected["prototypes"]}, {"model": work.tree}

    def predictors(self, server: Record, state: Record | None, ctx: ServerContext) -> dict[str, Predictor]:
        offered = super().predictors(server, state, ctx)
        by_distance = functools.partial(nearest, table=self.tested_with(server, state))
        for own_head in list(offered.values()):
            offered["nearest"] = Predictor(own_head.tree, by_distance)
        return offered

    def tested_with(self, server: Record, state: Record | None) -> ClassTable:
        """Return the prototypes [C, d] among which "nearest" chooses.

        Args:
            server: the server's state.
            state: the client's state; None for the server's own test.
        """
        return get_table(server, "prototypes")


def nearest(net: Net, x: Tensor, table: ClassTable) -> Tensor:
    """Scores [B, C]: minus the squared distance of the features of x to each prototype of `table` [C, d]."""
    z = net.features(x)
    distance = (z.unsqueeze(1) - table.values.to(z)).square().sum(2)
    return torch.where(table.held.to(z.device), -distance, UNKNOWN)
