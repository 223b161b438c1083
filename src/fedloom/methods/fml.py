"""FML."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, cast

from pydantic import BaseModel, Field

from fedloom.core.records import Record
from fedloom.methods.contract import method
from fedloom.methods.contract.citation import Citation
from fedloom.methods.contract.contexts import ClientContext, Diagnostic, ServerContext, Task
from fedloom.methods.contract.losses import cross_entropy, kl_divergence
from fedloom.methods.contract.method import Method, Uploads, register
from fedloom.methods.contract.phases import Batch, Consts, Objective, Predictor
from fedloom.methods.contract.spec import Spec
from fedloom.methods.parts.several_models import pair_predictors, require_same_net
from fedloom.nets.blueprint import Bundle
from fedloom.nets.net import Net

OWN, MEME = "own", "meme"


class Options(method.Options):
    """Options of FML."""

    alpha: float = Field(
        0.5,
        ge=0,
        le=1,
        description="Share of cross-entropy in the loss of the own net; 1 switches its distillation off.",
    )
    beta: float = Field(
        0.5, ge=0, le=1, description="Share of cross-entropy in the loss of the meme; 1 switches its distillation off."
    )
    meme: str | None = Field(
        None,
        description="Registered model of the shared net. Null takes the run's own; a name is needed where clients "
        "have different nets.",
    )
    weights: Literal["samples", "uniform"] = Field(
        "samples",
        description="Weights of memes in the mean: by samples (our choice: the paper is not explicit), or all alike, "
        "as in released code.",
    )
    start: Literal["common", "drawn"] = Field(
        "common",
        description="First weights of own nets: the common ones (our choice), or drawn by each client, as in released "
        "code.",
    )


@register
class FML(Method):
    """FML, mutual learning: a private net of any kind and a shared "meme" teach each other. Shen et al., 2020,
    arXiv 2006.16765.

    Down, up: the meme.   Server: mean of memes.   A client keeps its own net, and is tested with it.
    Local, at once: own net alpha CE + (1 - alpha) KL(p_meme || p_own); meme beta CE + (1 - beta) KL(p_own || p_meme)
    (Eq. 8, 9). Teachers are in training mode and get no gradient; KL is summed over classes, a mean over the batch.
    """

    Options = Options
    presets = {  # noqa: RUF012
        "paper": {},
        "authors": {"weights": "uniform", "start": "drawn"},
        "sound": {},
        "fedssa": {"meme": "fedssa-cnn5"},
    }
    citation = Citation(
        "Shen et al.",
        "preprint",
        2020,
        "arXiv 2006.16765",
        {"Q": 1},
        {"Q": 1},
        {"P": 1},
        compared_in=("fedssa",),
        code="ZJU-DAI/Federated-Mutual-Learning at b547bbf",
    )

    def __init__(self, options: BaseModel | None = None) -> None:
        super().__init__(options)
        nets = {OWN: None, MEME: self.options.meme}
        self.spec = Spec(nets=nets, private_nets=frozenset({OWN}), architectures="any")

    def examine(self, tasks: Sequence[Task], participants: int) -> list[Diagnostic]:
        require_same_net(tasks, MEME, f"{self.name()}.meme")
        return super().examine(tasks, participants)

    def client_init(self, ctx: ClientContext) -> Record:
        if self.options.start == "common":
            return super().client_init(ctx)
        return {"model": self._private(ctx.task.fresh(ctx.client), ctx.task)}

    def loss(self, net: Net, batch: Batch, consts: Consts) -> Objective:
        private_logits, meme = (cast(Bundle, net)[name](batch.x) for name in (OWN, MEME))
        alpha, beta = self.options.alpha, self.options.beta
        return Objective.sum(
            {
                "ce_own": alpha * batch.mean(cross_entropy(private_logits, batch.y)),
                "kl_own": (1 - alpha) * batch.mean(kl_divergence(meme.detach(), private_logits)),
                "ce_meme": beta * batch.mean(cross_entropy(meme, batch.y)),
                "kl_meme": (1 - beta) * batch.mean(kl_divergence(private_logits.detach(), meme)),
            }
        )

    def aggregate(self, server: Record, uploads: Uploads, ctx: ServerContext) -> Record:
        return {"model": self.mean(uploads, weights=self.options.weights)}

    def predictors(self, server: Record, state: Record | None, ctx: ServerContext) -> dict[str, Predictor]:
        """ "personal" is the own net; "global", or "meme" beside it, the shared one."""
        return pair_predictors(self, server, state, ctx, MEME)
