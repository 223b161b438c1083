"""FedLC."""

from __future__ import annotations

import torch
from pydantic import Field

from fedloom.core.records import Record
from fedloom.methods.contract import method
from fedloom.methods.contract.citation import Citation
from fedloom.methods.contract.contexts import ClientContext, Start
from fedloom.methods.contract.losses import ABSENT, cross_entropy
from fedloom.methods.contract.method import register
from fedloom.methods.contract.phases import Batch, Consts, Objective
from fedloom.nets.net import Net


class Options(method.Options):
    """Options of FedLC."""

    tau: float = Field(
        1.0, ge=0, description="Strength of the calibration; 0 only leaves out classes that the client lacks."
    )


@register
class FedLC(method.Method):
    """FedLC: logits calibrated by the client's own class counts. Zhang et al., ICML 2022, arXiv 2209.00189.

    Down, up, server: as FedAvg.
    Local: CE of o_c - tau n_c^(-1/4), n_c the client's number of samples of class c. A class that it lacks is left out
    of the softmax. Another method of this name (Wang et al., ISPA 2022) is not this one.
    """

    Options = Options
    citation = Citation("Zhang et al.", "ICML", 2022, "arXiv 2209.00189", {"P": 1}, {"P": 1})

    def begin(self, payload: Record, state: Record, ctx: ClientContext) -> Start:
        start, counts = super().begin(payload, state, ctx), ctx.class_counts.double()
        offset = torch.where(counts > 0, -self.options.tau * counts.clamp(min=1) ** -0.25, ABSENT)
        return Start(start.tree, {"offset": offset})

    def loss(self, net: Net, batch: Batch, consts: Consts) -> Objective:
        logits = net(batch.x)
        calibrated = logits + consts["offset"].to(logits.dtype)
        return Objective.sum({"ce": batch.mean(cross_entropy(calibrated, batch.y))})
