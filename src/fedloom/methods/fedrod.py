"""FedRoD."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor, nn

from fedloom.core.records import Record
from fedloom.methods.contract import method
from fedloom.methods.contract.citation import Citation
from fedloom.methods.contract.contexts import ClientContext, ServerContext, Start
from fedloom.methods.contract.losses import ABSENT, cross_entropy
from fedloom.methods.contract.method import register
from fedloom.methods.contract.phases import Batch, Consts, Objective, Predictor
from fedloom.methods.contract.spec import Spec
from fedloom.nets.deep_copy import deep_copy
from fedloom.nets.net import Net, Role


class Options(method.Options):
    """Options of FedRoD."""

    balanced: bool = Field(True, description="Balanced softmax for the shared head, or plain cross-entropy.")
    gamma: float = Field(
        1.0, ge=0, description="Strength of the balance; at 0 only classes that the client lacks are left out."
    )


@register
class FedRoD(method.Method):
    """FedRoD: a shared head with a class-balanced loss, and a private one on top. Chen & Chao, ICLR 2022,
    arXiv 2107.00778, the linear variant.

    Down, up, server: as FedAvg.   Client state: private head.
    Local: CE(o + gamma log n_c) + CE(sg[o] + private(sg[z])), o the shared head's logits, n_c the client's number of
    samples of class c, sg without gradient. A class that it lacks is left out of the first softmax.

    Predictors: "global" is the shared head, "personal" the sum of both. Preset `fedco2` has plain cross-entropy for
    the shared head, as that paper's code.
    """

    spec = Spec(private=frozenset({Role.EXTRA}), features=True)
    Options = Options
    presets = {"paper": {}, "authors": {}, "sound": {}, "fedco2": {"balanced": False}}  # noqa: RUF012
    citation = Citation(
        "Chen & Chao",
        "ICLR",
        2022,
        "arXiv 2107.00778",
        {"P": 1},
        {"P": 1},
        {"H": 1},
        compared_in=("fedco2",),
        our_choice="The private head starts as the shared one.",
    )

    def extra(self, net: Net) -> nn.Module:
        return deep_copy(net.head)

    def begin(self, payload: Record, state: Record, ctx: ClientContext) -> Start:
        start, counts = super().begin(payload, state, ctx), ctx.class_counts.double()
        offset = torch.where(counts > 0, self.options.gamma * counts.clamp(min=1).log(), ABSENT)
        return Start(start.tree, {"offset": offset})

    def loss(self, net: Net, batch: Batch, consts: Consts) -> Objective:
        z = net.features(batch.x)
        logits = net.head(z)
        balanced = logits + consts["offset"].to(logits.dtype) if self.options.balanced else logits
        return Objective.sum(
            {
                "ce": batch.mean(cross_entropy(balanced, batch.y)),
                "ce_private": batch.mean(cross_entropy(logits.detach() + net.extra(z.detach()), batch.y)),
            }
        )

    def predictors(self, server: Record, state: Record | None, ctx: ServerContext) -> dict[str, Predictor]:
        if state is None:
            first: Record = {"model": self._private(ctx.task.init, ctx.task)}
            return {"global": Predictor(self._joined(server, first, ctx.task))}
        return {"personal": Predictor(self._joined(server, state, ctx.task), both_heads)}


def both_heads(net: Net, x: Tensor) -> Tensor:
    """The sum of the shared and the private head's logits [B, C]."""
    z = net.features(x)
    logits: Tensor = net.head(z) + net.extra(z)
    return logits
