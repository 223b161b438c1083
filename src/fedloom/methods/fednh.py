from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

import fedloom.methods as fm
from fedloom.methods.parts.parameters import clipped

W = "head.weight"


@fm.register
class FedNH(fm.Method):
    """FedNH: a head of spread class prototypes that clients do not train. Dai et al., AAAI 2023, arXiv 2212.02758.

    o = s unit(z) W^T, W [C, d] with orthonormal rows at first. Local: CE, W fixed, then the class means of unit(z).
    Server: the uniform mean of bodies; a row of W <- unit(rho W + (1 - rho) unit(mean of the clients' rows by class
    counts)). Predictors: "global", and "personal" by the client's last own model."""

    spec = fm.Spec(
        requires=("trained_body", "linear_head"),
        features=True,
        head_bias=False,
        sends={
            "model": fm.Sent(),
            "prototypes": fm.Sent(labels=True),
            "class_counts": fm.Sent(per_client=True, labels=True, dp="ones"),
        },
        labels="multi",
    )

    class Options(fm.Options):
        rho: float = fm.option(0.9, "Share of the last prototypes in the next ones; 1 never moves them.", ge=0, le=1)
        scale: float = fm.option(30.0, "s, the factor of cosines.", gt=0)
        learn_scale: bool = fm.option(False, "Whether s is trained and averaged like a weight, from `scale` on.")
        clip: float | None = fm.option(10.0, "Bound of the gradients' joint 2-norm. Null is no bound.", gt=0)

    def examine(self, tasks: fm.Tasks, participants: int) -> list[fm.Diagnostic]:
        diagnostics, task = super().examine(tasks, participants), tasks[0]
        if task.feature_dim < task.num_classes:
            raise fm.ConfigError(
                f"fednh: {task.num_classes} classes and {task.feature_dim} features: prototypes at right angles need "
                "at least as many features as classes; choose a wider model"
            )
        return diagnostics

    def extra(self, net: fm.Net) -> nn.Module | None:
        if not self.options.learn_scale:
            return None
        module = nn.Module()
        module.scale = nn.Parameter(torch.tensor(float(self.options.scale)))
        return module

    def server_init(self, ctx: fm.ServerContext) -> fm.Record:
        prototypes = ctx.task.init[W]
        return {"model": ctx.task.init | {W: self.first_prototypes(ctx.task).to(prototypes.dtype)}}

    def first_prototypes(self, task: fm.Task) -> Tensor:
        """Return orthonormal rows [C, d] in float64, equal for every run of this seed."""
        normal = task.streams.numpy("prototypes").standard_normal((task.feature_dim, task.num_classes))
        columns, triangle = torch.linalg.qr(torch.from_numpy(normal))
        return cast(Tensor, (columns * triangle.diagonal().sign()).T.contiguous())

    def aggregate(self, server: fm.Record, uploads: fm.Uploads, ctx: fm.ServerContext) -> fm.Record:
        rows = fm.get_tree(server, "model")[W]
        counts = fm.tensors_of(uploads, "class_counts")
        fresh: fm.ClassTable = self.mean(uploads, "prototypes", counts)
        # in float64, because rows change by little when rho is near 1
        rho, mean = self.options.rho, normalize(fresh.values.double(), dim=1)
        # the moving average leaves the unit sphere, so it is scaled back
        mixed = normalize(rho * rows.double() + (1 - rho) * mean, dim=1).to(rows.dtype)
        unchanged = ~fresh.held | torch.tensor(rho == 1)
        model = self.mean(uploads, weights="uniform") | {W: torch.where(unchanged.unsqueeze(1), rows, mixed)}
        return {"model": {name: model[name] for name in ctx.task.init}}

    def client_init(self, ctx: fm.ClientContext) -> fm.Record:
        return {}

    def begin(self, payload: fm.Record, state: fm.Record, ctx: fm.ClientContext) -> fm.Start:
        return super().begin(payload, {}, ctx)

    def phases(self, start: fm.Start, ctx: fm.ClientContext) -> list[fm.Phase]:
        clip = None if self.options.clip is None else clipped(self.options.clip)
        train = fm.Train(self.loss, ctx.task.local_epochs, trains=fm.TRAINABLE - {fm.Role.HEAD}, grad_map=clip)
        return [train, fm.Collect({"prototypes": fm.ClassMeans(_directions)})]

    def loss(self, net: fm.Net, batch: fm.Batch, consts: fm.Consts) -> fm.Objective:
        return fm.Objective.sum({"ce": batch.mean(fm.cross_entropy(self.logits(net, batch.x), batch.y))})

    def logits(self, net: fm.Net, x: Tensor) -> Tensor:
        cosines = normalize(net.features(x), dim=1) @ normalize(net.head.weight, dim=1).T
        scale: Any = net.extra.scale if self.options.learn_scale else self.options.scale
        return cast(Tensor, cosines * scale)

    def end(self, work: fm.Work, state: fm.Record, ctx: fm.ClientContext) -> tuple[fm.Record, fm.Record]:
        payload, _ = super().end(work, {}, ctx)
        means: fm.ClassTable = work.collected["prototypes"]
        payload["model"] = {name: value for name, value in work.tree.items() if name != W}
        payload |= {"prototypes": fm.ClassTable(normalize(means.values, dim=1), means.held)}
        return payload, {"last": work.tree}

    def predictors(self, server: fm.Record, state: fm.Record | None, ctx: fm.ServerContext) -> dict[str, fm.Predictor]:
        model = fm.get_tree(server, "model")
        if state is None:
            return {"global": fm.Predictor(model, self.logits)}
        return {"personal": fm.Predictor(fm.get_tree(state, "last") if state else model, self.logits)}


def _directions(net: fm.Net, batch: fm.Batch, consts: fm.Consts) -> Tensor:
    return normalize(net.features(batch.x), dim=1)
