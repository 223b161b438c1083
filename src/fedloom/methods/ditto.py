from typing import cast

from torch import Tensor

import fedloom.methods as fm
from fedloom.core import trees


@fm.register
class Ditto(fm.Method):
    """Ditto: FedAvg, and a private model of each client, pulled to the shared one. Li et al., ICML 2021, 2012.04221.

    Local: first FedAvg's steps from w^t; then v: CE + (lambda / 2) sum_params |v - w^t|^2 (Eq. 1, Algorithm 1). The
    anchor is the model received, not the one just trained."""

    spec = fm.Spec(nets={"shared": None, "own": None}, private_nets=frozenset({"own"}), labels="multi")

    class Options(fm.Options):
        weight: float = fm.option(
            0.1, "lambda, the strength of the pull of a client's own model towards the received one.", ge=0
        )
        personal_epochs: int = fm.option(1, "Passes that train the own model; 1, as in released code.", ge=0)

    def begin(self, payload: fm.Record, state: fm.Record, ctx: fm.ClientContext) -> fm.Start:
        start = super().begin(payload, state, ctx)
        shared = {name.removeprefix("shared."): value for name, value in fm.get_tree(payload, "model").items()}
        return fm.Start(start.tree, {"received": shared})

    def phases(self, start: fm.Start, ctx: fm.ClientContext) -> list[fm.Phase]:
        shared = fm.Train(self.loss, ctx.task.local_epochs, nets=("shared",))
        return [shared, fm.Train(self.own_loss, self.options.personal_epochs, nets=("own",))]

    def loss(self, net: fm.Net, batch: fm.Batch, consts: fm.Consts) -> Tensor:
        return batch.mean(fm.cross_entropy(cast(fm.Bundle, net)["shared"](batch.x), batch.y))

    def own_loss(self, net: fm.Net, batch: fm.Batch, consts: fm.Consts) -> fm.Objective:
        """Return the private net's objective, Eq. 1: F_k(v) + weight / 2 |v - w|^2, w = `consts["received"]`."""
        private_net = cast(fm.Bundle, net)["own"]
        pull = trees.squared_distance(dict(private_net.named_parameters()), consts["received"])
        ce = batch.mean(fm.cross_entropy(private_net(batch.x), batch.y))
        return fm.Objective.sum({"ce_own": ce, "proximal": 0.5 * self.options.weight * pull})

    def predictors(self, server: fm.Record, state: fm.Record | None, ctx: fm.ServerContext) -> dict[str, fm.Predictor]:
        tree = self._full(server, state, ctx.task)
        kind, name = ("global", "shared") if state is None else ("personal", "own")
        return {kind: fm.Predictor(tree, lambda net, x: cast(fm.Bundle, net)[name](x))}
