import torch

import fedloom.methods as fm
from fedloom.core import trees
from fedloom.methods.parts.parameters import clipped, parameters, zeros


@fm.register
class FedDyn(fm.Method):
    """FedDyn: a regulariser that makes the clients' optima agree with the global one. Acar et al., ICLR 2021, arXiv
    2111.04263, Algorithm 1.

    Local: CE - <g_k, w> + (alpha / 2) |w - w^t|^2. Then g_k <- g_k - alpha (w_k - w^t). Server: h <- h - (alpha / N)
    sum_k (w_k - w^t), N all clients; w <- mean_k(w_k) - h / alpha, by uniform weights. g_k, h and both terms are over
    parameters; buffers are averaged. The predictor "average", mean_k(w_k), is in the paper's results too."""

    spec = fm.Spec(sends={"model": fm.Sent()}, labels="multi")

    class Options(fm.Options):
        alpha: float = fm.option(0.01, "Strength of the regulariser, which is undefined at 0.", gt=0)
        clip: float | None = fm.option(None, "Bound of the gradients' joint 2-norm. Null is no bound.", gt=0)

    def server_init(self, ctx: fm.ServerContext) -> fm.Record:
        return super().server_init(ctx) | {"h": zeros(ctx.task)}

    def client_init(self, ctx: fm.ClientContext) -> fm.Record:
        return {"g": zeros(ctx.task)}

    def begin(self, payload: fm.Record, state: fm.Record, ctx: fm.ClientContext) -> fm.Start:
        start = super().begin(payload, {}, ctx)
        return fm.Start(start.tree, {"received": start.tree, "g": fm.get_tree(state, "g")})

    def phases(self, start: fm.Start, ctx: fm.ClientContext) -> list[fm.Phase]:
        clip = self.options.clip
        return [fm.Train(self.loss, ctx.task.local_epochs, grad_map=clipped(clip) if clip else None)]

    def loss(self, net: fm.Net, batch: fm.Batch, consts: fm.Consts) -> fm.Objective:
        ce = batch.mean(fm.cross_entropy(net(batch.x), batch.y))
        weights: fm.Tree = dict(net.named_parameters())
        linear = torch.stack([(consts["g"][name] * value).sum() for name, value in weights.items()]).sum()
        proximal = trees.squared_distance(weights, consts["received"])
        return fm.Objective.sum({"ce": ce, "linear": -linear, "proximal": 0.5 * self.options.alpha * proximal})

    def end(self, work: fm.Work, state: fm.Record, ctx: fm.ClientContext) -> tuple[fm.Record, fm.Record]:
        payload, _ = super().end(work, {}, ctx)
        begun, ended = parameters(work.start.tree, ctx.task), parameters(work.tree, ctx.task)
        alpha = self.options.alpha
        return payload, {"g": fm.combine([fm.get_tree(state, "g"), begun, ended], [1, alpha, -alpha])}

    def aggregate(self, server: fm.Record, uploads: fm.Uploads, ctx: fm.ServerContext) -> fm.Record:
        alpha, share = self.options.alpha, len(uploads) / ctx.task.clients
        mean = self.mean(uploads, weights="uniform")
        mean_parameters, old_parameters = parameters(mean, ctx.task), parameters(fm.get_tree(server, "model"), ctx.task)
        h = fm.combine([fm.get_tree(server, "h"), mean_parameters, old_parameters], [1, -alpha * share, alpha * share])
        return {"model": mean | fm.combine([mean_parameters, h], [1, -1 / alpha]), "h": h}

    def predictors(self, server: fm.Record, state: fm.Record | None, ctx: fm.ServerContext) -> dict[str, fm.Predictor]:
        predictors = super().predictors(server, state, ctx)
        if state is None:
            model = fm.get_tree(server, "model")
            shifted = fm.combine([parameters(model, ctx.task), fm.get_tree(server, "h")], [1, 1 / self.options.alpha])
            predictors["average"] = fm.Predictor(model | shifted)
        return predictors
