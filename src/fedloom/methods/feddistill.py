from typing import Literal

import torch

import fedloom.methods as fm
from fedloom.methods.parts.consistency import identity_labels, next_soft_labels
from fedloom.methods.parts.measures import probabilities


@fm.register
class FedDistill(fm.Method):
    """FedDistill+: FedAvg, with class means of outputs as soft labels. After FD (Jeong et al., NeurIPS workshop 2018,
    arXiv 1811.11479), as FedDW compares with it (2412.04521, Table IV).

    Local: CE + KL(Q_y || p). Server: weights as FedAvg; Q <- ema fresh + (1 - ema) Q [C, C], a fresh row the mean of
    all outputs of the class in this round, e_c without holders. No paper defines it: rules and values are those of
    FedDW's code, without its mistakes."""

    spec = fm.Spec(
        receives=None,
        sends={
            "model": fm.Sent(),
            "outputs": fm.Sent(labels=True, statistic="class means of outputs"),
            "class_counts": fm.Sent(per_client=True, labels=True),
        },
        single_because="its soft labels are means over a softmax of classes",
    )

    class Options(fm.Options):
        weight: float = fm.option(1.0, "Weight of the distillation term; 0 is FedAvg.", ge=0)
        ema: float = fm.option(0.5, "Share of the round's rows in the next ones.", gt=0, le=1)
        compares: Literal["log_probabilities", "probabilities"] = fm.option(
            "log_probabilities",
            "KL against the log of the outputs, or against the outputs themselves, as FedDW's code does by mistake.",
        )

    def server_init(self, ctx: fm.ServerContext) -> fm.Record:
        return super().server_init(ctx) | {"soft_labels": identity_labels(ctx.task.num_classes)}

    def aggregate(self, server: fm.Record, uploads: fm.Uploads, ctx: fm.ServerContext) -> fm.Record:
        counts = fm.tensors_of(uploads, "class_counts")
        fresh = self.mean(uploads, "outputs", counts)
        labels = next_soft_labels(fresh, fm.get_table(server, "soft_labels"), "eye", self.options.ema)
        return super().aggregate(server, uploads, ctx) | {"soft_labels": labels.to(torch.float32)}

    def begin(self, payload: fm.Record, state: fm.Record, ctx: fm.ClientContext) -> fm.Start:
        start = super().begin(payload, state, ctx)
        return fm.Start(start.tree, {"soft_labels": fm.get_table(payload, "soft_labels").values})

    def phases(self, start: fm.Start, ctx: fm.ClientContext) -> list[fm.Phase]:
        return [*super().phases(start, ctx), fm.Collect({"outputs": fm.ClassMeans(probabilities)})]

    def loss(self, net: fm.Net, batch: fm.Batch, consts: fm.Consts) -> fm.Objective:
        logits, taught = net(batch.x), consts["soft_labels"][batch.y]
        log_probabilities = torch.log_softmax(logits, dim=1)
        if self.options.compares == "probabilities":
            log_probabilities = log_probabilities.exp()
        divergence = (torch.xlogy(taught, taught) - taught * log_probabilities).sum(1)
        ce = batch.mean(fm.cross_entropy(logits, batch.y))
        return fm.Objective.sum({"ce": ce, "distillation": self.options.weight * batch.mean(divergence)})
