"""SCAFFOLD."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.func import functional_call

from fedloom.core.errors import ConfigError
from fedloom.core.records import Record, get_tensor, get_tree
from fedloom.core.trees import Tree, combine
from fedloom.methods.contract import method
from fedloom.methods.contract.citation import Citation
from fedloom.methods.contract.contexts import ClientContext, Diagnostic, ServerContext, Start, Task, Work
from fedloom.methods.contract.losses import cross_entropy
from fedloom.methods.contract.method import PRESETS, Uploads, register
from fedloom.methods.contract.phases import Batch, Collect, Consts, OptimizerSpec, Phase, Train
from fedloom.methods.contract.sample_statistics import SampleMean
from fedloom.methods.contract.spec import Sent, Spec
from fedloom.methods.parts.parameters import difference, parameters, zeros
from fedloom.nets.net import Net


class Options(method.Options):
    """Options of SCAFFOLD."""

    option: Literal[1, 2] = Field(
        2,
        description="How a client renews its control variate: 2 from the steps that it made, 1 as the gradient over "
        "all its data at the received weights (one more pass).",
    )
    server_lr: float = Field(1.0, gt=0, description="eta_g, the server's step towards the mean.")


@register
class SCAFFOLD(method.Method):
    """SCAFFOLD: control variates cancel client drift. Karimireddy et al., ICML 2020, arXiv 1910.06378, Algorithm 1.

    Down: weights w^t, control c.   Up: weights, change of the own control.   Client state: own control c_k, 0 at first.
    Local: w <- w - eta (grad CE(w) - c_k + c), K_k steps. Then c_k+ = c_k - c + (w^t - w_k) / (K_k eta) (option II), or
    the gradient at w^t (option I).
    Server: w <- w + eta_g mean_k(w_k - w^t), all participants alike; c <- c + (1 / N) sum_k (c_k+ - c_k), of all N.

    Controls cover parameters; buffers are averaged.
    """

    spec = Spec(sends={"model": Sent(), "control": Sent(form="change", spread=2.0)})
    Options = Options
    settings = {name: {"optimizer": {"momentum": 0.0}} for name in PRESETS}  # noqa: RUF012
    citation = Citation(
        "Karimireddy et al.",
        "ICML",
        2020,
        "arXiv 1910.06378",
        {"P": 1, "W": 1},
        {"P": 1, "W": 1},
        {"W": 1},
        compared_in=("fedskc",),
        our_choice="Option I's gradient is taken in evaluation mode. A client that made no step, or none of any "
        "length, keeps its control.",
    )

    def examine(self, tasks: Sequence[Task], participants: int) -> list[Diagnostic]:
        optimizer, plain = tasks[0].optimizer, OptimizerSpec()
        for key in ("name", "momentum", "weight_decay", "decay") if self.options.option == 2 else ():
            if getattr(optimizer, key) != getattr(plain, key):
                raise ConfigError(
                    f"optimizer.{key} = {getattr(optimizer, key)}: scaffold's option 2 takes the mean gradient from "
                    "the way that plain SGD went at one rate; use plain SGD without decay, or scaffold.option=1"
                )
        return super().examine(tasks, participants)

    def server_init(self, ctx: ServerContext) -> Record:
        return super().server_init(ctx) | {"control": zeros(ctx.task)}

    def client_init(self, ctx: ClientContext) -> Record:
        return {"control": zeros(ctx.task)}

    def down(self, server: Record, client: int, ctx: ServerContext) -> Record:
        return server

    def begin(self, payload: Record, state: Record, ctx: ClientContext) -> Start:
        correction = difference(get_tree(payload, "control"), get_tree(state, "control"))
        return Start(get_tree(payload, "model"), {"correction": correction})

    def phases(self, start: Start, ctx: ClientContext) -> list[Phase]:
        train = Train(self.loss, ctx.task.local_epochs, grad_map=_corrected)
        return [train] if self.options.option == 2 else [Collect({"gradient": _MeanGradient(_gradient)}), train]

    def end(self, work: Work, state: Record, ctx: ClientContext) -> tuple[Record, Record]:
        payload, _ = super().end(work, {}, ctx)
        old_control, distance = get_tree(state, "control"), work.steps * ctx.lr
        new_control = old_control
        if self.options.option == 1:
            new_control = _as_tree(get_tensor(dict(work.collected), "gradient"), old_control)
        elif distance:
            begun, ended = parameters(work.start.tree, ctx.task), parameters(work.tree, ctx.task)
            new_control = combine([begun, ended, work.start.consts["correction"]], [1 / distance, -1 / distance, -1])
        return payload | {"control": difference(new_control, old_control)}, {"control": new_control}

    def aggregate(self, server: Record, uploads: Uploads, ctx: ServerContext) -> Record:
        model, rate = self.mean(uploads, weights="uniform"), self.options.server_lr
        if rate != 1:
            old_and_new = [parameters(tree, ctx.task) for tree in (get_tree(server, "model"), model)]
            model = model | combine(old_and_new, [1 - rate, rate])
        change, share = self.mean(uploads, "control", "uniform"), len(uploads) / ctx.task.clients
        return {"model": model, "control": combine([get_tree(server, "control"), change], [1, share])}


def _corrected(gradients: Tree, parameters: Tree, consts: Consts) -> Tree:
    """Each gradient - c_k + c."""
    return {name: gradient + consts["correction"][name] for name, gradient in gradients.items()}


@dataclass(frozen=True, slots=True)
class _MeanGradient(SampleMean):
    """Statistic: the mean over all samples of what `of` gives as the mean of a batch, here a gradient [n]."""

    def add(self, sums: Tree, values: Tensor, batch: Batch, num_classes: int) -> Tree:
        count = torch.tensor(float(len(batch.y))) if batch.mask is None else batch.mask.sum()
        fresh = {"sums": values.double() * count, "counts": count}
        return {name: sums[name] + fresh[name] for name in fresh} if sums else fresh


def _gradient(net: Net, batch: Batch, consts: Consts) -> Tensor:
    """The gradient of the batch's mean cross-entropy, all entries in one [n], in their order."""

    def loss(tree: Tree) -> Tensor:
        return batch.mean(cross_entropy(functional_call(net, tree, (batch.x,)), batch.y))

    gradients = torch.func.grad(loss)(dict(net.named_parameters()))
    return torch.cat([gradient.flatten() for gradient in gradients.values()])


def _as_tree(flat: Tensor, like: Tree) -> Tree:
    parts = torch.split(flat, [value.numel() for value in like.values()])
    named = zip(like.items(), parts, strict=True)
    return {name: part.to(value.dtype).reshape(value.shape).clone() for (name, value), part in named}
