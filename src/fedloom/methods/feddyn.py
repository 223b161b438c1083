"""FedDyn."""

from __future__ import annotations

import torch
from pydantic import Field

from fedloom.core import trees
from fedloom.core.records import Record, get_tree
from fedloom.core.trees import Tree, combine
from fedloom.methods.contract import method
from fedloom.methods.contract.citation import Citation
from fedloom.methods.contract.contexts import ClientContext, ServerContext, Start, Work
from fedloom.methods.contract.losses import cross_entropy
from fedloom.methods.contract.method import Uploads, register
from fedloom.methods.contract.phases import Batch, Consts, Objective, Phase, Predictor, Train
from fedloom.methods.contract.spec import Sent, Spec
from fedloom.methods.parts.parameters import clipped, parameters, zeros
from fedloom.nets.net import Net


class Options(method.Options):
    """Options of FedDyn."""

    alpha: float = Field(0.01, gt=0, description="Strength of the regulariser, which is undefined at 0.")
    clip: float | None = Field(None, gt=0, description="Bound of the gradients' joint 2-norm. Null is no bound.")


@register
class FedDyn(method.Method):
    """FedDyn: a regulariser that makes the clients' optima agree with the global one. Acar et al., ICLR 2021,
    arXiv 2111.04263, Algorithm 1.

    Down, up: as FedAvg.   Client state: g_k, 0 at first.   Server state: h, 0 at first.
    Local: CE - <g_k, w> + (alpha / 2) |w - w^t|^2. Then g_k <- g_k - alpha (w_k - w^t).
    Server: h <- h - (alpha / N) sum_k (w_k - w^t), N all clients; w <- mean_k(w_k) - h / alpha, all participants alike.

    g_k, h and both terms are over parameters; buffers are averaged. The predictor "average" is mean_k(w_k), of which
    the paper reports, too.
    """

    spec = Spec(sends={"model": Sent()})
    Options = Options
    presets = {"paper": {}, "authors": {"clip": 10.0}, "sound": {}}  # noqa: RUF012
    citation = Citation(
        "Acar et al.",
        "ICLR",
        2021,
        "arXiv 2111.04263",
        {"P": 1},
        {"P": 1},
        {"W": 1},
        code="alpemreacar/FedDyn at 48a19fa",
        our_choice="alpha is not divided by the client's share of all samples, because no client knows the size of "
        "the others.",
        released_code="It clips gradients at 10 (preset `authors`) and divides alpha by the client's share of all "
        "samples times N.",
    )

    def server_init(self, ctx: ServerContext) -> Record:
        return super().server_init(ctx) | {"h": zeros(ctx.task)}

    def client_init(self, ctx: ClientContext) -> Record:
        return {"g": zeros(ctx.task)}

    def begin(self, payload: Record, state: Record, ctx: ClientContext) -> Start:
        start = super().begin(payload, {}, ctx)
        return Start(start.tree, {"received": start.tree, "g": get_tree(state, "g")})

    def phases(self, start: Start, ctx: ClientContext) -> list[Phase]:
        clip = self.options.clip
        return [Train(self.loss, ctx.task.local_epochs, grad_map=clipped(clip) if clip else None)]

    def loss(self, net: Net, batch: Batch, consts: Consts) -> Objective:
        ce = batch.mean(cross_entropy(net(batch.x), batch.y))
        weights: Tree = dict(net.named_parameters())
        linear = torch.stack([(consts["g"][name] * value).sum() for name, value in weights.items()]).sum()
        proximal = trees.squared_distance(weights, consts["received"])
        return Objective.sum({"ce": ce, "linear": -linear, "proximal": 0.5 * self.options.alpha * proximal})

    def end(self, work: Work, state: Record, ctx: ClientContext) -> tuple[Record, Record]:
        payload, _ = super().end(work, {}, ctx)
        begun, ended = parameters(work.start.tree, ctx.task), parameters(work.tree, ctx.task)
        alpha = self.options.alpha
        return payload, {"g": combine([get_tree(state, "g"), begun, ended], [1, alpha, -alpha])}

    def aggregate(self, server: Record, uploads: Uploads, ctx: ServerContext) -> Record:
        alpha, share = self.options.alpha, len(uploads) / ctx.task.clients
        mean = self.mean(uploads, weights="uniform")
        mean_parameters, old_parameters = parameters(mean, ctx.task), parameters(get_tree(server, "model"), ctx.task)
        h = combine([get_tree(server, "h"), mean_parameters, old_parameters], [1, -alpha * share, alpha * share])
        return {"model": mean | combine([mean_parameters, h], [1, -1 / alpha]), "h": h}

    def predictors(self, server: Record, state: Record | None, ctx: ServerContext) -> dict[str, Predictor]:
        predictors = super().predictors(server, state, ctx)
        if state is None:
            model = get_tree(server, "model")
            shifted = combine([parameters(model, ctx.task), get_tree(server, "h")], [1, 1 / self.options.alpha])
            predictors["average"] = Predictor(model | shifted)
        return predictors
