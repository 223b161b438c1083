from math import sqrt

from torch import Tensor

import fedloom.methods as fm
from fedloom.methods.parts import parameters as adaptive


@fm.register
class FedAdam(adaptive.FedOpt):
    """FedAdam: Adam at the server. Reddi et al., ICLR 2021, arXiv 2003.00295, Algorithm 2.

    Server: D = mean_k(w_k - w^t), weighted by samples; m <- beta1 m + (1 - beta1) D; v <- beta2 v + (1 - beta2) D^2; w
    <- w + eta m / (sqrt(v) + tau). m starts at 0, v at tau^2, no bias correction. Buffers are averaged."""

    class Options(adaptive.Options):
        beta2: float = fm.option(0.99, "Share of the last v in the next one.", ge=0, lt=1)
        bias_correction: bool = fm.option(
            False, "Multiply eta by sqrt(1 - beta2^t) / (1 - beta1^t) in round t, as Keras does."
        )

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        beta2: float = self.options.beta2
        return beta2 * v + (1 - beta2) * square

    def scale(self, round_: int) -> float:
        options = self.options
        return sqrt(1 - options.beta2**round_) / (1 - options.beta1**round_) if options.bias_correction else 1.0
