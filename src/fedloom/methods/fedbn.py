"""FedBN."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from pydantic import BaseModel, Field

from fedloom.core.records import Record
from fedloom.methods.contract import method
from fedloom.methods.contract.citation import Citation
from fedloom.methods.contract.contexts import ServerContext
from fedloom.methods.contract.method import Method, Uploads, register
from fedloom.methods.contract.spec import Spec
from fedloom.nets.net import BN_ROLES, Role


class Options(method.Options):
    """Options of FedBN."""

    weights: Literal["uniform", "samples"] = Field(
        "uniform", description="Weights of clients in the mean: all alike, or by samples."
    )
    bn_stats: Literal["personal", "shared"] = Field(
        "personal",
        description="Personal: running means and variances stay with the client. Shared: they are averaged and only "
        "scale and shift stay (the label-skew code of Fed-CO2).",
    )


@register
class FedBN(Method):
    """FedBN: batch norm stays with the client. Li et al., ICLR 2021, arXiv 2102.07623.

    Down: weights outside batch norm.   Up: the same, number of samples.
    A client keeps scale, shift, running mean and variance of every batch-norm layer; all else is averaged with equal
    weights (Algorithm 1). Clients that never took part are tested with the first batch-norm state.
    """

    spec = Spec(private=BN_ROLES)
    Options = Options
    citation = Citation(
        "Li et al.",
        "ICLR",
        2021,
        "arXiv 2102.07623",
        {"P": 1, "BN": -1},
        {"P": 1, "BN": -1},
        {"BN": 1},
        compared_in=("fedco2",),
    )

    def __init__(self, options: BaseModel | None = None) -> None:
        super().__init__(options)
        self.spec = replace(self.spec, private=bn_roles(self.options.bn_stats))

    def aggregate(self, server: Record, uploads: Uploads, ctx: ServerContext) -> Record:
        return {"model": self.mean(uploads, weights=self.options.weights)}


def bn_roles(statistics: Literal["personal", "shared"]) -> frozenset[Role]:
    """The roles of batch norm that stay with the client."""
    return BN_ROLES if statistics == "personal" else frozenset({Role.BN_AFFINE})
