"""Ditto."""

from __future__ import annotations

from typing import cast

from pydantic import Field
from torch import Tensor

from fedloom.core import trees
from fedloom.core.records import Record, get_tree
from fedloom.methods.contract import method
from fedloom.methods.contract.citation import Citation
from fedloom.methods.contract.contexts import ClientContext, ServerContext, Start
from fedloom.methods.contract.losses import cross_entropy
from fedloom.methods.contract.method import Method, register
from fedloom.methods.contract.phases import Batch, Consts, Objective, Phase, Predictor, Train
from fedloom.methods.contract.spec import Spec
from fedloom.nets.blueprint import Bundle
from fedloom.nets.net import Net


class Options(method.Options):
    """Options of Ditto."""

    weight: float = Field(
        0.1, ge=0, description="lambda, the strength of the pull of a client's own model towards the received one."
    )
    personal_epochs: int = Field(1, ge=0, description="Passes that train the own model; 1, as in released code.")


@register
class Ditto(Method):
    """Ditto: FedAvg, and beside it a model of each client's own, pulled to it. Li et al., ICML 2021, 2012.04221.

    Down, up, server: as FedAvg.   A client keeps its own model v.
    Local: first FedAvg's steps from w^t; then v: CE + (lambda / 2) sum_params |v - w^t|^2 (Eq. 1, Algorithm 1). The
    anchor is the model received, not the one just trained.
    """

    spec = Spec(nets={"shared": None, "own": None}, private_nets=frozenset({"own"}))
    Options = Options
    citation = Citation("Li et al.", "ICML", 2021, "arXiv 2012.04221", {"P": 1}, {"P": 1}, {"P": 1})

    def begin(self, payload: Record, state: Record, ctx: ClientContext) -> Start:
        start = super().begin(payload, state, ctx)
        shared = {name.removeprefix("shared."): value for name, value in get_tree(payload, "model").items()}
        return Start(start.tree, {"received": shared})

    def phases(self, start: Start, ctx: ClientContext) -> list[Phase]:
        return [
            Train(self.loss, ctx.task.local_epochs, nets=("shared",)),
            Train(self.own_loss, self.options.personal_epochs, nets=("own",)),
        ]

    def loss(self, net: Net, batch: Batch, consts: Consts) -> Tensor:
        return batch.mean(cross_entropy(cast(Bundle, net)["shared"](batch.x), batch.y))

    def own_loss(self, net: Net, batch: Batch, consts: Consts) -> Objective:
        """Return the private net's objective, Eq. 1: F_k(v) + weight / 2 |v - w|^2, w the received weights.

        Args:
            net: a bundle; only its net "own" is read.
            batch: B samples.
            consts: "received", the tree w.
        """
        private_net = cast(Bundle, net)["own"]
        pull = trees.squared_distance(dict(private_net.named_parameters()), consts["received"])
        ce = batch.mean(cross_entropy(private_net(batch.x), batch.y))
        return Objective.sum({"ce_own": ce, "proximal": 0.5 * self.options.weight * pull})

    def predictors(self, server: Record, state: Record | None, ctx: ServerContext) -> dict[str, Predictor]:
        private_record: Record = {"model": self._private(ctx.task.init, ctx.task)} if state is None else state
        tree = self._joined(server, private_record, ctx.task)
        kind, name = ("global", "shared") if state is None else ("personal", "own")
        return {kind: Predictor(tree, lambda net, x: cast(Bundle, net)[name](x))}
