import torch

import fedloom.methods as fm
from fedloom.methods.parts import prototypes as class_means
from fedloom.methods.parts.contrast import Cosines, prototype_contrast, prototypes_of_table


@fm.register
class FedProc(fm.Method):
    """FedProc: from contrast with global class means to cross-entropy, round by round. Mu et al., FGCS 2023, arXiv
    2109.12273.

    Local: a contrast + (1 - a) CE, a = 1 - t / T in round t of T; the contrast is the batch mean of -log softmax over
    the known classes of cos(z, row), at y, and 0 for samples of unknown classes. Server: the mean of weights by
    samples, and the uniform mean of class means over the holders."""

    spec = fm.Spec(
        receives=None, features=True, sends={"model": fm.Sent(), "prototypes": fm.Sent(labels=True)}, labels="multi"
    )

    class Options(class_means.Options):
        learns_at_once: bool = fm.option(
            True,
            "Whether the contrast's share is 1 - t / T, so that round 1 learns from labels. Released code has 1 - (t -"
            " 1) / (T - 1): round 1 has a share of 1 and no prototypes yet, so nothing is learned.",
        )

    def examine(self, tasks: fm.Tasks, participants: int) -> list[fm.Diagnostic]:
        diagnostics = super().examine(tasks, participants)
        if tasks[0].rounds == 1:
            message = "rounds = 1: prototypes come after round 1, so the contrast is never used"
            diagnostics.append(fm.Diagnostic("fedproc.one_round", message, 1.0))
        return diagnostics

    def aggregate(self, server: fm.Record, uploads: fm.Uploads, ctx: fm.ServerContext) -> fm.Record:
        fresh: fm.ClassTable = self.mean(uploads, "prototypes", "uniform").to(torch.float32)
        if self.options.keep_absent and "prototypes" in server:
            fresh = fresh.fill_missing(fm.get_table(server, "prototypes"))
        return super().aggregate(server, uploads, ctx) | {"prototypes": fresh}

    def begin(self, payload: fm.Record, state: fm.Record, ctx: fm.ClientContext) -> fm.Start:
        start = super().begin(payload, state, ctx)
        late = 0 if self.options.learns_at_once else 1
        # a tensor, because a number would become part of a recorded step
        consts: fm.Consts = {"share": torch.tensor(max(0.0, 1 - (ctx.round - late) / max(1, ctx.task.rounds - late)))}
        if "prototypes" in payload:
            table = fm.get_table(payload, "prototypes")
            consts |= {"prototypes": prototypes_of_table(table), "known": table.held}
        return fm.Start(start.tree, consts)

    def phases(self, start: fm.Start, ctx: fm.ClientContext) -> list[fm.Phase]:
        return class_means.training_with_class_means(self.loss, ctx.task.local_epochs, self.options.prototypes_from)

    def loss(self, net: fm.Net, batch: fm.Batch, consts: fm.Consts) -> fm.Objective:
        z, share = net.features(batch.x), consts["share"]
        terms = {"ce": (1 - share) * batch.mean(fm.cross_entropy(net.head(z), batch.y))}
        if "prototypes" in consts:
            rows, pairs = batch.by_label(z)
            contrast, _ = prototype_contrast(rows, pairs, consts, Cosines(1.0))
            terms["contrast"] = share * pairs.mean(torch.where(consts["known"][pairs.y], contrast, 0.0))
        return fm.Objective.sum(terms, {"features": z})
