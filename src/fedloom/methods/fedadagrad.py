from torch import Tensor

import fedloom.methods as fm
from fedloom.methods.parts import parameters as adaptive


@fm.register
class FedAdagrad(adaptive.FedOpt):
    """FedAdagrad: Adagrad at the server. Reddi et al., ICLR 2021, arXiv 2003.00295, Algorithm 2.

    Server: D = mean_k(w_k - w^t), weighted by samples; m <- beta1 m + (1 - beta1) D; v <- v + D^2; w <- w + eta m /
    (sqrt(v) + tau). m starts at 0, v at tau^2. Buffers are averaged."""

    class Options(adaptive.Options):
        server_lr: float = fm.option(0.1, "eta, the server's step.", gt=0)
        beta1: float = fm.option(0.0, "Share of the last direction in m; 0 in the paper.", ge=0, lt=1)

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        return v + square
