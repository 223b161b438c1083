from typing import cast

import torch
from torch import Tensor, nn

import fedloom.methods as fm

BIAS, MEAN = f"{fm.EXTRA}.bias", f"{fm.EXTRA}.mean"


class Debiased(fm.Method):
    """Keeps a running mean m of a client's features in an entry of the net. A term of value zero gives it the gradient
    mu (m - mean z), so that a step of rate 1 makes m <- (1 - mu) m + mu mean z on every engine."""

    class Options(fm.Options):
        kappa: float = fm.option(
            50.0, "Strength of the pull of the features' running mean to the consensus; 0 has no opening.", ge=0
        )
        mu: float = fm.option(1.0, "Share of the present batch in the running mean.", gt=0, le=1)
        bias: bool = fm.option(True, "Whether clients have a private vector; without it, it stays 0.")
        bias_lr: float | None = fm.option(
            None, "Rate of the private vector's plain gradient steps. Null takes the run's.", gt=0
        )

    @classmethod
    def name(cls) -> str:
        return "feddbe"

    def extra(self, net: fm.Net) -> nn.Module:
        head, extra = net.head, nn.Module()
        for name in ("bias", "mean"):
            zeros = torch.zeros(head.in_features, dtype=head.weight.dtype)
            extra.register_parameter(name, nn.Parameter(zeros))
        return extra

    def phases(self, start: fm.Start, ctx: fm.ClientContext) -> list[fm.Phase]:
        run = ctx.task.optimizer
        bias_lr = run.lr if self.options.bias_lr is None else self.options.bias_lr
        rates = {BIAS: fm.OptimizerSpec(lr=bias_lr, decay=run.decay), MEAN: fm.OptimizerSpec(lr=1.0)}
        return [fm.Train(self.loss, ctx.task.local_epochs, optimizer=rates)]

    def tracked(self, net: fm.Net, batch: fm.Batch, z: Tensor) -> tuple[Tensor, Tensor]:
        """Return m with this batch's features z [d], which gradients reach, and the term of value 0 that moves m."""
        before, mean = cast(Tensor, net.extra.mean), batch.mean(z)
        # its gradient moves m by mu (m - mean), a running mean; the value is taken out again, so the loss is CE alone
        tracking = self.options.mu / 2 * (before - mean.detach()).square().sum()
        return (1 - self.options.mu) * before.detach() + self.options.mu * mean, tracking - tracking.detach()


@fm.register
class FedDBE(Debiased):
    """FedDBE: a private vector takes the bias of a client out of the features, whose mean is held to a consensus. Zhang
    et al., NeurIPS 2023, arXiv 2311.14975.

    Opening round: all train from the first weights and send the running mean of features, whose mean by samples is the
    goal. Local: CE of head(z + b_k) + kappa / 2 mean_d (m - goal)^2, b_k [d] the private vector, m a running mean of
    features from 0 in each round. Server: as FedAvg. Tested with b_k, 0 for newcomers and the global model."""

    spec = fm.Spec(receives=None, private=frozenset({fm.Role.EXTRA}), features=True, labels="multi")

    def examine(self, tasks: fm.Tasks, participants: int) -> list[fm.Diagnostic]:
        diagnostics = super().examine(tasks, participants)
        if self.options.kappa == 0:
            message = "kappa = 0: there is no consensus, and features are pulled nowhere"
            diagnostics.append(fm.Diagnostic("feddbe.no_consensus", message, 0.0))
        return diagnostics

    def opening(self) -> fm.Method | None:
        return Consensus(self.options) if self.options.kappa else None

    def client_init(self, ctx: fm.ClientContext) -> fm.Record:
        return {"bias": ctx.task.init[BIAS]}

    def begin(self, payload: fm.Record, state: fm.Record, ctx: fm.ClientContext) -> fm.Start:
        consts = {"goal": fm.get_tensor(payload, "goal")} if "goal" in payload else {}
        return fm.Start(with_bias(fm.get_tree(payload, "model"), fm.get_tensor(state, "bias"), ctx.task), consts)

    def loss(self, net: fm.Net, batch: fm.Batch, consts: fm.Consts) -> fm.Objective:
        z = net.features(batch.x)
        debiased = z + bias_of(net) if self.options.bias else z
        terms = {"ce": batch.mean(fm.cross_entropy(net.head(debiased), batch.y))}
        if "goal" not in consts:
            return fm.Objective.sum(terms)
        mean, tracking = self.tracked(net, batch, z)
        terms["consensus"] = self.options.kappa / 2 * (mean - consts["goal"]).square().mean()
        objective = fm.Objective.sum(terms)
        return objective._replace(total=objective.total + tracking)

    def end(self, work: fm.Work, state: fm.Record, ctx: fm.ClientContext) -> tuple[fm.Record, fm.Record]:
        payload, _ = super().end(work, state, ctx)
        return payload, {"bias": work.tree[BIAS]}

    def aggregate(self, server: fm.Record, uploads: fm.Uploads, ctx: fm.ServerContext) -> fm.Record:
        return server | super().aggregate(server, uploads, ctx)

    def predictors(self, server: fm.Record, state: fm.Record | None, ctx: fm.ServerContext) -> dict[str, fm.Predictor]:
        bias = ctx.task.init[BIAS] if state is None else fm.get_tensor(state, "bias")
        tree = with_bias(fm.get_tree(server, "model"), bias, ctx.task)
        return {"global" if state is None else "personal": fm.Predictor(tree, debiased_logits)}


class Consensus(Debiased):
    """The opening round of FedDBE."""

    spec = fm.Spec(
        private=frozenset({fm.Role.EXTRA}), features=True, sends={"mean": fm.Sent(statistic="mean of features")}
    )

    def begin(self, payload: fm.Record, state: fm.Record, ctx: fm.ClientContext) -> fm.Start:
        return fm.Start(with_bias(fm.get_tree(payload, "model"), ctx.task.init[BIAS], ctx.task), {})

    def loss(self, net: fm.Net, batch: fm.Batch, consts: fm.Consts) -> fm.Objective:
        z = net.features(batch.x)
        ce = batch.mean(fm.cross_entropy(net.head(z), batch.y))
        return fm.Objective(ce + self.tracked(net, batch, z)[1], {"ce": ce})

    def end(self, work: fm.Work, state: fm.Record, ctx: fm.ClientContext) -> tuple[fm.Record, fm.Record]:
        return {"mean": work.tree[MEAN], "samples": ctx.samples}, state

    def aggregate(self, server: fm.Record, uploads: fm.Uploads, ctx: fm.ServerContext) -> fm.Record:
        return server | {"goal": self.mean(uploads, "mean").to(ctx.task.init[MEAN].dtype)}


def with_bias(shared: fm.Tree, bias: Tensor, task: fm.Task) -> fm.Tree:
    """Return the net's full weights from `shared` entries and a client's `bias` [d], with a running mean of 0."""
    tree = shared | {BIAS: bias, MEAN: torch.zeros_like(bias)}
    return {name: tree[name] for name in task.init}


def bias_of(net: fm.Net) -> Tensor:
    """Return b_k [d] of a net."""
    return cast(Tensor, net.extra.bias)


def debiased_logits(net: fm.Net, x: Tensor) -> Tensor:
    """Return the logits [B, C] of the head on z + b_k."""
    return cast(Tensor, net.head(net.features(x) + bias_of(net)))
