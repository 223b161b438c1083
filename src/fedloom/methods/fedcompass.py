from dataclasses import replace

import fedloom.methods as fm
from fedloom.methods.fedbuff import FedBuff


@fm.register
class FedCompass(FedBuff):
    """FedCompass: clients get as many steps as let groups of them arrive together. Li et al., ICLR 2024, arXiv
    2309.14675.

    A client that starts joins the group that leaves it time for most steps, between Q_min and Q_max, or founds one that
    arrives with the next work of another. Server, for each group G that has arrived: w <- w + eta sum_{k in G} p_k
    (1 + tau_k)^-a D_k, with D_k = w_k - w as in FedBuff."""

    spec = replace(FedBuff.spec, arrivals=1, least_work=0.2)

    class Options(fm.Options):
        least_work: float = fm.option(0.2, "Q_min / Q_max, least share of its usual steps for a client.", gt=0, le=1)
        server_lr: float = fm.option(1.0, "eta, the server's step.", gt=0)
        a: float = fm.option(0.5, "How fast stale changes lose weight.", ge=0)

    def __init__(self, options: fm.Options | None = None) -> None:
        fm.Method.__init__(self, options)
        self.spec = replace(self.spec, least_work=self.options.least_work)

    def examine(self, tasks: fm.Tasks, participants: int) -> list[fm.Diagnostic]:
        return fm.Method.examine(self, tasks, participants)

    def aggregate(self, server: fm.Record, uploads: fm.Uploads, ctx: fm.ServerContext) -> fm.Record:
        samples = fm.numbers_of(uploads, "samples")
        decays = [(1 + ctx.staleness.get(client, 0)) ** -self.options.a for client in uploads]
        weights = [n * decay for n, decay in zip(samples, decays, strict=True)]
        step = self.options.server_lr * sum(weights) / sum(samples) * len(uploads) / ctx.task.clients
        return self.stepped(server, uploads, ctx, weights, step)
