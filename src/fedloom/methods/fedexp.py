from collections.abc import Mapping
from typing import Literal

import torch

import fedloom.methods as fm
from fedloom.methods.parts.parameters import difference, parameters


@fm.register
class FedExP(fm.Method):
    """FedExP: a longer server step where clients disagree. Jhunjhunwala, Wang, Joshi, ICLR 2023, arXiv 2301.09604.

    Server: D_k = w_k - w^t, D = sum_k p_k D_k, eta = max(1, sum_k p_k |D_k|^2 / (2 (|D|^2 + eps))); w <- w + eta D.
    Tested: the mean of the last two w; the next round starts from the last. Buffers are averaged alone."""

    spec = fm.Spec(sends={"model": fm.Sent(), "squared_length": fm.Sent(spread=10.0)}, labels="multi")

    class Options(fm.Options):
        eps: float = fm.option(1e-3, "Number that keeps the divisor of the server's step from 0.", ge=0)
        eps_by_participants: bool = fm.option(False, "Multiply eps by the number of participants.")
        weights: Literal["samples", "uniform"] = fm.option("samples", "Weights p_k of the means over clients.")
        average: bool = fm.option(True, "Test the mean of the last two iterates instead of the last one.")

    def examine(self, tasks: fm.Tasks, participants: int) -> list[fm.Diagnostic]:
        diagnostics, optimizer = super().examine(tasks, participants), tasks[0].optimizer
        if optimizer.name == "sgd" and not optimizer.momentum:
            return diagnostics
        message = "fedexp: the bound behind the server's step is of plain SGD at the clients; they train with "
        message += optimizer.name if optimizer.name != "sgd" else f"momentum {optimizer.momentum:g}"
        return [*diagnostics, fm.Diagnostic("fedexp.not_plain_sgd", message, optimizer.momentum)]

    def server_init(self, ctx: fm.ServerContext) -> fm.Record:
        server = super().server_init(ctx)
        return server | {"previous": parameters(fm.get_tree(server, "model"), ctx.task), "rate": 1.0}

    def end(self, work: fm.Work, state: fm.Record, ctx: fm.ClientContext) -> tuple[fm.Record, fm.Record]:
        payload, state = super().end(work, state, ctx)
        change = difference(*(parameters(tree, ctx.task) for tree in (work.tree, work.start.tree)))
        # the client squares its own change, so that the server needs no more than a mean
        squares = [value.double().square().sum() for value in change.values()]
        return payload | {"squared_length": torch.stack(squares).sum()}, state

    def aggregate(self, server: fm.Record, uploads: fm.Uploads, ctx: fm.ServerContext) -> fm.Record:
        options = self.options
        model = self.mean(uploads, weights=options.weights)
        squared_length = float(self.mean(uploads, "squared_length", options.weights))
        old, mean = (parameters(tree, ctx.task) for tree in (fm.get_tree(server, "model"), model))
        eps = options.eps * (len(uploads) if options.eps_by_participants else 1)
        squared_mean = sum(float((mean[name].double() - old[name].double()).square().sum()) for name in mean)
        # eta_g = max(1, mean |change|^2 / 2 (|mean change|^2 + eps)): large where changes point apart
        divisor = 2 * (squared_mean + eps)
        rate = max(1.0, squared_length / divisor) if divisor > 0 else 1.0
        if rate > 1:
            model = model | fm.combine([old, mean], [1 - rate, rate])
        return {"model": model, "previous": old, "rate": rate}

    def tested(self, server: fm.Record, ctx: fm.ServerContext) -> fm.Record:
        if not self.options.average:
            return server
        model = fm.get_tree(server, "model")
        iterates = [parameters(model, ctx.task), fm.get_tree(server, "previous")]
        return server | {"model": model | fm.combine(iterates, [0.5, 0.5])}

    def figures(self, server: fm.Record, ctx: fm.ServerContext) -> Mapping[str, float]:
        return {**super().figures(server, ctx), "server_step": fm.get_number(server, "rate")}
