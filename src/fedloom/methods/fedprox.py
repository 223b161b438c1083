"""FedProx."""

from __future__ import annotations

from pydantic import Field

from fedloom.core import trees
from fedloom.core.records import Record
from fedloom.methods.contract import method
from fedloom.methods.contract.citation import Citation
from fedloom.methods.contract.contexts import ClientContext, Start
from fedloom.methods.contract.losses import cross_entropy
from fedloom.methods.contract.method import register
from fedloom.methods.contract.phases import Batch, Consts, Objective
from fedloom.nets.net import Net


class Options(method.Options):
    """Options of FedProx."""

    mu: float = Field(
        0.01, ge=0, description="Strength of the pull towards the received weights; 0 is FedAvg, bit for bit."
    )


@register
class FedProx(method.Method):
    """FedProx: a proximal pull to the weights received. Li et al., MLSys 2020, arXiv 1812.06127.

    Down, up, server: as FedAvg.   Local: CE + (mu / 2) sum_params |w - w^t|^2 (Eq. 2), parameters only.
    """

    Options = Options
    presets = {  # noqa: RUF012
        "paper": {},
        "authors": {},
        "sound": {},
        "feddw": {"mu": 0.01},
        "fedco2": {"mu": 0.001},
    }
    citation = Citation(
        "Li et al.",
        "MLSys",
        2020,
        "arXiv 1812.06127",
        {"P": 1},
        {"P": 1},
        compared_in=("fedskc", "fedsc", "feddw", "fedco2"),
    )

    def begin(self, payload: Record, state: Record, ctx: ClientContext) -> Start:
        start = super().begin(payload, state, ctx)
        return Start(start.tree, {"received": start.tree})

    def loss(self, net: Net, batch: Batch, consts: Consts) -> Objective:
        ce = batch.mean(cross_entropy(net(batch.x), batch.y))
        proximal = trees.squared_distance(dict(net.named_parameters()), consts["received"])
        return Objective.sum({"ce": ce, "proximal": 0.5 * self.options.mu * proximal})
