from dataclasses import replace
from typing import Any, Literal

import torch

import fedloom.methods as fm
from fedloom.methods.parts.prototypes import PrototypePull, training_with_class_means


@fm.register
class FedProto(PrototypePull):
    """FedProto: class means of features travel in place of weights. Tan et al., AAAI 2022, arXiv 2105.00243.

    Local: CE + lambda |z - row_y|^2 / d, a batch mean (Eq. 7; the distance is a mean over d, as in the code). Server: a
    row is the mean of its holders' by samples of the class (Eq. 6); without holders it stays. Nets are private and may
    differ, if features have one width. Tested: own head, or nearest prototype ("nearest" in `evaluation.also`)."""

    spec = replace(PrototypePull.spec, late=True)

    class Options(fm.Options):
        weight: float = fm.option(
            1.0, "lambda, the strength of the pull; 0 is local training, or FedAvg with average_model.", ge=0
        )
        weights: Literal["counts", "uniform"] = fm.option(
            "counts", "Weights of the holders of a class: by their samples of it, or equal."
        )
        prototypes_from: Literal["after_training", "last_epoch"] = fm.option(
            "after_training",
            "Where prototypes come from: a pass after training, or the last epoch's own forward passes.",
        )
        nearest_among: Literal["known", "own"] = fm.option(
            "known",
            "Classes that the prediction by the nearest prototype may choose: all known ones, or those of the client's"
            " data.",
        )
        average_model: bool = fm.option(
            False,
            "Whether weights are averaged as in FedAvg, too. FedSKC and FedSC print a global accuracy and do not say "
            "how they get it; this is our choice.",
        )

    def __init__(self, options: fm.Options | None = None) -> None:
        super().__init__(options)
        sends = dict(self.spec.sends)
        if self.options.weights == "counts":
            sends["class_counts"] = fm.Sent(per_client=True, labels=True, dp="ones")
        if self.options.average_model:
            sends["model"] = fm.Sent()
            self.spec = replace(self.spec, private=frozenset(), architectures="one")
        self.spec = replace(self.spec, sends=sends)

    def server_init(self, ctx: fm.ServerContext) -> fm.Record:
        shared = fm.Method.server_init(self, ctx) if self.options.average_model else {}
        return shared | super().server_init(ctx)

    def client_init(self, ctx: fm.ClientContext) -> fm.Record:
        return super().client_init(ctx) | self._classes(ctx)

    def phases(self, start: fm.Start, ctx: fm.ClientContext) -> list[fm.Phase]:
        return training_with_class_means(self.loss, ctx.task.local_epochs, self.options.prototypes_from)

    def end(self, work: fm.Work, state: fm.Record, ctx: fm.ClientContext) -> tuple[fm.Record, fm.Record]:
        payload, next_state = super().end(work, state, ctx)
        if self.options.weights == "counts":
            payload["class_counts"] = ctx.class_counts
        if self.options.average_model:
            shared, next_state = fm.Method.end(self, work, state, ctx)
            payload |= shared
        return payload, next_state | self._classes(ctx)

    def aggregate(self, server: fm.Record, uploads: fm.Uploads, ctx: fm.ServerContext) -> fm.Record:
        counts: Any = "uniform"
        if self.options.weights == "counts":
            counts = fm.tensors_of(uploads, "class_counts")
        fresh: fm.ClassTable = self.mean(uploads, "prototypes", counts)
        shared = super().aggregate(server, uploads, ctx) if self.options.average_model else {}
        return shared | {"prototypes": fresh.to(torch.float32).fill_missing(fm.get_table(server, "prototypes"))}

    def tested_with(self, server: fm.Record, state: fm.Record | None) -> fm.ClassTable:
        table = super().tested_with(server, state)
        return table.keep_classes(fm.get_tensor(state, "classes")) if state and "classes" in state else table

    def _classes(self, ctx: fm.ClientContext) -> fm.Record:
        return {"classes": ctx.class_counts > 0} if self.options.nearest_among == "own" else {}
