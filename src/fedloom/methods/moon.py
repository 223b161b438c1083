"""MOON."""

from __future__ import annotations

import torch
from pydantic import Field

from fedloom.core.records import Record
from fedloom.methods.contract import method
from fedloom.methods.contract.citation import Citation
from fedloom.methods.contract.contexts import ClientContext, Start, Work
from fedloom.methods.contract.losses import cross_entropy
from fedloom.methods.contract.method import register
from fedloom.methods.contract.phases import Batch, Consts, Objective
from fedloom.methods.contract.spec import Spec
from fedloom.nets.net import Net


class Options(method.Options):
    """Options of MOON."""

    mu: float = Field(5.0, ge=0, description="Weight of the contrast; 0 is FedAvg.")
    tau: float = Field(0.5, gt=0, description="Temperature of the contrast.")


@register
class MOON(method.Method):
    """MOON: features near the received model's, far from the client's last. Li, He, Song, CVPR 2021, arXiv 2103.16257.

    Down, up, server: as FedAvg.   Client state: its model after its last training, before aggregation.
    Local: CE - mu log(e^(cos(z, z_g) / tau) / (e^(cos(z, z_g) / tau) + e^(cos(z, z_p) / tau))) (Eq. 3), z_g and z_p the
    features of the same sample by the received and by the client's last model, in evaluation mode, without gradient.

    A client without a last model trains on CE alone. mu is the paper's for CIFAR-10; it has 1 for CIFAR-100.
    """

    spec = Spec(features=True)
    Options = Options
    citation = Citation(
        "Li, He, Song",
        "CVPR",
        2021,
        "arXiv 2103.16257",
        {"P": 1},
        {"P": 1},
        {"P": 1},
        compared_in=("fedskc", "fedsc", "feddw", "fedco2"),
        code="QinbinLi/MOON at 8fcba3c",
        our_choice="z is the head's input.",
        released_code="The nets put a projection of 256 before the head, here a property of the model.",
    )
    presets = {  # noqa: RUF012
        "paper": {},
        "authors": {"mu": 1.0},
        "sound": {},
        "feddw": {"mu": 5.0},
        "fedco2": {"mu": 1.0},
    }
    settings = {  # noqa: RUF012
        "authors": {
            "optimizer": {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-5},
            "local_epochs": 5,
            "batch_size": 64,
        }
    }

    def begin(self, payload: Record, state: Record, ctx: ClientContext) -> Start:
        start = super().begin(payload, {}, ctx)
        return Start(start.tree, {"received": start.tree} | state)

    def loss(self, net: Net, batch: Batch, consts: Consts) -> Objective:
        z = net.features(batch.x)
        terms = {"ce": batch.mean(cross_entropy(net.head(z), batch.y))}
        if "previous" in consts:
            with torch.no_grad():
                anchors = [net.functional.features(consts[name], batch.x) for name in ("received", "previous")]
            scores = torch.stack([torch.cosine_similarity(z, anchor) for anchor in anchors], 1) / self.options.tau
            terms["contrast"] = self.options.mu * batch.mean(-torch.log_softmax(scores, 1)[:, 0])
        return Objective.sum(terms)

    def end(self, work: Work, state: Record, ctx: ClientContext) -> tuple[Record, Record]:
        payload, _ = super().end(work, {}, ctx)
        return payload, {"previous": work.tree}
