import fedloom.methods as fm
from fedloom.core import trees


@fm.register
class FedProx(fm.Method):
    """FedProx: a proximal pull to the weights received. Li et al., MLSys 2020, arXiv 1812.06127.

    Local: CE + (mu / 2) sum_params |w - w^t|^2 (Eq. 2), parameters only."""

    class Options(fm.Options):
        mu: float = fm.option(
            0.01, "Strength of the pull towards the received weights; 0 is FedAvg, bit for bit.", ge=0
        )

    spec = fm.Spec(labels="multi", late=True, fewer_steps=True)

    def begin(self, payload: fm.Record, state: fm.Record, ctx: fm.ClientContext) -> fm.Start:
        start = super().begin(payload, state, ctx)
        return fm.Start(start.tree, {"received": start.tree})

    def loss(self, net: fm.Net, batch: fm.Batch, consts: fm.Consts) -> fm.Objective:
        ce = batch.mean(fm.cross_entropy(net(batch.x), batch.y))
        proximal = trees.squared_distance(dict(net.named_parameters()), consts["received"])
        return fm.Objective.sum({"ce": ce, "proximal": 0.5 * self.options.mu * proximal})
