from torch import Tensor

import fedloom.methods as fm
from fedloom.methods.parts import parameters as adaptive


@fm.register
class FedYogi(adaptive.FedOpt):
    """FedYogi: Yogi at the server. Reddi et al., ICLR 2021, arXiv 2003.00295, Algorithm 2.

    Server: D = mean_k(w_k - w^t), weighted by samples; m <- beta1 m + (1 - beta1) D; v <- v - (1 - beta2) D^2 sign(v -
    D^2); w <- w + eta m / (sqrt(v) + tau). m starts at 0, v at tau^2. Buffers are averaged."""

    class Options(adaptive.Options):
        beta2: float = fm.option(0.99, "Inertia of v: a value near 1 lets v move slowly.", ge=0, lt=1)

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        beta2: float = self.options.beta2
        return v - (1 - beta2) * square * (v - square).sign()
