import functools
from dataclasses import replace
from typing import Literal, cast

import torch
from torch import Tensor, nn

import fedloom.methods as fm
from fedloom.methods.parts.prototypes import cosine

EMBEDDING = "extra.embedding"
FLOOR = 1e-24  # of the squared norm, whose root has no slope at 0
ALIKE = 1e-3  # spread of the embeddings, relative to their norm, below which they count as one


@fm.register
class GPFL(fm.Method):
    """GPFL: features are bent by two conditions, one of all classes, one of the client's own. Zhang et al., ICCV 2023,
    arXiv 2308.10279.

    Shared: body, class embedding E [C, d], conditional nets gamma and beta; the head is private. With u_G the mean row
    of E and u_P its mean by the client's class shares, both fixed for a round, and h(u) = ReLU(z (gamma(u) + 1) +
    beta(u)): CE(head(h(u_P))) + CE(cos(h(u_G), E)) + lambda |h(u_G) - E_y| over the batch, E as received. Tested:
    head(h(u_P))."""

    spec = fm.Spec(receives=None, private=frozenset({fm.Role.HEAD}), features=True, labels="multi")

    class Options(fm.Options):
        weight: float = fm.option(
            0.01, "lambda, the strength of the pull of general features to the received embeddings.", ge=0
        )
        decay: float = fm.option(0.1, "mu, the weight decay of the embeddings and of the conditional nets.", ge=0)
        inputs: Literal["received", "own"] = fm.option(
            "received",
            "Embeddings that give the conditional inputs: those received, or, as released, those that the "
            "client trained in its last round (zeros before).",
        )

    def extra(self, net: fm.Net) -> nn.Module:
        return Conditions(net.head.out_features, net.head.in_features).to(net.head.weight.dtype)

    def aggregate(self, server: fm.Record, uploads: fm.Uploads, ctx: fm.ServerContext) -> fm.Record:
        sent = {"before": fm.get_tree(server, "model")[EMBEDDING]} if self.options.inputs == "own" else {}
        return super().aggregate(server, uploads, ctx) | sent

    def client_init(self, ctx: fm.ClientContext) -> fm.Record:
        return super().client_init(ctx) | {"class_counts": ctx.class_counts}

    def begin(self, payload: fm.Record, state: fm.Record, ctx: fm.ClientContext) -> fm.Start:
        start = super().begin(payload, state, ctx)
        received = start.tree[EMBEDDING]
        general, personal = conditions(self._inputs(received, payload, state, ctx.round), ctx.class_counts)
        return fm.Start(start.tree, {"general": general, "personal": personal, "anchors": received})

    def phases(self, start: fm.Start, ctx: fm.ClientContext) -> list[fm.Phase]:
        decayed = replace(ctx.task.optimizer, weight_decay=self.options.decay)
        return [fm.Train(self.loss, ctx.task.local_epochs, optimizer={"extra": decayed})]

    def loss(self, net: fm.Net, batch: fm.Batch, consts: fm.Consts) -> fm.Objective:
        z, embedding = net.features(batch.x), cast(Tensor, net.extra.embedding)
        general, personal = (net.extra(z, consts[name]) for name in ("general", "personal"))
        rows, pairs = batch.by_label(general)
        squares = (rows - consts["anchors"][pairs.y]).square().sum(1)
        counted = squares if pairs.mask is None else torch.where(pairs.mask, squares, 0.0)
        return fm.Objective.sum(
            {
                "ce": batch.mean(fm.cross_entropy(net.head(personal), batch.y)),
                "ce_embedding": batch.mean(fm.cross_entropy(cosine(general.unsqueeze(1), embedding), batch.y)),
                "pull": self.options.weight * counted.sum().clamp(min=FLOOR).sqrt(),
            }
        )

    def end(self, work: fm.Work, state: fm.Record, ctx: fm.ClientContext) -> tuple[fm.Record, fm.Record]:
        upload, next_state = super().end(work, state, ctx)
        if self.options.inputs == "own":
            next_state |= {"trained": work.tree[EMBEDDING], "round": ctx.round}
        return upload, next_state | {"class_counts": ctx.class_counts}

    def predictors(self, server: fm.Record, state: fm.Record | None, ctx: fm.ServerContext) -> dict[str, fm.Predictor]:
        if state is None:
            return {}
        tree = self._joined(server, state, ctx.task)
        inputs = self._inputs(tree[EMBEDDING], server, state, ctx.round + 1)
        _, personal = conditions(inputs, fm.get_tensor(state, "class_counts"))
        return {"personal": fm.Predictor(tree, functools.partial(conditioned_logits, condition=personal))}

    def diagnostics(self, server: fm.Record, uploads: fm.Uploads, ctx: fm.ServerContext) -> list[fm.Diagnostic]:
        embedding = fm.get_tree(server, "model")[EMBEDDING].double()
        spread = float((embedding - embedding.mean(0)).norm() / embedding.norm().clamp(min=1e-12))
        if not spread < ALIKE:
            return []
        message = f"the embeddings of all classes lie within {spread:.1e} of their mean: both conditions are one"
        return [fm.Diagnostic("gpfl.one_condition", message, spread)]

    def _inputs(self, received: Tensor, payload: fm.Record, state: fm.Record, round_: int) -> Tensor:
        if self.options.inputs == "received":
            return received
        if "trained" in state and fm.get_number(state, "round") == round_ - 1:
            return fm.get_tensor(state, "trained")
        return fm.get_tensor(payload, "before") if "before" in payload else torch.zeros_like(received)


class Conditions(nn.Module):
    """The embedding of the classes [C, d], and the nets gamma and beta that scale and shift features."""

    def __init__(self, classes: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Parameter(torch.randn(classes, width))
        layers = (nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.LayerNorm(width)) for _ in range(2))
        self.gamma, self.beta = layers

    def forward(self, z: Tensor, condition: Tensor) -> Tensor:
        return cast(Tensor, (z * (self.gamma(condition) + 1) + self.beta(condition)).relu())


def conditions(embedding: Tensor, class_counts: Tensor) -> tuple[Tensor, Tensor]:
    """Return u_G and u_P [d]: the mean of the rows of `embedding` [C, d], and that by a client's class counts [C]."""
    shares = class_counts.to(embedding.dtype) / class_counts.sum().clamp(min=1)
    return embedding.mean(0), shares @ embedding


def conditioned_logits(net: fm.Net, x: Tensor, condition: Tensor) -> Tensor:
    """Return the logits [B, C] of the head on the features of x under a `condition` u [d]."""
    z = net.features(x)
    return cast(Tensor, net.head(net.extra(z, condition.to(z))))
