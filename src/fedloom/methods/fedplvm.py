from typing import Literal

import torch

import fedloom.methods as fm
from fedloom.methods.contract.sample_statistics import unit_rows
from fedloom.methods.fpl import FPL, with_absent_classes
from fedloom.methods.parts.contrast import unit
from fedloom.methods.parts.measures import features
from fedloom.methods.parts.prototypes import clusters_by_class

SMALLEST_COSINE = 1e-6  # smaller ones count as this, without gradient: a power below 1 has none at 0
_NEVER = -1e30  # score of a prototype that does not count, which logsumexp can take


@fm.register
class FedPLVM(fm.Method):
    """FedPLVM: prototypes by two levels of clusters, which give varied domains more of them. Wang et al., NeurIPS 2024,
    arXiv 2403.09048.

    Local: CE + weight (mean of -log(sum_own exp(cos^alpha / tau) / sum_all exp(cos^alpha / tau)) + 2 (1 - cos(z,
    b_y))^2), b_y the mean of the class's prototypes; then FINCH over the features of each class. Server: the mean of
    weights; FINCH over all clusters' means of a class."""

    spec = FPL.spec

    class Options(fm.Options):
        alpha: float = fm.option(
            0.25, "Power of the cosines: the smaller, the less a near prototype is worth.", gt=0, le=1
        )
        tau: float = fm.option(0.07, "Temperature of the contrast.", gt=0)
        weight: float = fm.option(100.0, "Weight of the contrast and of the pull, against cross-entropy.", ge=0)
        pull: float = fm.option(2.0, "Factor of the pull to the centre of a class, within that weight.", ge=0)
        weights: Literal["samples", "uniform"] = fm.option("samples", "How clients weigh in the mean of their weights.")
        keep_absent: bool = fm.option(
            True, "Whether a class that no participant holds keeps its prototypes. Released code drops them."
        )

    def aggregate(self, server: fm.Record, uploads: fm.Uploads, ctx: fm.ServerContext) -> fm.Record:
        tables, classes = [fm.get_table(upload, "prototypes") for upload in uploads.values()], ctx.task.num_classes
        rows = [torch.cat([t.values[:, label][t.held[:, label]] for t in tables]) for label in range(classes)]
        clusters = clusters_by_class(rows).to(torch.float32)
        if self.options.keep_absent and "prototypes" in server:
            clusters = with_absent_classes(clusters, fm.get_table(server, "prototypes"))
        return {"model": self.mean(uploads, weights=self.options.weights), "prototypes": clusters}

    def begin(self, payload: fm.Record, state: fm.Record, ctx: fm.ClientContext) -> fm.Start:
        start = super().begin(payload, state, ctx)
        if "prototypes" not in payload:  # round 1
            return start
        table = fm.get_table(payload, "prototypes")
        centres, classes = table.mean_over_clients(), torch.arange(table.held.shape[1]).expand_as(table.held)
        consts: fm.Consts = {"rows": unit(table.values[table.held]), "classes": classes[table.held]}
        return fm.Start(start.tree, consts | {"centres": unit(centres.values), "known": centres.held})

    def phases(self, start: fm.Start, ctx: fm.ClientContext) -> list[fm.Phase]:
        return [fm.Train(self.loss, ctx.task.local_epochs), fm.Collect({"features": fm.Rows(features)})]

    def loss(self, net: fm.Net, batch: fm.Batch, consts: fm.Consts) -> fm.Objective:
        options, z = self.options, net.features(batch.x)
        terms = {"ce": batch.mean(fm.cross_entropy(net.head(z), batch.y))}
        if "rows" in consts:
            direction, by_label = batch.by_label(unit(z))
            known, classes = consts["known"][by_label.y], consts["classes"]
            cosines = direction @ consts["rows"].to(z.dtype).T
            # alpha < 1 makes far prototypes count more; a power of a negative cosine is not real
            scores = cosines.clamp(min=SMALLEST_COSINE).pow(options.alpha) / options.tau
            is_own = classes == by_label.y.unsqueeze(1)
            of_class = torch.where(is_own, scores, _NEVER)
            if by_label.rivals is not None:
                scores = torch.where(is_own | by_label.rivals[:, classes], scores, _NEVER)
            contrast = scores.logsumexp(1) - of_class.logsumexp(1)
            apart = 1 - (direction * consts["centres"].to(z.dtype)[by_label.y]).sum(1)
            terms["contrast"] = options.weight * by_label.mean(torch.where(known, contrast, 0.0))
            terms["pull"] = options.weight * options.pull * by_label.mean(torch.where(known, apart.square(), 0.0))
        return fm.Objective.sum(terms)

    def end(self, work: fm.Work, state: fm.Record, ctx: fm.ClientContext) -> tuple[fm.Record, fm.Record]:
        payload, state = super().end(work, state, ctx)
        collected: fm.LabelledRows = work.collected["features"]
        rows = [collected.values[held] for held in unit_rows(collected.labels, ctx.task.num_classes).bool().T]
        return payload | {"prototypes": clusters_by_class(rows).to(torch.float32)}, state

    def diagnostics(self, server: fm.Record, uploads: fm.Uploads, ctx: fm.ServerContext) -> list[fm.Diagnostic]:
        tables = [server, *uploads.values()]
        if any(bool(fm.get_table(record, "prototypes").held[1:].any()) for record in tables):
            return []
        message = "no class has two prototypes, at any client or at the server: features form no clusters"
        return [fm.Diagnostic("fedplvm.one_prototype_per_class", message, 1.0)]
