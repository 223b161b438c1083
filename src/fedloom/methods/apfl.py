from typing import cast

import torch
from torch import Tensor, nn
from torch.func import functional_call

import fedloom.methods as fm


@fm.register
class APFL(fm.Method):
    """APFL: each client learns the shares of a shared and a private model in its mixture. Deng et al., 2020, arXiv
    2003.13461.

    In every step, w moves by the gradient of CE(w); v and alpha by that of CE(alpha v + (1 - alpha) w), in which w
    counts as a constant; alpha is clipped to [0, 1] (Algorithm 1, Eq. 10). A client is tested with its mixture, which
    uses the shared net's batch norm."""

    spec = fm.Spec(
        nets={"shared": None, "own": None},
        private_nets=frozenset({"own"}),
        private=frozenset({fm.Role.EXTRA}),
        labels="multi",
    )

    class Options(fm.Options):
        alpha: float = fm.option(0.5, "First share of the own model in the mixture.", ge=0, le=1)
        alpha_lr: float | None = fm.option(
            None,
            "Rate at which a client learns its share; 0 keeps the share. Null takes the run's learning rate (our "
            "choice: the paper's rule has one rate for all).",
            ge=0,
        )

    def extra(self, net: fm.Net) -> nn.Module:
        module = nn.Module()
        module.alpha = nn.Parameter(torch.tensor(self.options.alpha))
        return module

    def phases(self, start: fm.Start, ctx: fm.ClientContext) -> list[fm.Phase]:
        rate = ctx.lr if self.options.alpha_lr is None else self.options.alpha_lr
        optimizers = {"extra": fm.OptimizerSpec(lr=rate)}
        return [fm.Train(self.loss, ctx.task.local_epochs, optimizer=optimizers, project=clipped)]

    def loss(self, net: fm.Net, batch: fm.Batch, consts: fm.Consts) -> fm.Objective:
        logits = {"ce_shared": cast(fm.Bundle, net)["shared"](batch.x), "ce_mixed": mixed(net, batch.x)}
        return fm.Objective.sum({name: batch.mean(fm.cross_entropy(o, batch.y)) for name, o in logits.items()})

    def predictors(self, server: fm.Record, state: fm.Record | None, ctx: fm.ServerContext) -> dict[str, fm.Predictor]:
        tree = self._full(server, state, ctx.task)
        if state is None:
            return {"global": fm.Predictor(tree, lambda net, x: cast(fm.Bundle, net)["shared"](x))}
        return {"personal": fm.Predictor(tree, mixed)}


def mixed(net: fm.Net, x: Tensor) -> Tensor:
    """Logits [B, C] of alpha v + (1 - alpha) w; no gradient reaches w."""
    bundle = cast(fm.Bundle, net)
    alpha, shared = cast(Tensor, net.extra.alpha), dict(bundle["shared"].named_parameters())
    private_parameters = bundle["own"].named_parameters()
    # the mixed loss trains v and alpha, and w by its own loss alone
    tree = {name: alpha * value + (1 - alpha) * shared[name].detach() for name, value in private_parameters}
    return cast(Tensor, functional_call(bundle["shared"], tree, (x,)))


def clipped(parameters: dict[str, Tensor], consts: fm.Consts) -> dict[str, Tensor]:
    """alpha in [0, 1]."""
    return parameters | {"extra.alpha": parameters["extra.alpha"].clamp(0, 1)}
