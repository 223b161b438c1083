"""FedOpt: what FedAdagrad, FedAdam and FedYogi share. Reddi et al., ICLR 2021, arXiv 2003.00295, Algorithm 2."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from pydantic import Field
from torch import Tensor

from fedloom.core.records import Record, get_tree
from fedloom.core.trees import combine
from fedloom.methods.contract import method
from fedloom.methods.contract.citation import Citation
from fedloom.methods.contract.contexts import ServerContext
from fedloom.methods.contract.method import Uploads
from fedloom.methods.parts.parameters import parameters, zeros

CITATION = Citation(
    "Reddi et al.",
    "ICLR",
    2021,
    "arXiv 2003.00295",
    {"P": 1},
    {"P": 1},
    compared_in=("fedskc",),
    code="google-research/federated at a5af8c4",
)


class Options(method.Options):
    """Options that all adaptive server optimisers share."""

    server_lr: float = Field(0.01, gt=0, description="eta, the server's step.")
    beta1: float = Field(0.9, ge=0, lt=1, description="Share of the last direction in m.")
    tau: float = Field(1e-3, gt=0, le=1e6, description="Degree of adaptivity, added to sqrt(v).")
    v0: float | None = Field(None, ge=0, description="First v. Null is tau squared.")


class FedOpt(method.Method, ABC):
    """The mean change of the clients is a pseudo-gradient for an optimiser of the server, with a v for each parameter.

    Buffers are averaged: v knows parameters alone.
    """

    Options = Options

    @abstractmethod
    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        """The next v from the last one and the squared mean change, one for each entry, float64."""

    def scale(self, round_: int) -> float:
        """Return the factor of the server's rate in a round."""
        return 1.0

    def server_init(self, ctx: ServerContext) -> Record:
        options = self.options
        first_v = options.tau**2 if options.v0 is None else options.v0
        v = {name: torch.full_like(value, first_v) for name, value in zeros(ctx.task).items()}
        return super().server_init(ctx) | {"m": zeros(ctx.task), "v": v}

    def aggregate(self, server: Record, uploads: Uploads, ctx: ServerContext) -> Record:
        options, mean = self.options, self.mean(uploads)
        old_parameters = parameters(get_tree(server, "model"), ctx.task)
        change = combine([parameters(mean, ctx.task), old_parameters], [1, -1])
        m = combine([get_tree(server, "m"), change], [options.beta1, 1 - options.beta1])
        v = {
            name: self.second_moment(last.double(), change[name].double().square()).to(last.dtype)
            for name, last in get_tree(server, "v").items()
        }
        step = {name: m[name].double() / (v[name].double().sqrt() + options.tau) for name in m}
        rate = options.server_lr * self.scale(ctx.round)
        moved = {name: (value.double() + rate * step[name]).to(value.dtype) for name, value in old_parameters.items()}
        return {"model": mean | moved, "m": m, "v": v}
