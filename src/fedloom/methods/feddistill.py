"""FedDistill+."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field

from fedloom.core.records import Record, get_table, get_tensor
from fedloom.methods.contract import method
from fedloom.methods.contract.citation import Citation
from fedloom.methods.contract.contexts import ClientContext, ServerContext, Start, Work
from fedloom.methods.contract.losses import cross_entropy
from fedloom.methods.contract.method import Method, Uploads, register
from fedloom.methods.contract.phases import Batch, Collect, Consts, Objective, Phase
from fedloom.methods.contract.sample_statistics import ClassMeans
from fedloom.methods.contract.spec import Sent, Spec
from fedloom.methods.parts.consistency import identity_labels, next_soft_labels
from fedloom.methods.parts.measures import probabilities
from fedloom.nets.net import Net


class Options(method.Options):
    """Options of FedDistill."""

    weight: float = Field(1.0, ge=0, description="Weight of the distillation term; 0 is FedAvg.")
    ema: float = Field(0.5, gt=0, le=1, description="Share of the round's rows in the next ones.")
    compares: Literal["log_probabilities", "probabilities"] = Field(
        "log_probabilities",
        description="KL against the log of the outputs, or against the outputs themselves, as FedDW's code does by "
        "mistake.",
    )


@register
class FedDistill(Method):
    """FedDistill+: FedAvg, with class means of outputs as soft labels beside it. After FD (Jeong et al., NeurIPS
    workshop 2018, arXiv 1811.11479), as FedDW compares with it (2412.04521, Table IV).

    Down: weights; soft labels Q [C, C].   Up: weights, samples; class means of softmax outputs and mask; class counts.
    Local: CE + KL(Q_y || p).   Server: weights as FedAvg; Q <- ema fresh + (1 - ema) Q, in which a fresh row is the
    mean of all outputs of the class in this round, and e_c where nobody held class c. Q starts as the identity.
    No paper defines it: rules and values are those of FedDW's code, but for its mistakes (see the method's page).
    """

    spec = Spec(
        sends={
            "model": Sent(),
            "outputs": Sent(labels=True),
            "class_counts": Sent(per_client=True, labels=True),
        }
    )
    Options = Options
    presets = {  # noqa: RUF012
        "paper": {},
        "authors": {"compares": "probabilities"},
        "sound": {},
        "feddw": {"compares": "probabilities"},
    }
    citation = Citation(
        "Jeong et al.",
        "NeurIPS workshop",
        2018,
        "arXiv 1811.11479",
        {"P": 1, "CC": 1, "mask": 1},
        {"P": 1, "CC": 1, "mask": 1, "counts": 1},
        compared_in=("feddw",),
        code="liuvvvvv1/FedDW at 6eacde6",
    )

    # -- server ----------------------------------------------------------------------------------------------
    def server_init(self, ctx: ServerContext) -> Record:
        return super().server_init(ctx) | {"soft_labels": identity_labels(ctx.task.num_classes)}

    def down(self, server: Record, client: int, ctx: ServerContext) -> Record:
        return server

    def aggregate(self, server: Record, uploads: Uploads, ctx: ServerContext) -> Record:
        counts = torch.stack([get_tensor(upload, "class_counts") for upload in uploads.values()])
        fresh = self.mean(uploads, "outputs", counts)
        labels = next_soft_labels(fresh, get_table(server, "soft_labels"), "eye", self.options.ema)
        return super().aggregate(server, uploads, ctx) | {"soft_labels": labels.to(torch.float32)}

    # -- client ----------------------------------------------------------------------------------------------
    def begin(self, payload: Record, state: Record, ctx: ClientContext) -> Start:
        start = super().begin(payload, state, ctx)
        return Start(start.tree, {"soft_labels": get_table(payload, "soft_labels").values})

    def phases(self, start: Start, ctx: ClientContext) -> list[Phase]:
        return [*super().phases(start, ctx), Collect({"outputs": ClassMeans(probabilities)})]

    def loss(self, net: Net, batch: Batch, consts: Consts) -> Objective:
        logits, taught = net(batch.x), consts["soft_labels"][batch.y]
        log_probabilities = torch.log_softmax(logits, dim=1)
        if self.options.compares == "probabilities":
            log_probabilities = log_probabilities.exp()
        divergence = (torch.xlogy(taught, taught) - taught * log_probabilities).sum(1)
        ce = batch.mean(cross_entropy(logits, batch.y))
        return Objective.sum({"ce": ce, "distillation": self.options.weight * batch.mean(divergence)})

    def end(self, work: Work, state: Record, ctx: ClientContext) -> tuple[Record, Record]:
        payload, state = super().end(work, state, ctx)
        return payload | {"outputs": work.collected["outputs"], "class_counts": ctx.class_counts}, state
