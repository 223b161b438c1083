"""GPFL."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Literal, cast

import torch
from pydantic import Field
from torch import Tensor, nn

from fedloom.core.records import Record, get_number, get_tensor, get_tree
from fedloom.methods.contract import method
from fedloom.methods.contract.citation import Citation
from fedloom.methods.contract.contexts import ClientContext, Diagnostic, ServerContext, Start, Work
from fedloom.methods.contract.losses import cross_entropy
from fedloom.methods.contract.method import Method, Uploads, register
from fedloom.methods.contract.phases import Batch, Consts, Objective, Phase, Predictor, Train
from fedloom.methods.contract.spec import Spec
from fedloom.methods.parts.prototypes import cosine
from fedloom.nets.net import Net, Role

EMBEDDING = "extra.embedding"
FLOOR = 1e-24  # of the squared norm, whose root has no slope at 0
ALIKE = 1e-3  # spread of the embeddings, relative to their norm, below which they count as one


class Options(method.Options):
    """Options of GPFL."""

    weight: float = Field(
        0.01, ge=0, description="lambda, the strength of the pull of general features to the received embeddings."
    )
    decay: float = Field(0.1, ge=0, description="mu, the weight decay of the embeddings and of the conditional nets.")
    inputs: Literal["received", "own"] = Field(
        "received",
        description="Embeddings of which the conditional inputs are made: those received, or, as released, those that "
        "the client trained in its last round (zeros before).",
    )


@register
class GPFL(Method):
    """GPFL: features are bent by two conditions, one of all classes, one of the client's own. Zhang et al., ICCV 2023,
    arXiv 2308.10279.

    Shared: body, an embedding E [C, d] of the classes, conditional nets gamma and beta (linear, ReLU, layer norm).
    A client keeps its head. Down: the shared part. Up: the shared part, number of samples. Server: mean by samples.
    Local, with u_G the mean row of E and u_P the mean of its rows by the client's class shares, both fixed for the
    round, and h(u) = ReLU(z (gamma(u) + 1) + beta(u)): CE(head(h(u_P))) + CE(cos(h(u_G), E)) + lambda times the
    2-norm, over the whole batch, of h(u_G) - E_y, E as it was received.

    Tested: personal, by head(h(u_P)).
    """

    spec = Spec(private=frozenset({Role.HEAD}), features=True)
    Options = Options
    presets = {"paper": {}, "authors": {"inputs": "own"}, "sound": {}}  # noqa: RUF012
    settings = {  # noqa: RUF012
        "authors": {"optimizer": {"lr": 0.005, "momentum": 0.0}, "local_epochs": 1, "batch_size": 10}
    }
    citation = Citation(
        "Zhang et al.",
        "ICCV",
        2023,
        "arXiv 2308.10279",
        {"B": 1, "Q": 1},
        {"B": 1, "Q": 1},
        {"H": 1, "counts": 1},
        code="TsingZ0/GPFL at ed7a7fe",
        our_choice="The paper's text was not at hand: that the conditions come from the received embeddings is how we "
        "read its algorithm, and lambda and mu are the authors' for a CNN of four layers.",
        released_code="The conditions come from the embeddings that the client itself trained in its last round, and "
        "are zero in its first (`inputs: own`).",
    )

    def extra(self, net: Net) -> nn.Module:
        return Conditions(net.head.out_features, net.head.in_features).to(net.head.weight.dtype)

    # -- server ----------------------------------------------------------------------------------------------
    def down(self, server: Record, client: int, ctx: ServerContext) -> Record:
        return server

    def aggregate(self, server: Record, uploads: Uploads, ctx: ServerContext) -> Record:
        sent = {"before": get_tree(server, "model")[EMBEDDING]} if self.options.inputs == "own" else {}
        return super().aggregate(server, uploads, ctx) | sent

    # -- client ----------------------------------------------------------------------------------------------
    def client_init(self, ctx: ClientContext) -> Record:
        return super().client_init(ctx) | {"class_counts": ctx.class_counts}

    def begin(self, payload: Record, state: Record, ctx: ClientContext) -> Start:
        start = super().begin(payload, state, ctx)
        received = start.tree[EMBEDDING]
        general, personal = conditions(self._inputs(received, payload, state, ctx.round), ctx.class_counts)
        return Start(start.tree, {"general": general, "personal": personal, "anchors": received})

    def phases(self, start: Start, ctx: ClientContext) -> list[Phase]:
        decayed = replace(ctx.task.optimizer, weight_decay=self.options.decay)
        return [Train(self.loss, ctx.task.local_epochs, optimizer={"extra": decayed})]

    def loss(self, net: Net, batch: Batch, consts: Consts) -> Objective:
        z, embedding = net.features(batch.x), cast(Tensor, net.extra.embedding)
        general, personal = (net.extra(z, consts[name]) for name in ("general", "personal"))
        squares = (general - consts["anchors"][batch.y]).square().sum(1)
        counted = squares if batch.mask is None else torch.where(batch.mask, squares, 0.0)
        return Objective.sum(
            {
                "ce": batch.mean(cross_entropy(net.head(personal), batch.y)),
                "ce_embedding": batch.mean(cross_entropy(cosine(general.unsqueeze(1), embedding), batch.y)),
                "pull": self.options.weight * counted.sum().clamp(min=FLOOR).sqrt(),
            }
        )

    def end(self, work: Work, state: Record, ctx: ClientContext) -> tuple[Record, Record]:
        upload, next_state = super().end(work, state, ctx)
        if self.options.inputs == "own":
            next_state |= {"trained": work.tree[EMBEDDING], "round": ctx.round}
        return upload, next_state | {"class_counts": ctx.class_counts}

    def predictors(self, server: Record, state: Record | None, ctx: ServerContext) -> dict[str, Predictor]:
        if state is None:
            return {}
        tree = self._joined(server, state, ctx.task)
        inputs = self._inputs(tree[EMBEDDING], server, state, ctx.round + 1)
        _, personal = conditions(inputs, get_tensor(state, "class_counts"))
        return {"personal": Predictor(tree, functools.partial(conditioned_logits, condition=personal))}

    def diagnostics(self, server: Record, uploads: Uploads, ctx: ServerContext) -> list[Diagnostic]:
        embedding = get_tree(server, "model")[EMBEDDING].double()
        spread = float((embedding - embedding.mean(0)).norm() / embedding.norm().clamp(min=1e-12))
        if not spread < ALIKE:
            return []
        message = f"the embeddings of all classes lie within {spread:.1e} of their mean: both conditions are one"
        return [Diagnostic("gpfl.one_condition", message, spread)]

    def _inputs(self, received: Tensor, payload: Record, state: Record, round_: int) -> Tensor:
        """Return the embeddings [C, d] of which the conditions of a round are made."""
        if self.options.inputs == "received":
            return received
        if "trained" in state and get_number(state, "round") == round_ - 1:
            return get_tensor(state, "trained")
        return get_tensor(payload, "before") if "before" in payload else torch.zeros_like(received)


class Conditions(nn.Module):
    """The embedding of the classes [C, d], and the nets gamma and beta that scale and shift features."""

    def __init__(self, classes: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Parameter(torch.randn(classes, width))
        self.gamma, self.beta = (
            nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.LayerNorm(width)) for _ in range(2)
        )

    def forward(self, z: Tensor, condition: Tensor) -> Tensor:
        """ReLU(z (gamma(u) + 1) + beta(u)) [B, d] of features z [B, d] under the condition u [d]."""
        bent: Tensor = (z * (self.gamma(condition) + 1) + self.beta(condition)).relu()
        return bent


def conditions(embedding: Tensor, class_counts: Tensor) -> tuple[Tensor, Tensor]:
    """Return u_G and u_P [d]: the mean of the rows of `embedding` [C, d], and that by a client's class counts [C]."""
    shares = class_counts.to(embedding.dtype) / class_counts.sum().clamp(min=1)
    return embedding.mean(0), shares @ embedding


def conditioned_logits(net: Net, x: Tensor, condition: Tensor) -> Tensor:
    """Return the logits [B, C] of the head on features under a condition.

    Args:
        net: the net, with its conditions.
        x: inputs [B, ...].
        condition: u [d].
    """
    z = net.features(x)
    logits: Tensor = net.head(net.extra(z, condition.to(z)))
    return logits
