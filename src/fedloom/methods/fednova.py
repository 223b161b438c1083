import fedloom.methods as fm
from fedloom.methods.parts.parameters import parameters


@fm.register
class FedNova(fm.Method):
    """FedNova: clients' changes are divided by their numbers of steps before they are averaged. Wang et al., NeurIPS
    2020, arXiv 2007.07481.

    Server: d_k = (w^t - w_k) / |a_k|_1, p_k = n_k / n; w <- w - (sum_k p_k |a_k|_1) sum_k p_k d_k. |a_k|_1 is K_k with
    plain SGD, and sum_{i=1..K_k} (1 - rho^i) / (1 - rho) with local momentum rho."""

    spec = fm.Spec(sends={"model": fm.Sent(), "norm": fm.Sent(per_client=True)}, labels="multi", fewer_steps=True)

    def examine(self, tasks: fm.Tasks, participants: int) -> list[fm.Diagnostic]:
        if (name := tasks[0].optimizer.name) != "sgd":
            raise fm.ConfigError(
                f"optimizer.name = {name}: fednova divides by how often a gradient counts in SGD, with or without "
                "momentum; use sgd"
            )
        return super().examine(tasks, participants)

    def end(self, work: fm.Work, state: fm.Record, ctx: fm.ClientContext) -> tuple[fm.Record, fm.Record]:
        payload, state = super().end(work, state, ctx)
        return payload | {"norm": gradient_weight(work.steps, ctx.task.optimizer.momentum)}, state

    def aggregate(self, server: fm.Record, uploads: fm.Uploads, ctx: fm.ServerContext) -> fm.Record:
        samples, norms = (fm.numbers_of(uploads, key) for key in ("samples", "norm"))
        total = sum(samples)
        # p_k / |a_k|: a client that made no step divides by 1 and has no change either
        weights = [n / max(a, 1.0) / total for n, a in zip(samples, norms, strict=True)]
        effective = sum(n * a for n, a in zip(samples, norms, strict=True)) / total
        model, step = self.mean(uploads, weights=weights), effective * sum(weights)
        # the mean takes weights as shares, so the step from w^t puts their sum back
        old_and_new = [parameters(tree, ctx.task) for tree in (fm.get_tree(server, "model"), model)]
        buffers = self.mean(uploads) if len(old_and_new[0]) < len(model) else model
        return {"model": buffers | fm.combine(old_and_new, [1 - step, step])}


def gradient_weight(steps: int, momentum: float) -> float:
    """Return |a|_1: how often the gradients of so many steps count in the change of weights."""
    if not momentum:
        return float(steps)
    return sum((1 - momentum**i) / (1 - momentum) for i in range(1, steps + 1))
