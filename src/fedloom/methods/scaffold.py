from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.func import functional_call

import fedloom.methods as fm
from fedloom.methods.parts.parameters import difference, parameters, zeros


@fm.register
class SCAFFOLD(fm.Method):
    """SCAFFOLD: control variates cancel client drift. Karimireddy et al., ICML 2020, arXiv 1910.06378, Algorithm 1.

    Local: w <- w - eta (grad CE(w) - c_k + c), K_k steps. Then c_k+ = c_k - c + (w^t - w_k) / (K_k eta) (option II), or
    the gradient at w^t (option I). Server: w <- w + eta_g mean_k(w_k - w^t); c <- c + (1 / N) sum_k (c_k+ - c_k), of
    all N. Controls cover parameters; buffers are averaged."""

    spec = fm.Spec(
        receives=None, sends={"model": fm.Sent(), "control": fm.Sent(form="change", spread=2.0)}, labels="multi"
    )

    class Options(fm.Options):
        option: Literal[1, 2] = fm.option(
            2,
            "How a client renews its control variate: 2 from the steps that it made, 1 as the gradient over all its "
            "data at the received weights (one more pass).",
        )
        server_lr: float = fm.option(1.0, "eta_g, the server's step towards the mean.", gt=0)

    def examine(self, tasks: fm.Tasks, participants: int) -> list[fm.Diagnostic]:
        optimizer, plain = tasks[0].optimizer, fm.OptimizerSpec()
        for key in ("name", "momentum", "weight_decay", "decay") if self.options.option == 2 else ():
            if getattr(optimizer, key) != getattr(plain, key):
                raise fm.ConfigError(
                    f"optimizer.{key} = {getattr(optimizer, key)}: scaffold's option 2 takes the mean gradient from "
                    "the way that plain SGD went at one rate; use plain SGD without decay, or scaffold.option=1"
                )
        return super().examine(tasks, participants)

    def server_init(self, ctx: fm.ServerContext) -> fm.Record:
        return super().server_init(ctx) | {"control": zeros(ctx.task)}

    def client_init(self, ctx: fm.ClientContext) -> fm.Record:
        return {"control": zeros(ctx.task)}

    def begin(self, payload: fm.Record, state: fm.Record, ctx: fm.ClientContext) -> fm.Start:
        correction = difference(fm.get_tree(payload, "control"), fm.get_tree(state, "control"))
        return fm.Start(fm.get_tree(payload, "model"), {"correction": correction})

    def phases(self, start: fm.Start, ctx: fm.ClientContext) -> list[fm.Phase]:
        train = fm.Train(self.loss, ctx.task.local_epochs, grad_map=_corrected)
        return [train] if self.options.option == 2 else [fm.Collect({"gradient": _MeanGradient(_gradient)}), train]

    def end(self, work: fm.Work, state: fm.Record, ctx: fm.ClientContext) -> tuple[fm.Record, fm.Record]:
        payload, _ = super().end(work, {}, ctx)
        old_control, distance = fm.get_tree(state, "control"), work.steps * ctx.lr
        new_control = old_control
        if self.options.option == 1:
            new_control = _as_tree(fm.get_tensor(dict(work.collected), "gradient"), old_control)
        elif distance:
            begun, ended = parameters(work.start.tree, ctx.task), parameters(work.tree, ctx.task)
            new_control = fm.combine([begun, ended, work.start.consts["correction"]], [1 / distance, -1 / distance, -1])
        return payload | {"control": difference(new_control, old_control)}, {"control": new_control}

    def aggregate(self, server: fm.Record, uploads: fm.Uploads, ctx: fm.ServerContext) -> fm.Record:
        model, rate = self.mean(uploads, weights="uniform"), self.options.server_lr
        if rate != 1:
            old_and_new = [parameters(tree, ctx.task) for tree in (fm.get_tree(server, "model"), model)]
            model = model | fm.combine(old_and_new, [1 - rate, rate])
        change, share = self.mean(uploads, "control", "uniform"), len(uploads) / ctx.task.clients
        return {"model": model, "control": fm.combine([fm.get_tree(server, "control"), change], [1, share])}


def _corrected(gradients: fm.Tree, parameters: fm.Tree, consts: fm.Consts) -> fm.Tree:
    """Each gradient - c_k + c."""
    return {name: gradient + consts["correction"][name] for name, gradient in gradients.items()}


@dataclass(frozen=True, slots=True)
class _MeanGradient(fm.SampleMean):
    """Statistic: the mean over all samples of what `of` gives as the mean of a batch, here a gradient [n]."""

    def add(self, sums: fm.Tree, values: Tensor, batch: fm.Batch, num_classes: int) -> fm.Tree:
        count = torch.tensor(float(len(batch.y))) if batch.mask is None else batch.mask.sum()
        fresh = {"sums": values.double() * count, "counts": count}
        return {name: sums[name] + fresh[name] for name in fresh} if sums else fresh


def _gradient(net: fm.Net, batch: fm.Batch, consts: fm.Consts) -> Tensor:
    """The gradient of the batch's mean cross-entropy, all entries in one [n], in their order."""

    def loss(tree: fm.Tree) -> Tensor:
        return batch.mean(fm.cross_entropy(functional_call(net, tree, (batch.x,)), batch.y))

    gradients = torch.func.grad(loss)(dict(net.named_parameters()))
    return torch.cat([gradient.flatten() for gradient in gradients.values()])


def _as_tree(flat: Tensor, like: fm.Tree) -> fm.Tree:
    parts = torch.split(flat, [value.numel() for value in like.values()])
    named = zip(like.items(), parts, strict=True)
    return {name: part.to(value.dtype).reshape(value.shape).clone() for (name, value), part in named}
