from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call

import fedloom.methods as fm
from fedloom.methods.contract.means import recorded_shares

_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


@fm.register
class HeteroFL(fm.Method):
    """HeteroFL: weak clients train the leading slice of every layer. Diao, Ding, Tarokh, ICLR 2021, arXiv 2010.01264.

    The models of a run are one kind of net in several widths, the widest first; r is a client's share of the widest
    net's features. Local: CE, outputs of hidden layers divided by r (Scaler), logits of absent classes set to 0.
    Server: each number is the mean over the clients that hold it, a row of the head over those that hold its class.
    Tested: the widest net, without Scaler."""

    spec = fm.Spec(
        architectures="any",
        features=True,
        sends={
            "model": fm.Sent(sliced=True),
            "classes": fm.Sent(per_client=True, labels=True, statistic="held classes"),
        },
        labels="multi",
    )

    class Options(fm.Options):
        scaler: bool = fm.option(True, "Divide the outputs of hidden layers by the client's rate in training.")
        mask: bool = fm.option(True, "Set the logits of classes that the client lacks to 0 in training.")
        weights: Literal["uniform", "samples"] = fm.option("uniform", "Weights of the clients that hold a number.")

    def examine(self, tasks: fm.Tasks, participants: int) -> list[fm.Diagnostic]:
        diagnostics = super().examine(tasks, participants)
        for task in tasks[1:]:
            self._require_slice(task, tasks[0])
        if len({task.feature_dim for task in tasks}) > 1:
            return diagnostics
        message = "heterofl: all clients have one width; give several widths of one model, the widest first"
        return [*diagnostics, fm.Diagnostic("heterofl.one_width", message, float(len(tasks)))]

    def _require_slice(self, task: fm.Task, widest: fm.Task) -> None:
        if task.init.keys() != widest.init.keys():
            odd = sorted(task.init.keys() ^ widest.init.keys())[0]
            raise fm.ConfigError(f"{self.name()}: models differ in {odd}; give several widths of one kind of model")
        for name, value in task.init.items():
            whole = widest.init[name].shape
            if value.dim() != len(whole) or any(a > b for a, b in zip(value.shape, whole, strict=True)):
                raise fm.ConfigError(
                    f"{self.name()}: {name} {tuple(value.shape)} of model {task.group + 1} is no slice of "
                    f"{tuple(whole)} of the first; the first model must be the widest"
                )

    def server_init(self, ctx: fm.ServerContext) -> fm.Record:
        return super().server_init(ctx) | {"width": ctx.task.feature_dim}

    def down(self, server: fm.Record, client: int, ctx: fm.ServerContext) -> fm.Record:
        part = leading_slice(fm.get_tree(server, "model"), ctx.task)
        return {"model": part, "rate": ctx.task.feature_dim / fm.get_number(server, "width")}

    def begin(self, payload: fm.Record, state: fm.Record, ctx: fm.ClientContext) -> fm.Start:
        start = super().begin(payload, state, ctx)
        consts: fm.Consts = {"held": ctx.class_counts > 0} if self.options.mask else {}
        return fm.Start(start.tree, consts | {"rate": fm.get_number(payload, "rate") if self.options.scaler else 1.0})

    def loss(self, net: fm.Net, batch: fm.Batch, consts: fm.Consts) -> fm.Objective:
        logits = scaled_logits(net, batch.x, consts["rate"])
        if "held" in consts and batch.y.dim() == 1:  # several labels share no softmax
            # masked logits are 0 and not -inf, as in the released code: they stay in the softmax
            logits = torch.where(consts["held"], logits, 0.0)
        return fm.Objective.sum({"ce": batch.mean(fm.cross_entropy(logits, batch.y))})

    def end(self, work: fm.Work, state: fm.Record, ctx: fm.ClientContext) -> tuple[fm.Record, fm.Record]:
        payload, state = super().end(work, state, ctx)
        return payload | {"classes": ctx.class_counts > 0}, state

    def aggregate(self, server: fm.Record, uploads: fm.Uploads, ctx: fm.ServerContext) -> fm.Record:
        weights = [self._weights(upload, ctx.task) for upload in uploads.values()]
        model = self.mean(uploads, weights=weights, within=fm.get_tree(server, "model"))
        return {"model": model, "width": server["width"]}

    def predictors(self, server: fm.Record, state: fm.Record | None, ctx: fm.ServerContext) -> dict[str, fm.Predictor]:
        part = leading_slice(fm.get_tree(server, "model"), ctx.task)
        return super().predictors({**server, "model": part}, state, ctx)

    def _weights(self, upload: fm.Record, task: fm.Task) -> fm.Tree:
        factor = fm.get_number(upload, "samples") if self.options.weights == "samples" else 1.0
        held = fm.get_tensor(upload, "classes").double()
        if (shares := recorded_shares({0: upload})) is not None:
            held = shares[0]
        weights = fm.Tree()
        for name, value in fm.get_tree(upload, "model").items():
            of_rows = task.roles[name] is fm.Role.HEAD and value.shape[:1] == held.shape
            # rows of classes that a client lacks are not averaged: masked logits gave them no gradient
            rows = held.view(-1, *(1,) * (value.dim() - 1)) if of_rows else held.new_ones(())
            weights[name] = factor * rows
        return weights


def leading_slice(model: fm.Tree, task: fm.Task) -> fm.Tree:
    """Return the part of the widest net's weights that a client of `task` trains."""
    return {name: model[name][tuple(map(slice, value.shape))] for name, value in task.init.items()}


def scaled_logits(net: fm.Net, x: Tensor, rate: float) -> Tensor:
    """Return the logits [B, C] of x with the outputs of all layers below the head divided by `rate`."""
    if rate == 1:
        return cast(Tensor, net(x))
    hidden = {
        f"{path}.{name}": value / rate
        for path, module in net.named_modules()
        if isinstance(module, _LAYERS) and path.partition(".")[0] != "head"
        for name, value in module.named_parameters(recurse=False)
    }
    return cast(Tensor, functional_call(net, hidden, (x,)))
