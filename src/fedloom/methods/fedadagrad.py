from dataclasses import replace

from pydantic import Field
from torch import Tensor

import fedloom.methods as fm
from fedloom.methods.parts import parameters as adaptive


@fm.register
class FedAdagrad(adaptive.FedOpt):
    """FedAdagrad: Adagrad at the server. Reddi et al., ICLR 2021, arXiv 2003.00295, Algorithm 2.

    Down, up, local: as FedAvg.
    Server: D = mean_k(w_k - w^t), weighted by samples; m <- beta1 m + (1 - beta1) D; v <- v + D^2;
    w <- w + eta m / (sqrt(v) + tau). m starts at 0, v at tau^2. Buffers are averaged.
    """

    class Options(adaptive.Options):
        server_lr: float = Field(0.1, gt=0, description="eta, the server's step.")
        beta1: float = Field(0.0, ge=0, lt=1, description="Share of the last direction in m; 0 in the paper.")

    citation = replace(
        adaptive.CITATION,
        our_choice="eta is 0.1; the paper searches it for each task.",
        released_code="The authors' runs start v at 0 (preset `authors`).",
    )
    presets = {"paper": {}, "authors": {"v0": 0.0}, "sound": {}}

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        return v + square
