from dataclasses import replace
from typing import Literal

import torch

import fedloom.methods as fm
from fedloom.methods.parts import several_models
from fedloom.methods.parts.parameters import difference


@fm.register
class IFCA(fm.Method):
    """IFCA: several global models; each client trains the one that fits it best. Ghosh et al., NeurIPS 2020,
    arXiv 2006.04088, Algorithm 1 with model averaging.

    Local: the model with the least mean CE on all training data (ties: the first), then CE from it. Server: each model
    moves by the mean change of its clients. Tested: the model with the least CE on the client's training data."""

    spec = fm.Spec(
        sends={"model": fm.Sent(form="change", no_feedback=fm.ALL_ROLES), "cluster": fm.Sent(per_client=True)},
        labels="multi",
    )

    class Options(fm.Options):
        clusters: int = fm.option(2, "K, the number of models; 1 is FedAvg.", ge=1)
        weights: Literal["samples", "uniform"] = fm.option(
            "samples", "Weights of the clients of a cluster: by their samples, or equal."
        )
        share_body: bool = fm.option(
            False, "Whether the clusters have one body, averaged over all clients, and a head each."
        )

    def __init__(self, options: fm.Options | None = None) -> None:
        super().__init__(options)
        if self.options.share_body:
            self.spec = replace(self.spec, requires=("trained_head",))

    def examine(self, tasks: fm.Tasks, participants: int) -> list[fm.Diagnostic]:
        starts = several_models.noisy_starts(self.name(), self.options.clusters, tasks[0])
        return [*super().examine(tasks, participants), *starts]

    def server_init(self, ctx: fm.ServerContext) -> fm.Record:
        models = several_models.first_models(ctx.task, self.options.clusters)
        if self.options.share_body:
            head = ctx.task.names(frozenset({fm.Role.HEAD}))
            models = [{n: tree[n] if n in head else value for n, value in models[0].items()} for tree in models]
        return several_models.named_models(models)

    def down(self, server: fm.Record, client: int, ctx: fm.ServerContext) -> fm.Record:
        return several_models.named_models(several_models.models_in(server, self.options.clusters))

    def begin(self, payload: fm.Record, state: fm.Record, ctx: fm.ClientContext) -> fm.Start:
        models = several_models.models_in(payload, self.options.clusters)
        return fm.Start(models[0], {"models": models})

    def phases(self, start: fm.Start, ctx: fm.ClientContext) -> list[fm.Phase]:
        return [*self.choice(), *super().phases(start, ctx)]

    def choice(self) -> list[fm.Phase]:
        """The phases in which a client takes the model that fits its training data best."""
        return [fm.Collect({"losses": fm.SampleMean(several_models.losses_of_models)}), fm.Choose(best_fitting)]

    def end(self, work: fm.Work, state: fm.Record, ctx: fm.ClientContext) -> tuple[fm.Record, fm.Record]:
        cluster = int(work.collected["losses"].argmin())
        # the change is from the model that was taken, which the server knows by its number
        change = difference(work.tree, work.start.consts["models"][cluster])
        return {"model": change, "cluster": cluster, "samples": ctx.samples}, {}

    def aggregate(self, server: fm.Record, uploads: fm.Uploads, ctx: fm.ServerContext) -> fm.Record:
        models, weights = several_models.models_in(server, self.options.clusters), self.options.weights
        uploads = {k: upload for k, upload in uploads.items() if fm.get_number(upload, "cluster") in range(len(models))}
        body = self.mean(uploads, weights=weights) if self.options.share_body and uploads else {}
        head = ctx.task.names(frozenset({fm.Role.HEAD}))
        for number, model in enumerate(models):
            members = {k: upload for k, upload in uploads.items() if fm.get_number(upload, "cluster") == number}
            # a model that no client took in this round stays as it is
            change = self.mean(members, weights=weights) if members else {}
            if body:
                change = {name: value for name, value in change.items() if name in head}
                change = {name: value for name, value in body.items() if name not in head} | change
            models[number] = moved(model, change)
        return several_models.named_models(models)

    def predictors(self, server: fm.Record, state: fm.Record | None, ctx: fm.ServerContext) -> dict[str, fm.Predictor]:
        if state is None:
            return {}
        models = several_models.models_in(server, self.options.clusters)
        return {"personal": fm.Predictor(models[0], consts={"models": models})}

    def adapt(self, start: fm.Start, ctx: fm.ClientContext) -> list[fm.Phase]:
        return self.choice()

    def diagnostics(self, server: fm.Record, uploads: fm.Uploads, ctx: fm.ServerContext) -> list[fm.Diagnostic]:
        clusters, known = (fm.numbers_of(uploads, "cluster"), range(self.options.clusters))
        strange = sum(cluster not in known for cluster in clusters)
        if strange:
            message = f"{strange} of {len(clusters)} uploads name a model that does not exist: they are left out"
            return [fm.Diagnostic("ifca.unknown_model", message, float(strange))]
        if len(known) == 1 or len(clusters) == 1 or len(set(clusters)) > 1:
            return []
        message = f"in round {ctx.round} all {len(clusters)} participants took model {clusters[0]:g} of {len(known)}"
        return [fm.Diagnostic("ifca.one_model", message, 1.0)]


def best_fitting(weights: fm.Tree, consts: fm.Consts) -> fm.Tree:
    """The model with the least of `consts["losses"]`; the first of equal ones."""
    best = consts["losses"].argmin().reshape(1)
    return {name: torch.stack([tree[name] for tree in consts["models"]]).index_select(0, best)[0] for name in weights}


def moved(model: fm.Tree, change: fm.Tree) -> fm.Tree:
    """A model after a mean change of some of its entries; integer entries grow by it too."""
    if not change:
        return model
    old = {name: model[name] for name in change}
    sums = fm.combine([old, change], [1.0, 1.0])
    return model | {n: v if v.is_floating_point() else old[n] + change[n] for n, v in sums.items()}
