"""pFedFDA."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedloom.core.errors import ConfigError
from fedloom.core.records import Record, get_tensor
from fedloom.core.trees import Tree
from fedloom.methods.contract import method
from fedloom.methods.contract.citation import Citation
from fedloom.methods.contract.contexts import ClientContext, Diagnostic, ServerContext, Start, Task, Work
from fedloom.methods.contract.heads import require_linear_head, require_trained_body
from fedloom.methods.contract.losses import cross_entropy
from fedloom.methods.contract.method import Method, Uploads, register
from fedloom.methods.contract.phases import TRAINABLE, Batch, Collect, Consts, Objective, Phase, Predictor, Train
from fedloom.methods.contract.sample_statistics import LabelledRows, Rows
from fedloom.methods.contract.spec import Sent, Spec
from fedloom.methods.parts.feature_gaussians import Gaussians, best_shares, gaussians_of, smoothed_shares
from fedloom.methods.parts.measures import features
from fedloom.nets.net import Net
from fedloom.nets.roles import Role

TABLES = ("means", "covariance", "held")  # that travel down beside the body
FEWEST = 3  # samples of a class from which a test takes the client's own mean of it
LABELS = Sent(labels=True)
_AT_BOUND = 1e-6

AUTHORS_SGD = {"lr": 0.01, "momentum": 0.5, "weight_decay": 5e-4}


class Options(method.Options):
    """Options of pFedFDA."""

    beta: Annotated[float, Field(ge=0, le=1)] | None = Field(
        None,
        description="Share of a client's own means and covariance in the mixture with the received ones. Null chooses "
        "it on two halves of the client's features; 1 is the local variant.",
    )
    two_betas: bool = Field(True, description="Whether means and covariance get a chosen share each.")
    eps: float = Field(1e-4, gt=0, lt=1, description="Smoothing of class shares, and of covariances by the identity.")
    ridge: Literal["identity", "small"] = Field(
        "small",
        description="Added to a client's covariance: 1e-4 of the identity (small), or the identity and 1e-4 in every "
        "entry, as released.",
    )
    features_from: Literal["training", "after_training"] = Field(
        "training", description="Where features come from: all passes of training, or one pass after it."
    )
    mask_unknown: bool = Field(
        True, description="Whether classes that nobody has held yet are left out. The paper gives them random means."
    )


@register
class PFedFDA(Method):
    """pFedFDA: a body trained under a head of global class Gaussians, which clients adapt to their own features.
    McLaughlin and Su, NeurIPS 2024, arXiv 2411.00329.

    Down: body; class means M [C, d], covariance S [d, d], classes held so far [C].
    Up: body, samples; beta m + (1 - beta) M, the same of s and S; classes held, beta.

    Local: the head is that of the Gaussians (M, S) with the client's own class shares, and stays; CE trains the body.
    m and s are the class means of features (M_c where the client has none) and their covariance within classes.
    Server: the mean by samples of all three. Test: a pass over the training data, and the head of the mixture.
    """

    spec = Spec(
        private=frozenset({Role.HEAD}),
        features=True,
        sends={"model": Sent(), "covariance": Sent(spread=20.0), "betas": Sent(), "means": LABELS, "held": LABELS},
    )
    Options = Options
    presets = {  # noqa: RUF012
        "paper": {"mask_unknown": False},
        "authors": {"mask_unknown": False, "ridge": "identity"},
        "sound": {},
    }
    settings = {"authors": {"optimizer": AUTHORS_SGD, "local_epochs": 5, "batch_size": 50}}  # noqa: RUF012
    citation = Citation(
        "McLaughlin and Su",
        "NeurIPS",
        2024,
        "arXiv 2411.00329",
        {"B": 1, "all Cd": 1, "dd": 1, "mask": 1},
        {"B": 1, "all Cd": 1, "dd": 1, "shares": 1, "betas": 1},
        code="cj-mclaughlin/pFedFDA at 73c7c40",
        our_choice="The ridge of presets `paper` and `sound` is 1e-4 of the identity, as the text around the released "
        "line suggests; the paper's own text was not read. Newton steps in [0, 1] choose beta, on halves that take the "
        "samples of a class in turn; it is 0 where no class has two.",
        released_code="It adds the identity to covariances, and 1e-4 to every entry. Its guard for classes of few "
        "samples never acts in training. Ten iterations of L-BFGS choose beta.",
    )

    def examine(self, tasks: Sequence[Task], participants: int) -> list[Diagnostic]:
        diagnostics, task = super().examine(tasks, participants), tasks[0]
        require_linear_head(task, self.name())
        require_trained_body(task, self.name())
        if "head.bias" not in task.init:
            raise ConfigError("pfedfda needs a head with a bias, for the shares of the classes; this one has none")
        entries, body = task.feature_dim**2, sum(v.numel() for v in self._shared(task.init, task).values())
        message = f"a covariance has {entries:,} entries and the body {body:,}: most of the traffic is covariances"
        outweighs = [Diagnostic("pfedfda.covariance_outweighs", message, entries / body)] if entries > body else []
        return diagnostics + outweighs

    def server_init(self, ctx: ServerContext) -> Record:
        task, dtype = ctx.task, ctx.task.init["head.weight"].dtype
        drawn = task.streams.numpy("pfedfda means").random((task.num_classes, task.feature_dim))
        covariance, held = torch.eye(task.feature_dim, dtype=dtype), torch.zeros(task.num_classes, dtype=torch.bool)
        gaussians = {"means": torch.from_numpy(drawn).to(dtype), "covariance": covariance, "held": held}
        return super().server_init(ctx) | gaussians

    def client_init(self, ctx: ClientContext) -> Record:
        return {}  # the head is made anew of what is received

    def down(self, server: Record, client: int, ctx: ServerContext) -> Record:
        return {name: server[name] for name in ("model", *TABLES)}

    def aggregate(self, server: Record, uploads: Uploads, ctx: ServerContext) -> Record:
        dtype, tensors = get_tensor(server, "means").dtype, ("means", "covariance", "betas")
        means: dict[str, Tensor] = {name: self.mean(uploads, name).to(dtype) for name in tensors}
        held = get_tensor(server, "held") | (self.mean(uploads, "held", "uniform") > 0)
        return {"model": self.mean(uploads), **means, "held": held}

    def begin(self, payload: Record, state: Record, ctx: ClientContext) -> Start:
        tables = {name: get_tensor(payload, name) for name in TABLES}
        head = self._head(ctx, Gaussians.received(tables), tables["held"])
        return Start(self._joined(payload, {"model": head}, ctx.task), {"received": tables})

    def phases(self, start: Start, ctx: ClientContext) -> list[Phase]:
        body = TRAINABLE - {Role.HEAD}
        if self.options.features_from == "after_training":
            return [Train(self.loss, ctx.task.local_epochs, trains=body), Collect({"features": Rows(features)})]
        rows = {"features": Rows("features")}
        return [Train(self.loss, ctx.task.local_epochs, trains=body, collect=rows, throughout=True)]

    def loss(self, net: Net, batch: Batch, consts: Consts) -> Objective:
        z = net.features(batch.x)
        return Objective.sum({"ce": batch.mean(cross_entropy(net.head(z), batch.y))}, {"features": z})

    def end(self, work: Work, state: Record, ctx: ClientContext) -> tuple[Record, Record]:
        tables = work.start.consts["received"]
        mixture, shares = self._mixture(work.collected["features"], tables, ctx)
        sent = {"means": mixture.means, "covariance": mixture.covariance, "held": ctx.class_counts > 0, "betas": shares}
        dtype, shared = tables["means"].dtype, self._shared(work.tree, ctx.task)
        return {"model": shared, "samples": ctx.samples, **{n: v.to(dtype) for n, v in sent.items()}}, {}

    def predictors(self, server: Record, state: Record | None, ctx: ServerContext) -> dict[str, Predictor]:
        if state is None:
            return {}
        tree = self._joined(server, {"model": self._private(ctx.task.init, ctx.task)}, ctx.task)
        return {"personal": Predictor(tree, consts={"received": {name: server[name] for name in TABLES}})}

    def adapt(self, start: Start, ctx: ClientContext) -> list[Phase]:
        return [Collect({"features": Rows(features)})]

    def adapted(self, work: Work, predictor: Predictor, ctx: ClientContext) -> Predictor:
        tables = work.start.consts["received"]
        mixture, _ = self._mixture(work.collected["features"], tables, ctx, FEWEST)
        return replace(predictor, tree={**work.tree, **self._head(ctx, mixture, tables["held"])})

    def _mixture(
        self, rows: LabelledRows, tables: Tree, ctx: ClientContext, fewest: int = 1
    ) -> tuple[Gaussians, Tensor]:
        """Return the mixture of a client's own Gaussians with the received ones, and its shares [1] or [2]."""
        identity = torch.eye(ctx.task.feature_dim, dtype=torch.float64)
        ridge = 1e-4 * identity if self.options.ridge == "small" else 1e-4 + identity
        beta, count = self.options.beta, 2 if self.options.two_betas else 1
        shares = torch.full((count,), 0.5 if beta is None else beta, dtype=torch.float64)
        others = Gaussians.received(tables)
        own = gaussians_of(rows.values, rows.labels, others.means, ridge, fewest)
        if beta is None:
            make_head = partial(self._rows_and_bias, ctx=ctx, held=tables["held"])
            shares = best_shares(rows.values, rows.labels, others, ridge, make_head, shares)
        return own.mixed(others, shares), shares

    def _rows_and_bias(self, gaussians: Gaussians, ctx: ClientContext, held: Tensor) -> tuple[Tensor, Tensor]:
        known = held | (ctx.class_counts > 0) | (not self.options.mask_unknown)
        return gaussians.head(smoothed_shares(ctx.class_counts, self.options.eps), self.options.eps, known)

    def _head(self, ctx: ClientContext, gaussians: Gaussians, held: Tensor) -> Tree:
        if not all(value.isfinite().all() for value in gaussians):  # the run diverged: the first head is as good
            return self._private(ctx.task.init, ctx.task)
        head = zip(("head.weight", "head.bias"), self._rows_and_bias(gaussians, ctx, held), strict=True)
        return {name: value.to(ctx.task.init[name].dtype) for name, value in head}

    def diagnostics(self, server: Record, uploads: Uploads, ctx: ServerContext) -> list[Diagnostic]:
        betas = get_tensor(server, "betas")
        for bound, meaning in ((0.0, "no client uses its own Gaussians"), (1.0, "nobody uses those of others")):
            if self.options.beta is None and bool(((betas - bound).abs() < _AT_BOUND).all()):
                message = f"beta is {bound:g} for all participants: {meaning}"
                return [Diagnostic("pfedfda.beta_at_bound", message, bound)]
        return []
