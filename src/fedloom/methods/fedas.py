import math
from typing import Literal

import torch
from torch import Tensor

import fedloom.methods as fm
from fedloom.methods.parts.parameters import gradients_at

HEAD = frozenset({fm.Role.HEAD})
DOMINANT = 0.9  # share of the traces from which on one client is said to be the mean


@fm.register
class FedAS(fm.Method):
    """FedAS: the received body is aligned with the client's own past features, and clients weigh by Fisher trace. Yang,
    Huang, Ye, CVPR 2024.

    Local: one epoch moves the received body by the sum over classes of the mean of (z - goal)^2, goals the class means
    of features by the client's last body; then CE moves the body and the client's own head. Trace: sum over batches of
    |gradient of the batch's mean CE|^2 after training. Server: the mean of weights by traces. Tested: the client's
    model after training, and the server's."""

    spec = fm.Spec(
        requires=("trained_body",),
        features=True,
        sends={"model": fm.Sent(no_feedback=HEAD), "trace": fm.Sent(per_client=True, spread=10.0)},
        unstackable="its last pass takes gradients inside the loss",
        labels="multi",
    )

    class Options(fm.Options):
        align_lr: float = fm.option(0.01, "Learning rate of the alignment, plain SGD.", gt=0)
        align_epochs: int = fm.option(1, "Passes that align the received body.", ge=0)
        trace: Literal["batches", "samples"] = fm.option(
            "batches",
            "The weight of a client: squared gradients of batch means, summed over batches, as released, or of single "
            "samples, averaged, as the Fisher information has them.",
        )

    def client_init(self, ctx: fm.ClientContext) -> fm.Record:
        return {"model": ctx.task.init}

    def begin(self, payload: fm.Record, state: fm.Record, ctx: fm.ClientContext) -> fm.Start:
        own, received = fm.get_tree(state, "model"), fm.get_tree(payload, "model")
        return fm.Start(received | fm.select(own, ctx.task.names(HEAD)), {"own": own})

    def phases(self, start: fm.Start, ctx: fm.ClientContext) -> list[fm.Phase]:
        align, still = fm.OptimizerSpec(lr=self.options.align_lr), fm.OptimizerSpec(lr=0.0)
        traced = {"trace": fm.SampleMean("squares")}
        everything = frozenset(fm.Role)
        return [
            fm.Collect({"goals": fm.ClassMeans(own_features)}),
            fm.Train(alignment, self.options.align_epochs, trains=fm.TRAINABLE - HEAD, optimizer=align),
            fm.Train(self.loss, ctx.task.local_epochs),
            # a pass that moves nothing, since statistics are taken without gradients
            fm.Train(self.squared_gradients, 1, HEAD, evaluates=everything, optimizer=still, collect=traced),
        ]

    def squared_gradients(self, net: fm.Net, batch: fm.Batch, consts: fm.Consts) -> fm.Objective:
        """Tap squared norms of gradients of `net` on `batch`; their mean over a client's samples gives its trace."""
        weights, rows = dict(net.named_parameters()), len(batch.y)
        parts = [slice(None)] if self.options.trace == "batches" else [slice(i, i + 1) for i in range(rows)]
        gradients = [gradients_at(net, weights, batch.x[part], batch.y[part]).values() for part in parts]
        squares = [torch.stack([value.square().sum() for value in values]).sum() for values in gradients]
        tapped = squares[0].expand(rows) / rows if self.options.trace == "batches" else torch.stack(squares)
        # the pass needs a loss with a path to the trained head, and must not move it
        nothing = 0 * torch.stack([value.sum() for value in net.head.parameters()]).sum()
        return fm.Objective(nothing, {}, {"squares": tapped})

    def end(self, work: fm.Work, state: fm.Record, ctx: fm.ClientContext) -> tuple[fm.Record, fm.Record]:
        upload, _ = super().end(work, state, ctx)
        summed = ctx.samples if self.options.trace == "batches" else 1
        return upload | {"trace": float(work.collected["trace"]) * summed}, {"model": work.tree}

    def aggregate(self, server: fm.Record, uploads: fm.Uploads, ctx: fm.ServerContext) -> fm.Record:
        traces = traces_of(uploads)
        return {"model": self.mean(uploads, weights=traces if sum(traces) > 0 else "samples")}

    def predictors(self, server: fm.Record, state: fm.Record | None, ctx: fm.ServerContext) -> dict[str, fm.Predictor]:
        if state is None:
            return super().predictors(server, state, ctx)
        return {"personal": fm.Predictor(fm.get_tree(state, "model"))}

    def diagnostics(self, server: fm.Record, uploads: fm.Uploads, ctx: fm.ServerContext) -> list[fm.Diagnostic]:
        traces = traces_of(uploads)
        share = max(traces) / sum(traces) if sum(traces) > 0 else 0.0
        if len(traces) < 2 or share < DOMINANT:
            return []
        message = f"one client has {share:.0%} of the weight by its trace: the shared body is nearly its own"
        return [fm.Diagnostic("fedas.one_client", message, share)]


def traces_of(uploads: fm.Uploads) -> list[float]:
    """Return the clients' traces, 0 for those that are not finite."""
    traces = fm.numbers_of(uploads, "trace")
    return [trace if math.isfinite(trace) and trace > 0 else 0.0 for trace in traces]


def own_features(net: fm.Net, batch: fm.Batch, consts: fm.Consts) -> Tensor:
    """Return the features [B, d] of a `batch` by the client's own last model, `consts["own"]`."""
    return net.functional.features(consts["own"], batch.x)


def alignment(net: fm.Net, batch: fm.Batch, consts: fm.Consts) -> fm.Objective:
    """Return the sum over the classes of a `batch` of the mean of (z - goal)^2, goals by class `consts["goals"]`."""
    goals = consts["goals"]
    z, batch = batch.by_label(net.features(batch.x))
    distances = (z - goals.values[batch.y].to(batch.x.device)).square().mean(1)
    labels = torch.arange(len(goals.held), device=batch.y.device)
    classes = (batch.y.unsqueeze(1) == labels).to(distances.dtype)  # one_hot looks at values, so no step is recorded
    classes = classes if batch.mask is None else classes * batch.mask.unsqueeze(1)
    sums, counts = classes.T @ distances, classes.sum(0)
    return fm.Objective.sum({"align": (sums / counts.clamp(min=1)).sum()})
