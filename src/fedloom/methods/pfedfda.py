from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Annotated, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import one_hot

import fedloom.methods as fm
from fedloom.methods.parts.measures import features
from fedloom.methods.parts.one_shot import gaussian_head, shrunk

_STEPS, _HALVINGS, _SMALL = 50, 40, 1e-7  # of the search in the unit box
TABLES = ("means", "covariance", "held")  # that travel down with the body
FEWEST = 3  # samples of a class from which a test takes the client's own mean of it
_AT_BOUND = 1e-6


@fm.register
class PFedFDA(fm.Method):
    """pFedFDA: a body trained under a head of global class Gaussians, which clients adapt to their own features.
    McLaughlin and Su, NeurIPS 2024, arXiv 2411.00329.

    Local: CE trains the body under the head of the Gaussians (M [C, d], S [d, d]) with the client's class shares.
    Clients send beta m + (1 - beta) M and the same of s and S, m and s the class means and the covariance of their
    features. Server: the mean by samples. Test: a pass over the training data, and the head of the mixture."""

    spec = fm.Spec(
        receives=("model", *TABLES),
        requires=("linear_head", "trained_body"),
        private=frozenset({fm.Role.HEAD}),
        features=True,
        sends={
            "model": fm.Sent(),
            "covariance": fm.Sent(spread=20.0, statistic="covariance of features"),
            "betas": fm.Sent(),
            "means": fm.Sent(labels=True, statistic="class means of features"),
            "held": fm.Sent(labels=True, statistic="held classes"),
        },
        single_because="its Gaussians and priors are of classes that exclude each other",
    )

    class Options(fm.Options):
        beta: Annotated[float, Field(ge=0, le=1)] | None = fm.option(
            None,
            "Share of a client's own means and covariance in the mixture with the received ones. Null chooses it on "
            "two halves of the client's features; 1 is the local variant.",
        )
        two_betas: bool = fm.option(True, "Whether means and covariance get a chosen share each.")
        eps: float = fm.option(1e-4, "Smoothing of class shares, and of covariances by the identity.", gt=0, lt=1)
        ridge: Literal["identity", "small"] = fm.option(
            "small",
            "Added to a client's covariance: 1e-4 of the identity (small), or the identity and 1e-4 in every entry, as"
            " released.",
        )
        features_from: Literal["training", "after_training"] = fm.option(
            "training", "Where features come from: all passes of training, or one pass after it."
        )
        mask_unknown: bool = fm.option(
            True, "Whether classes that no client has held yet are left out. The paper gives them random means."
        )

    def examine(self, tasks: fm.Tasks, participants: int) -> list[fm.Diagnostic]:
        diagnostics, task = super().examine(tasks, participants), tasks[0]
        if "head.bias" not in task.init:
            raise fm.ConfigError("pfedfda needs a head with a bias, for the shares of the classes; this one has none")
        entries, body = task.feature_dim**2, sum(v.numel() for v in self._shared(task.init, task).values())
        message = f"a covariance has {entries:,} entries and the body {body:,}: most of the traffic is covariances"
        outweighs = [fm.Diagnostic("pfedfda.covariance_outweighs", message, entries / body)] if entries > body else []
        return diagnostics + outweighs

    def server_init(self, ctx: fm.ServerContext) -> fm.Record:
        task, dtype = ctx.task, ctx.task.init["head.weight"].dtype
        drawn = task.streams.numpy("pfedfda means").random((task.num_classes, task.feature_dim))
        covariance, held = torch.eye(task.feature_dim, dtype=dtype), torch.zeros(task.num_classes, dtype=torch.bool)
        gaussians = {"means": torch.from_numpy(drawn).to(dtype), "covariance": covariance, "held": held}
        return super().server_init(ctx) | gaussians

    def client_init(self, ctx: fm.ClientContext) -> fm.Record:
        return {}  # the head is computed from the received Gaussians

    def aggregate(self, server: fm.Record, uploads: fm.Uploads, ctx: fm.ServerContext) -> fm.Record:
        dtype, tensors = fm.get_tensor(server, "means").dtype, ("means", "covariance", "betas")
        means: dict[str, Tensor] = {name: self.mean(uploads, name).to(dtype) for name in tensors}
        held = fm.get_tensor(server, "held") | (self.mean(uploads, "held", "uniform") > 0)
        return {"model": self.mean(uploads), **means, "held": held}

    def begin(self, payload: fm.Record, state: fm.Record, ctx: fm.ClientContext) -> fm.Start:
        tables = {name: fm.get_tensor(payload, name) for name in TABLES}
        head = self._head(ctx, Gaussians.received(tables), tables["held"])
        return fm.Start(self._joined(payload, {"model": head}, ctx.task), {"received": tables})

    def phases(self, start: fm.Start, ctx: fm.ClientContext) -> list[fm.Phase]:
        body = fm.TRAINABLE - {fm.Role.HEAD}
        train = fm.Train(self.loss, ctx.task.local_epochs, trains=body)
        if self.options.features_from == "after_training":
            return [train, fm.Collect({"features": fm.Rows(features)})]
        return [replace(train, collect={"features": fm.Rows("features")}, throughout=True)]

    def loss(self, net: fm.Net, batch: fm.Batch, consts: fm.Consts) -> fm.Objective:
        z = net.features(batch.x)
        return fm.Objective.sum({"ce": batch.mean(fm.cross_entropy(net.head(z), batch.y))}, {"features": z})

    def end(self, work: fm.Work, state: fm.Record, ctx: fm.ClientContext) -> tuple[fm.Record, fm.Record]:
        tables = work.start.consts["received"]
        mixture, shares = self._mixture(work.collected["features"], tables, ctx)
        sent = {"means": mixture.means, "covariance": mixture.covariance, "held": ctx.class_counts > 0, "betas": shares}
        dtype, shared = tables["means"].dtype, self._shared(work.tree, ctx.task)
        return {"model": shared, "samples": ctx.samples, **{n: v.to(dtype) for n, v in sent.items()}}, {}

    def predictors(self, server: fm.Record, state: fm.Record | None, ctx: fm.ServerContext) -> dict[str, fm.Predictor]:
        if state is None:
            return {}
        consts = {"received": {name: server[name] for name in TABLES}}
        return {"personal": fm.Predictor(self._full(server, None, ctx.task), consts=consts)}

    def adapt(self, start: fm.Start, ctx: fm.ClientContext) -> list[fm.Phase]:
        return [fm.Collect({"features": fm.Rows(features)})]

    def adapted(self, work: fm.Work, predictor: fm.Predictor, ctx: fm.ClientContext) -> fm.Predictor:
        tables = work.start.consts["received"]
        mixture, _ = self._mixture(work.collected["features"], tables, ctx, FEWEST)
        return replace(predictor, tree={**work.tree, **self._head(ctx, mixture, tables["held"])})

    def _mixture(
        self, rows: fm.LabelledRows, tables: fm.Tree, ctx: fm.ClientContext, fewest: int = 1
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
            loss = held_out_loss(rows.values, rows.labels, others, ridge, make_head)
            finite = all(bool(values.isfinite().all()) for values in (rows.values, *others))
            shares = least_in_unit_box(loss, shares) if loss is not None and finite else torch.zeros_like(shares)
        return own.mixed(others, shares), shares

    def _rows_and_bias(self, gaussians: Gaussians, ctx: fm.ClientContext, held: Tensor) -> tuple[Tensor, Tensor]:
        known = held | (ctx.class_counts > 0) | (not self.options.mask_unknown)
        return gaussians.head(smoothed_shares(ctx.class_counts, self.options.eps), self.options.eps, known)

    def _head(self, ctx: fm.ClientContext, gaussians: Gaussians, held: Tensor) -> fm.Tree:
        if not all(value.isfinite().all() for value in gaussians):  # the run diverged: the first head is as good
            return self._private(ctx.task.init, ctx.task)
        head = zip(("head.weight", "head.bias"), self._rows_and_bias(gaussians, ctx, held), strict=True)
        return {name: value.to(ctx.task.init[name].dtype) for name, value in head}

    def diagnostics(self, server: fm.Record, uploads: fm.Uploads, ctx: fm.ServerContext) -> list[fm.Diagnostic]:
        betas = fm.get_tensor(server, "betas")
        for bound, meaning in ((0.0, "no client uses its own Gaussians"), (1.0, "nobody uses those of others")):
            if self.options.beta is None and bool(((betas - bound).abs() < _AT_BOUND).all()):
                message = f"beta is {bound:g} for all participants: {meaning}"
                return [fm.Diagnostic("pfedfda.beta_at_bound", message, bound)]
        return []


class Gaussians(NamedTuple):
    """Class means [C, d] and the covariance within classes [d, d], float64."""

    means: Tensor
    covariance: Tensor

    @staticmethod
    def received(tables: Mapping[str, Tensor]) -> Gaussians:
        return Gaussians(tables["means"].double(), tables["covariance"].double())

    def mixed(self, other: Gaussians, shares: Tensor) -> Gaussians:
        """Return shares * these + (1 - shares) * the others; shares [2] of means and covariance, or [1] of both."""
        first, last = shares[0], shares[-1]
        means = first * self.means + (1 - first) * other.means
        return Gaussians(means, last * self.covariance + (1 - last) * other.covariance)

    def head(self, priors: Tensor, share: float, held: Tensor) -> tuple[Tensor, Tensor]:
        """Rows [C, d] and bias [C] of their head, by shares `priors`, the identity's `share` and `held` classes."""
        return gaussian_head(fm.ClassTable(self.means, held), shrunk(self.covariance, share), priors)


def gaussians_of(z: Tensor, labels: Tensor, absent: Tensor, ridge: Tensor, fewest: int = 1) -> Gaussians:
    """Estimate class means and the covariance within classes of features z [n, d] with `labels`, divided by the samples
    less one, with `ridge` [d, d] added. Classes with fewer samples than `fewest` take the mean in `absent` [C, d]."""
    z, membership = z.double(), one_hot(labels, len(absent)).double()
    counts = membership.sum(0)
    means = membership.T @ z / counts.clamp(min=1).unsqueeze(1)
    apart = z - means[labels]
    covariance = apart.T @ apart / max(1, len(z) - 1) + ridge.double()
    return Gaussians(torch.where((counts >= fewest).unsqueeze(1), means, absent.double()), covariance)


def smoothed_shares(counts: Tensor, eps: float) -> Tensor:
    """Return (n_c / n + eps) / (1 + C eps), the class shares [C] in float64, for class counts [C]."""
    shares = counts.double() / counts.sum()
    return (shares + eps) / (1 + eps * len(counts))


def halves(labels: Tensor) -> Tensor | None:
    """Deal the samples of each class to two halves in turn: 0 or 1, -1 for single ones; None if no class has two."""
    membership = one_hot(labels)
    place = (membership.cumsum(0) * membership).sum(1) - 1  # of a sample among those of its class
    half = torch.where(membership.sum(0)[labels] > 1, place % 2, -1)
    return None if bool((half < 0).all()) else half


def held_out_loss(
    z: Tensor, labels: Tensor, others: Gaussians, ridge: Tensor, head: Callable[[Gaussians], tuple[Tensor, Tensor]]
) -> Callable[[Tensor], Tensor] | None:
    """Return the loss of shares ([1] or [2]) of the client's own Gaussians in the mixture with `others`: the sum over
    both halves of z [n, d] of the mean cross-entropy of the `head` from the other half's Gaussians; None without."""
    half = halves(labels)
    if half is None:
        return None
    folds = []
    for fold in (0, 1):
        inside, outside = (half >= 0) & (half != fold), half == fold
        estimate = gaussians_of(z[inside], labels[inside], others.means, ridge)
        folds.append((estimate, z[outside].double(), labels[outside]))

    def loss(shares: Tensor) -> Tensor:
        losses = []
        for estimate, held_out, targets in folds:
            rows, bias = head(estimate.mixed(others, shares))
            losses.append(torch.nn.functional.cross_entropy(held_out @ rows.T + bias, targets))
        return torch.stack(losses).sum()

    return loss


def least_in_unit_box(function: Callable[[Tensor], Tensor], start: Tensor) -> Tensor:
    """Descend from `start` [n] to a minimum of a smooth function over [0, 1]^n, by projected Newton steps."""
    point = start.clone()
    for _ in range(_STEPS):
        leaf = point.detach().requires_grad_()
        value = function(leaf)
        (slope,) = torch.autograd.grad(value, leaf)
        curvature: Tensor = torch.autograd.functional.hessian(function, point)  # type: ignore[no-untyped-call]
        held = ((point <= 0) & (slope > 0)) | ((point >= 1) & (slope < 0))
        slope = torch.where(held, 0.0, slope)
        # shares held at a bound move nowhere: their row of the Hessian is that of the identity
        free = (~held).to(slope.dtype)
        matrix = curvature * free.outer(free) + torch.diag(1 - free)
        if not (matrix.isfinite().all() and slope.isfinite().all()):  # no way down can be told
            return point
        curvatures = torch.linalg.eigvalsh(matrix)
        least = (1e-12 * curvatures.abs().max()).clamp(min=1e-6)  # 1e-6 would be lost in the rounding of large ones
        matrix = matrix + torch.eye(len(point), dtype=matrix.dtype) * (least - curvatures[0]).clamp(min=0)
        step = torch.linalg.solve(matrix, slope)
        for _ in range(_HALVINGS):
            moved: Tensor = (point - step).clamp(0, 1)
            if function(moved) < value.detach():
                break
            step = step / 2
        else:
            return point
        if float((moved - point).abs().max()) < _SMALL:
            return moved
        point = moved
    return point
