from typing import Literal, cast

import fedloom.methods as fm
from fedloom.methods.parts.several_models import pair_predictors, require_same_net

OWN, MEME = "own", "meme"


@fm.register
class FML(fm.Method):
    """FML, mutual learning: a private net of any kind and a shared "meme" teach each other. Shen et al., 2020, arXiv
    2006.16765.

    Local, at once: own net alpha CE + (1 - alpha) KL(p_meme || p_own); meme beta CE + (1 - beta) KL(p_own || p_meme)
    (Eq. 8, 9), without gradient to teachers. Server: the mean of memes. A client is tested with its own net."""

    class Options(fm.Options):
        alpha: float = fm.option(
            0.5, "Share of cross-entropy in the loss of the own net; 1 switches its distillation off.", ge=0, le=1
        )
        beta: float = fm.option(
            0.5, "Share of cross-entropy in the loss of the meme; 1 switches its distillation off.", ge=0, le=1
        )
        meme: str | None = fm.option(
            None,
            "Registered model of the shared net. Null takes the run's own; a name is needed where clients have "
            "different nets.",
        )
        weights: Literal["samples", "uniform"] = fm.option(
            "samples",
            "Weights of memes in the mean: by samples (our choice: the paper is not explicit), or equal, as in "
            "released code.",
        )
        start: Literal["common", "drawn"] = fm.option(
            "common",
            "First weights of own nets: the common ones (our choice), or drawn by each client, as in released code.",
        )

    def __init__(self, options: fm.Options | None = None) -> None:
        super().__init__(options)
        nets = {OWN: None, MEME: self.options.meme}
        self.spec = fm.Spec(nets=nets, private_nets=frozenset({OWN}), architectures="any", labels="multi")

    def examine(self, tasks: fm.Tasks, participants: int) -> list[fm.Diagnostic]:
        require_same_net(tasks, MEME, f"{self.name()}.meme")
        return super().examine(tasks, participants)

    def client_init(self, ctx: fm.ClientContext) -> fm.Record:
        if self.options.start == "common":
            return super().client_init(ctx)
        return {"model": self._private(ctx.task.fresh(ctx.client), ctx.task)}

    def loss(self, net: fm.Net, batch: fm.Batch, consts: fm.Consts) -> fm.Objective:
        private_logits, meme = (cast(fm.Bundle, net)[name](batch.x) for name in (OWN, MEME))
        alpha, beta = self.options.alpha, self.options.beta
        return fm.Objective.sum(
            {
                "ce_own": alpha * batch.mean(fm.cross_entropy(private_logits, batch.y)),
                "kl_own": (1 - alpha) * batch.mean(fm.kl_divergence(meme.detach(), private_logits, batch.y)),
                "ce_meme": beta * batch.mean(fm.cross_entropy(meme, batch.y)),
                "kl_meme": (1 - beta) * batch.mean(fm.kl_divergence(private_logits.detach(), meme, batch.y)),
            }
        )

    def aggregate(self, server: fm.Record, uploads: fm.Uploads, ctx: fm.ServerContext) -> fm.Record:
        return {"model": self.mean(uploads, weights=self.options.weights)}

    def predictors(self, server: fm.Record, state: fm.Record | None, ctx: fm.ServerContext) -> dict[str, fm.Predictor]:
        return pair_predictors(self, server, state, ctx, MEME)
