import functools

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, normalize

import fedloom.methods as fm

W = "head.weight"
WIDTHS = (10.0, 15.0, 20.0, 50.0)  # of the kernels, as in released code, whatever the number of features


@fm.register
class FedCP(fm.Method):
    """FedCP: a small gate splits the features of each sample between a global and a personal head. Zhang et al., KDD
    2023, arXiv 2307.01217.

    Local, with v the unit sum of the personal head's rows: (r, s) = softmax over the two halves of ReLU(layer
    norm(linear(z v))), with Gumbel noise, o = personal(r z) + global(s z), and CE + lambda MMD(z, z of the received
    body). The global head stays fixed; a client sends its mean with the personal one. Server: means by samples."""

    spec = fm.Spec(
        receives=("model", "head"),
        requires=("linear_head",),
        private=frozenset({fm.Role.HEAD}),
        features=True,
        sends={"model": fm.Sent(spread=2.0), "head": fm.Sent(no_feedback=fm.ALL_ROLES)},
        unstackable="its gate draws random numbers",
        labels="multi",
    )

    class Options(fm.Options):
        weight: float = fm.option(
            1.0, "lambda, the strength of the pull of features to those of the received body (MMD).", ge=0
        )
        noise: bool = fm.option(True, "Gumbel noise in the gate while training; tests have none.")

    def extra(self, net: fm.Net) -> nn.Module:
        return Gate(net.head.in_features).to(net.head.weight.dtype)

    def server_init(self, ctx: fm.ServerContext) -> fm.Record:
        return super().server_init(ctx) | {"head": self._private(ctx.task.init, ctx.task)}

    def begin(self, payload: fm.Record, state: fm.Record, ctx: fm.ClientContext) -> fm.Start:
        tree = super().begin(payload, state, ctx).tree
        consts = {"head": fm.get_tree(payload, "head"), "context": context_of(tree), "received": tree}
        return fm.Start(tree, consts)

    def loss(self, net: fm.Net, batch: fm.Batch, consts: fm.Consts) -> fm.Objective:
        z, noise = net.features(batch.x), self.options.noise and net.training
        logits = gated_logits(net, z, consts["head"], consts["context"], noise=noise)
        terms = {"ce": batch.mean(fm.cross_entropy(logits, batch.y))}
        if self.options.weight:
            with torch.no_grad():
                received = net.functional.features(consts["received"], batch.x)
            terms["mmd"] = self.options.weight * discrepancy(z, received, batch)
        return fm.Objective.sum(terms)

    def end(self, work: fm.Work, state: fm.Record, ctx: fm.ClientContext) -> tuple[fm.Record, fm.Record]:
        upload, next_state = super().end(work, state, ctx)
        mixed = fm.combine([fm.get_tree(next_state, "model"), work.start.consts["head"]], [0.5, 0.5])
        return upload | {"head": mixed}, next_state

    def aggregate(self, server: fm.Record, uploads: fm.Uploads, ctx: fm.ServerContext) -> fm.Record:
        return super().aggregate(server, uploads, ctx) | {"head": self.mean(uploads, "head")}

    def predictors(self, server: fm.Record, state: fm.Record | None, ctx: fm.ServerContext) -> dict[str, fm.Predictor]:
        if state is None:
            return {}
        tree = self._joined(server, state, ctx.task)
        logits = functools.partial(tested_logits, head=fm.get_tree(server, "head"), context=context_of(tree))
        return {"personal": fm.Predictor(tree, logits)}


class Gate(nn.Module):
    """Split features in two: linear, layer norm over both halves, ReLU; [B, d] -> [B, 2, d]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate, self.norm = nn.Linear(width, 2 * width), nn.LayerNorm(2 * width)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.norm(self.gate(x)).relu()
        return scores.view(x.shape[0], 2, x.shape[1])


def context_of(tree: fm.Tree) -> Tensor:
    """Return v [d], the sum of the personal head's rows, made unit."""
    return normalize(tree[W].sum(0), dim=0, eps=1e-12)


def gated_logits(net: fm.Net, z: Tensor, head: fm.Tree, context: Tensor, *, noise: bool) -> Tensor:
    """Return personal(r z) + global(s z) [B, C] of features z [B, d], with the global `head` and `context` v [d]."""
    scores = net.extra(z * context)
    if noise:
        uniform = torch.rand_like(scores).clamp(min=1e-20)
        # Gumbel noise -log(-log u); both logarithms are kept from the infinity at 0 and 1
        scores = scores - (-uniform.log()).clamp(min=1e-20).log()
    personal, general = torch.softmax(scores, dim=1).unbind(1)
    logits: Tensor = net.head(personal * z) + linear(general * z, head[W], head.get("head.bias"))
    return logits


def tested_logits(net: fm.Net, x: Tensor, head: fm.Tree, context: Tensor) -> Tensor:
    """Return the logits [B, C] of inputs x without noise, with the global `head` and the `context` v [d]."""
    z = net.features(x)
    return gated_logits(net, z, {n: value.to(z) for n, value in head.items()}, context.to(z), noise=False)


def discrepancy(z: Tensor, other: Tensor, batch: fm.Batch) -> Tensor:
    """Return the squared maximum mean discrepancy [] of features z and `other` [B, d], summed over kernels."""

    def kernels(a: Tensor, b: Tensor) -> Tensor:
        # rounding may make the distance of equal features negative, and the kernel larger than 1
        squares = (a.square().sum(1).unsqueeze(1) + b.square().sum(1) - 2 * a @ b.T).clamp(min=0)
        return torch.stack([(-squares / (2 * width)).exp() for width in WIDTHS]).sum(0)

    pairs = kernels(z, z) + kernels(other, other) - 2 * kernels(z, other)
    return batch.mean(batch.mean(pairs))  # over columns, then over rows
