from dataclasses import replace
from typing import Literal

import fedloom.methods as fm


@fm.register
class FedBN(fm.Method):
    """FedBN: batch norm stays with the client. Li et al., ICLR 2021, arXiv 2102.07623, Algorithm 1.

    A client keeps scale, shift, running mean and variance of every batch-norm layer; the rest is averaged with equal
    weights. Clients that never took part are tested with the first batch-norm state."""

    spec = fm.Spec(private=fm.BN_ROLES, labels="multi")

    class Options(fm.Options):
        weights: Literal["uniform", "samples"] = fm.option(
            "uniform", "Weights of clients in the mean: equal, or by samples."
        )
        bn_stats: Literal["personal", "shared"] = fm.option(
            "personal",
            "Personal: running means and variances stay with the client. Shared: they are averaged and only scale and "
            "shift stay (the label-skew code of Fed-CO2).",
        )

    def __init__(self, options: fm.Options | None = None) -> None:
        super().__init__(options)
        self.spec = replace(self.spec, private=bn_roles(self.options.bn_stats))

    def aggregate(self, server: fm.Record, uploads: fm.Uploads, ctx: fm.ServerContext) -> fm.Record:
        return {"model": self.mean(uploads, weights=self.options.weights)}


def bn_roles(statistics: Literal["personal", "shared"]) -> frozenset[fm.Role]:
    """The roles of batch norm that stay with the client."""
    return fm.BN_ROLES if statistics == "personal" else frozenset({fm.Role.BN_AFFINE})
