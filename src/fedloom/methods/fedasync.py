from typing import Literal

import fedloom.methods as fm
from fedloom.methods.fedprox import FedProx


@fm.register
class FedAsync(FedProx):
    """FedAsync: the server mixes each upload in when it arrives. Xie, Koyejo, Gupta, 2019, arXiv 1903.03934.

    Local: FedProx with mu as rho. Server: w <- (1 - alpha_t) w + alpha_t w_k, alpha_t = alpha s(t - tau), where s falls
    with the updates since the client got its weights: constant 1, polynomial (t - tau + 1)^-a, or hinge: 1 up to b,
    then 1 / (a (t - tau - b) + 1)."""

    class Options(fm.Options):
        mu: float = fm.option(0.005, "rho, strength of the pull towards the received weights.", ge=0)
        alpha: float = fm.option(0.6, "Share of an upload without staleness in the new weights.", gt=0, le=1)
        staleness: Literal["polynomial", "hinge", "constant"] = fm.option(
            "polynomial", "How the share falls with staleness."
        )
        a: float | None = fm.option(None, "a of polynomial and hinge. Null is 0.5 and 10.", gt=0)
        b: int = fm.option(4, "b of hinge: the staleness up to which nothing falls.", ge=0)

    spec = fm.Spec(labels="multi", arrivals=1)

    def aggregate(self, server: fm.Record, uploads: fm.Uploads, ctx: fm.ServerContext) -> fm.Record:
        shares = [self.options.alpha * self._decay(ctx.staleness.get(client, 0)) for client in uploads]
        share = sum(shares) / len(shares)  # of the one upload, unless a real federation or a test brings several
        mean = self.mean(uploads, weights=shares)
        return {"model": fm.combine([fm.get_tree(server, "model"), mean], [1 - share, share])}

    def _decay(self, staleness: int) -> float:
        options = self.options
        if options.staleness == "polynomial":
            return float((staleness + 1) ** -(options.a or 0.5))
        late = staleness - options.b
        return 1.0 if options.staleness == "constant" or late <= 0 else 1 / ((options.a or 10.0) * late + 1)
