"""APFL."""

from __future__ import annotations

from typing import cast

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.func import functional_call

from fedloom.core.records import Record
from fedloom.methods.contract import method
from fedloom.methods.contract.citation import Citation
from fedloom.methods.contract.contexts import ClientContext, ServerContext, Start
from fedloom.methods.contract.losses import cross_entropy
from fedloom.methods.contract.method import Method, register
from fedloom.methods.contract.phases import Batch, Consts, Objective, OptimizerSpec, Phase, Predictor, Train
from fedloom.methods.contract.spec import Spec
from fedloom.nets.blueprint import Bundle
from fedloom.nets.net import Net, Role


class Options(method.Options):
    """Options of APFL."""

    alpha: float = Field(0.5, ge=0, le=1, description="First share of the own model in the mixture.")
    alpha_lr: float | None = Field(
        None,
        ge=0,
        description="Rate at which a client learns its share; 0 keeps the share. Null takes the run's learning rate "
        "(our choice: the paper's rule has one rate for all).",
    )


@register
class APFL(Method):
    """APFL: each client mixes the shared model with one of its own, by a share that it learns. Deng et al., 2020,
    arXiv 2003.13461.

    Down, up, server: as FedAvg.   A client keeps its own model v and its share alpha.
    Local, in every step: w by the gradient of CE(w); v and alpha by that of CE(alpha v + (1 - alpha) w), in which w
    counts as a constant; alpha is clipped to [0, 1] (Algorithm 1, Eq. 10). All gradients are taken before the step.
    A client is tested with its mixture. Batch norm: the mixture uses, and moves, the shared net's statistics.
    """

    spec = Spec(nets={"shared": None, "own": None}, private_nets=frozenset({"own"}), private=frozenset({Role.EXTRA}))
    Options = Options
    citation = Citation("Deng et al.", "preprint", 2020, "arXiv 2003.13461", {"P": 1}, {"P": 1}, {"P": 1, "Q": 1})

    def extra(self, net: Net) -> nn.Module:
        module = nn.Module()
        module.alpha = nn.Parameter(torch.tensor(self.options.alpha))
        return module

    def phases(self, start: Start, ctx: ClientContext) -> list[Phase]:
        rate = ctx.lr if self.options.alpha_lr is None else self.options.alpha_lr
        optimizers = {"extra": OptimizerSpec(lr=rate)}
        return [Train(self.loss, ctx.task.local_epochs, optimizer=optimizers, project=clipped)]

    def loss(self, net: Net, batch: Batch, consts: Consts) -> Objective:
        shared = batch.mean(cross_entropy(cast(Bundle, net)["shared"](batch.x), batch.y))
        return Objective.sum({"ce_shared": shared, "ce_mixed": batch.mean(cross_entropy(mixed(net, batch.x), batch.y))})

    def predictors(self, server: Record, state: Record | None, ctx: ServerContext) -> dict[str, Predictor]:
        private_record: Record = {"model": self._private(ctx.task.init, ctx.task)} if state is None else state
        tree = self._joined(server, private_record, ctx.task)
        if state is None:
            return {"global": Predictor(tree, lambda net, x: cast(Bundle, net)["shared"](x))}
        return {"personal": Predictor(tree, mixed)}


def mixed(net: Net, x: Tensor) -> Tensor:
    """Logits [B, C] of alpha v + (1 - alpha) w; no gradient reaches w."""
    bundle = cast(Bundle, net)
    alpha, shared = cast(Tensor, net.extra.alpha), dict(bundle["shared"].named_parameters())
    private_parameters = bundle["own"].named_parameters()
    tree = {name: alpha * value + (1 - alpha) * shared[name].detach() for name, value in private_parameters}
    logits: Tensor = functional_call(bundle["shared"], tree, (x,))
    return logits


def clipped(parameters: dict[str, Tensor], consts: Consts) -> dict[str, Tensor]:
    """alpha in [0, 1]."""
    return parameters | {"extra.alpha": parameters["extra.alpha"].clamp(0, 1)}
