from dataclasses import replace

import torch
from torch import Tensor

import fedloom.methods as fm
from fedloom.methods.parts.parameters import difference, parameters

_LOSSES_APART = 4.0  # how many times the median client's loss an honest one may be: uploads carry its power q
_LEAST_LOSS = 1e-10  # added to a client's loss, as in the released code
_LEAST_RATE = 1e-100  # its inverse is squared


@fm.register
class QFedAvg(fm.Method):
    """q-FedAvg: clients with high losses count more, for fairness. Li et al., ICLR 2020, arXiv 1905.10497, Algorithm 2.

    F is a client's mean CE of the received weights, L = 1 / rate, D = L (w^t - w_k). It sends F^q D and h = q F^(q-1)
    |D|^2 + L F^q. Server: w <- w^t - sum_k F_k^q D_k / sum_k h_k. Clients train by plain SGD. Buffers are averaged."""

    spec = fm.Spec(sends={"model": fm.Sent(form="change"), "h": fm.Sent(spread=1000.0)}, labels="multi")

    class Options(fm.Options):
        q: float = fm.option(
            1.0, "How much more a client with a high loss counts. With 0 all participants count equally.", ge=0, le=60
        )

    def __init__(self, options: fm.Options | None = None) -> None:
        super().__init__(options)
        changes = replace(self.spec.sends["model"], spread=max(1.0, _LOSSES_APART**self.options.q))
        self.spec = replace(self.spec, sends={**self.spec.sends, "model": changes})

    def examine(self, tasks: fm.Tasks, participants: int) -> list[fm.Diagnostic]:
        optimizer = tasks[0].optimizer
        if optimizer.name != "sgd" or optimizer.momentum:
            found = f"name = {optimizer.name}" if optimizer.name != "sgd" else f"momentum = {optimizer.momentum:g}"
            raise fm.ConfigError(
                f"optimizer.{found}: qfedavg takes 1 / rate for the curvature of the loss, which holds for plain SGD; "
                "use sgd with momentum 0"
            )
        last_rate = optimizer.lr_in(tasks[0].rounds)
        if last_rate < _LEAST_RATE:
            raise fm.ConfigError(
                f"optimizer.decay = {optimizer.decay:g}: the rate of the last round is {last_rate:g}, and qfedavg "
                f"takes 1 / rate; need {_LEAST_RATE:g} or more"
            )
        return super().examine(tasks, participants)

    def phases(self, start: fm.Start, ctx: fm.ClientContext) -> list[fm.Phase]:
        return [fm.Collect({"loss": fm.Moments(_losses)}), *super().phases(start, ctx)]

    def end(self, work: fm.Work, state: fm.Record, ctx: fm.ClientContext) -> tuple[fm.Record, fm.Record]:
        moments, inverse_rate = work.collected["loss"], 1 / ctx.lr
        loss, q = moments["sum"][0] / moments["count"] + _LEAST_LOSS, self.options.q
        weight = float(loss**q)
        begun, ended = parameters(work.start.tree, ctx.task), parameters(work.tree, ctx.task)
        squares = torch.stack([(begun[n].double() - ended[n].double()).square().sum() for n in begun]).sum()
        # an upper bound of the local Lipschitz constant of F^(q+1) / (q+1), which sets the step
        h = q * loss ** (q - 1) * inverse_rate**2 * squares + inverse_rate * weight
        scaled = fm.combine([begun, ended], [weight * inverse_rate, -weight * inverse_rate])
        buffers = {name: value for name, value in work.tree.items() if name not in begun}
        moved = {n: v for n, v in buffers.items() if v.is_floating_point()}
        tree = work.tree | buffers | difference(moved, work.start.tree) | scaled
        return {"model": tree, "h": h, "samples": ctx.samples}, {}

    def aggregate(self, server: fm.Record, uploads: fm.Uploads, ctx: fm.ServerContext) -> fm.Record:
        change, h = self.mean(uploads, weights="uniform"), float(self.mean(uploads, "h", "uniform"))
        model = fm.get_tree(server, "model")
        trained = parameters(model, ctx.task)
        buffers = {name: value for name, value in change.items() if name not in trained}
        moved = [name for name, value in buffers.items() if value.is_floating_point()]
        sums = fm.combine([{n: model[n] for n in moved}, {n: buffers[n] for n in moved}], [1, 1]) if moved else {}
        # a mean over a mean: the number of participants cancels
        steps = fm.combine([trained, {name: change[name] for name in trained}], [1, -1 / h])
        return {"model": model | buffers | sums | steps}


def _losses(net: fm.Net, batch: fm.Batch, consts: fm.Consts) -> Tensor:
    return fm.cross_entropy(net(batch.x), batch.y).unsqueeze(1)
