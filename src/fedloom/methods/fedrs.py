"""FedRS."""

from __future__ import annotations

import torch
from pydantic import Field

from fedloom.core.records import Record
from fedloom.methods.contract import method
from fedloom.methods.contract.citation import Citation
from fedloom.methods.contract.contexts import ClientContext, Start
from fedloom.methods.contract.losses import cross_entropy
from fedloom.methods.contract.method import register
from fedloom.methods.contract.phases import Batch, Consts, Objective
from fedloom.nets.net import Net


class Options(method.Options):
    """Options of FedRS."""

    alpha: float = Field(
        0.5, ge=0, description="Factor of the logits of classes that the client lacks. With 1 the method is FedAvg."
    )


@register
class FedRS(method.Method):
    """FedRS: a restricted softmax for classes that a client lacks. Li, Zhan, KDD 2021, 10.1145/3447548.3467254.

    Down, up, server: as FedAvg.
    Local: CE of s_c o_c, s_c = 1 for a class that the client holds and alpha for one that it lacks. So the row of a
    missing class gets alpha times the gradient. Tests take the plain logits.
    """

    Options = Options
    citation = Citation(
        "Li, Zhan",
        "KDD",
        2021,
        "10.1145/3447548.3467254",
        {"P": 1},
        {"P": 1},
        our_choice="The bias of the head is scaled with the rest of the logit. The paper's text was not at hand: alpha "
        "0.5 is that of FedDecorr's repository and of MarsFL.",
    )

    def begin(self, payload: Record, state: Record, ctx: ClientContext) -> Start:
        start = super().begin(payload, state, ctx)
        return Start(start.tree, {"scale": torch.where(ctx.class_counts > 0, 1.0, self.options.alpha)})

    def loss(self, net: Net, batch: Batch, consts: Consts) -> Objective:
        logits = net(batch.x)
        restricted = logits * consts["scale"].to(logits.dtype)
        return Objective.sum({"ce": batch.mean(cross_entropy(restricted, batch.y))})
