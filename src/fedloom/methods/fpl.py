import torch
from torch.nn import functional

import fedloom.methods as fm
from fedloom.methods.parts import prototypes as class_means
from fedloom.methods.parts.contrast import Cosines, prototype_contrast, prototypes_of_table

FEWEST = 4  # points that FINCH can split into two clusters


@fm.register
class FPL(fm.Method):
    """FPL: several prototypes per class, which keep small domains visible in contrast and pull. Huang et al., CVPR
    2023.

    Local: CE + batch mean of -log(sum_own exp(cos(z, p) / tau) / sum_all exp(cos(z, p) / tau)) + |z - b_y|^2 / d, b_y
    the mean of the prototypes p of the class; then the class means of z. Server: the mean of weights by samples; FINCH
    over the participants' means of each class, and the clusters' means."""

    spec = fm.Spec(
        receives=None,
        features=True,
        sends={"model": fm.Sent(), "prototypes": fm.Sent(per_client=True, labels=True)},
        labels="multi",
    )

    class Options(class_means.Options):
        tau: float = fm.option(0.02, "Temperature of the contrast.", gt=0)
        contrast: float = fm.option(1.0, "Weight of the contrast with the cluster prototypes.", ge=0)
        pull: float = fm.option(1.0, "Weight of the pull to the mean of a class's cluster prototypes.", ge=0)

    def examine(self, tasks: fm.Tasks, participants: int) -> list[fm.Diagnostic]:
        diagnostics = super().examine(tasks, participants)
        if participants < FEWEST:
            message = f"{participants} participants a round: FINCH makes several prototypes a class of {FEWEST} or more"
            diagnostics.append(fm.Diagnostic("fpl.few_participants", message, float(participants)))
        return diagnostics

    def aggregate(self, server: fm.Record, uploads: fm.Uploads, ctx: fm.ServerContext) -> fm.Record:
        tables = fm.tables_of(uploads, "prototypes")
        columns = zip(tables.values.unbind(1), tables.held.unbind(1), strict=True)
        clusters = class_means.clusters_by_class([column[held] for column, held in columns]).to(torch.float32)
        if self.options.keep_absent and "prototypes" in server:
            clusters = with_absent_classes(clusters, fm.get_table(server, "prototypes"))
        return super().aggregate(server, uploads, ctx) | {"prototypes": clusters}

    def begin(self, payload: fm.Record, state: fm.Record, ctx: fm.ClientContext) -> fm.Start:
        start = super().begin(payload, state, ctx)
        if "prototypes" not in payload:  # round 1
            return start
        table = fm.get_table(payload, "prototypes")
        centres = table.mean_over_clients()
        prototypes = prototypes_of_table(table)
        return fm.Start(start.tree, {"prototypes": prototypes, "centres": centres.values, "known": centres.held})

    def phases(self, start: fm.Start, ctx: fm.ClientContext) -> list[fm.Phase]:
        return class_means.training_with_class_means(self.loss, ctx.task.local_epochs, self.options.prototypes_from)

    def loss(self, net: fm.Net, batch: fm.Batch, consts: fm.Consts) -> fm.Objective:
        options, z = self.options, net.features(batch.x)
        terms = {"ce": batch.mean(fm.cross_entropy(net.head(z), batch.y))}
        if "prototypes" in consts:
            rows, pairs = batch.by_label(z)
            known = consts["known"][pairs.y]
            contrast, _ = prototype_contrast(rows, pairs, consts, Cosines(options.tau))
            distance = (rows - consts["centres"][pairs.y]).square().mean(1)
            terms["contrast"] = options.contrast * pairs.mean(torch.where(known, contrast, 0.0))
            terms["pull"] = options.pull * pairs.mean(torch.where(known, distance, 0.0))
        return fm.Objective.sum(terms, {"features": z})

    def diagnostics(self, server: fm.Record, uploads: fm.Uploads, ctx: fm.ServerContext) -> list[fm.Diagnostic]:
        if len(uploads) < FEWEST or bool(fm.get_table(server, "prototypes").held[1:].any()):
            return []
        message = "no class has two cluster prototypes: FPL is a pull to class means with a contrast"
        return [fm.Diagnostic("fpl.one_prototype_per_class", message, 1.0)]


def with_absent_classes(fresh: fm.ClassTable, last: fm.ClassTable) -> fm.ClassTable:
    """Return the prototypes `fresh` [K, C, d], and those of `last` [K', C, d] for classes that have none."""
    most = max(len(fresh.held), len(last.held))
    values, last_values = (functional.pad(t.values, (0, 0, 0, 0, 0, most - len(t.held))) for t in (fresh, last))
    held, last_held = (functional.pad(t.held, (0, 0, 0, most - len(t.held))) for t in (fresh, last))
    present = fresh.held.any(0)
    chosen = torch.where(present.unsqueeze(1), values, last_values)
    return fm.ClassTable(chosen, torch.where(present, held, last_held))
