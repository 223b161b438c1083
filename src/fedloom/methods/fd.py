"""FD."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch.nn.functional import log_softmax

from fedloom.core.records import Record, get_table, get_tensor
from fedloom.core.tables import ClassTable
from fedloom.methods.contract import method
from fedloom.methods.contract.citation import Citation
from fedloom.methods.contract.contexts import ClientContext, ServerContext, Start, Work
from fedloom.methods.contract.losses import cross_entropy
from fedloom.methods.contract.method import Method, Uploads, register
from fedloom.methods.contract.phases import Batch, Collect, Consts, Objective, Phase, Train
from fedloom.methods.contract.sample_statistics import ClassMeans
from fedloom.methods.contract.spec import Sent, Spec
from fedloom.methods.parts.measures import probabilities
from fedloom.nets.net import ALL_ROLES, Net


class Options(method.Options):
    """Options of FD."""

    gamma: float = Field(
        1.0,
        ge=0,
        description="Weight of the distillation term; 0 is local training (no source states a value: 1 is our choice).",
    )
    outputs_from: Literal["after_training", "training", "last_epoch"] = Field(
        "after_training",
        description="Where class means of outputs come from: a pass after training, or the training's own forward "
        "passes before each step, of all epochs (training) or of the last one (last_epoch).",
    )


@register
class FD(Method):
    """FD, federated distillation: class means of outputs travel in place of weights. Jeong et al., NeurIPS workshop
    2018, arXiv 1811.11479.

    Down: for each class the mean row of the *other* holders of the last round, [C, C] and mask.
    Up: class means of the own softmax outputs, [C, C] and mask (Algorithm 1; a "logit" there is normalised).
    Local: CE + gamma CE(row_y, p), a batch mean; samples whose class nobody else held add 0.
    Nets are private and may differ. The paper takes means while it trains: `outputs_from=training`.
    """

    spec = Spec(private=ALL_ROLES, architectures="any", sends={"outputs": Sent(per_client=True, labels=True)})
    Options = Options
    presets = {  # noqa: RUF012
        "paper": {"outputs_from": "training"},
        "authors": {"outputs_from": "training"},
        "sound": {},
    }
    citation = Citation(
        "Jeong et al.",
        "NeurIPS workshop",
        2018,
        "arXiv 1811.11479",
        {"CC": 1, "mask": 1},
        {"CC": 1, "mask": 1},
        {"P": 1},
        compared_in=("fedssa",),
    )

    # -- server ----------------------------------------------------------------------------------------------
    def server_init(self, ctx: ServerContext) -> Record:
        classes = ctx.task.num_classes
        nothing = ClassTable(torch.zeros(0, classes, classes), torch.zeros(0, classes, dtype=torch.bool))
        return {"outputs": nothing, "senders": torch.zeros(0, dtype=torch.int64)}

    def down(self, server: Record, client: int, ctx: ServerContext) -> Record:
        tables, others = get_table(server, "outputs"), get_tensor(server, "senders") != client
        foreign_outputs = ClassTable(tables.values[others].double(), tables.held[others])
        return {"targets": foreign_outputs.mean_over_clients().to(torch.float32)}

    def aggregate(self, server: Record, uploads: Uploads, ctx: ServerContext) -> Record:
        tables = [get_table(upload, "outputs") for upload in uploads.values()]
        return {"outputs": ClassTable.stack(tables), "senders": torch.tensor(list(uploads))}

    # -- client ----------------------------------------------------------------------------------------------
    def begin(self, payload: Record, state: Record, ctx: ClientContext) -> Start:
        targets = get_table(payload, "targets")
        return Start(super().begin(payload, state, ctx).tree, {"rows": targets.values, "known": targets.held})

    def phases(self, start: Start, ctx: ClientContext) -> list[Phase]:
        if self.options.outputs_from != "after_training":
            all_epochs, means = self.options.outputs_from == "training", {"outputs": ClassMeans("outputs")}
            return [Train(self.loss, ctx.task.local_epochs, collect=means, throughout=all_epochs)]
        return [Train(self.loss, ctx.task.local_epochs), Collect({"outputs": ClassMeans(probabilities)})]

    def loss(self, net: Net, batch: Batch, consts: Consts) -> Objective:
        logits = net(batch.x)
        ce = batch.mean(cross_entropy(logits, batch.y))
        log_probabilities = log_softmax(logits, dim=1)
        distance = -(consts["rows"][batch.y] * log_probabilities).sum(1)
        taught = batch.mean(torch.where(consts["known"][batch.y], distance, 0.0))
        return Objective.sum(
            {"ce": ce, "distillation": self.options.gamma * taught}, {"outputs": log_probabilities.exp()}
        )

    def end(self, work: Work, state: Record, ctx: ClientContext) -> tuple[Record, Record]:
        return {"outputs": work.collected["outputs"]}, {"model": work.tree}
