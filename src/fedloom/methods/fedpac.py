from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

import fedloom.methods as fm
from fedloom.methods.contract.means import mean_by_label, recorded_shares
from fedloom.methods.parts.measures import features
from fedloom.methods.parts.several_models import as_uploads, head_in

_TOLERANCE = 1e-12  # of the largest entry of the matrix: below it, a difference is rounding
ALIKE = 1e-3  # head weights this near to a client's own, or to the mean, are reported


@fm.register
class FedPAC(fm.Method):
    """FedPAC: a body pulled to global class means, and for each client the mix of heads that suits its features. Xu et
    al., ICLR 2023, arXiv 2306.11867.

    Local: statistics of the received body; the head alone on CE; the body alone on CE + lambda |z - row_y|^2 / d.
    Server: bodies by samples, class means by samples of the class. A participant's head is the mean of all
    participants' heads with the simplex weights that minimise a^T (diag(variances) + D) a, D the products of the
    differences of class-share-weighted class means. Clients that were not drawn keep their head."""

    spec = fm.Spec(
        requires=("trained_body",),
        private=frozenset({fm.Role.HEAD}),
        features=True,
        sends={
            "model": fm.Sent(),
            "head": fm.Sent(per_client=True),
            "prototypes": fm.Sent(labels=True),
            "start_means": fm.Sent(per_client=True, labels=True, statistic="class means of features before training"),
            "class_counts": fm.Sent(per_client=True, labels=True),
            "variance": fm.Sent(per_client=True, spread=20.0, statistic="variance of features"),
        },
        labels="multi",
    )

    class Options(fm.Options):
        weight: float = fm.option(1.0, "lambda, the strength of the pull to the global class means.", ge=0)
        head_lr: float = fm.option(0.1, "Learning rate of the head in its own phase.", gt=0)
        head_epochs: int = fm.option(1, "Passes that train the head, before the body trains.", ge=0)
        cut: float = fm.option(1e-3, "Head weights up to this one become 0; the others are scaled to 1.", ge=0, lt=1)
        weights: Literal["counts", "uniform"] = fm.option(
            "counts", "Weights of the holders of a class in its global mean: by samples of it, or equal."
        )
        unknown: Literal["own", "none"] = fm.option(
            "own",
            "What pulls features of a class without a global mean: the client's own mean before training, or nothing.",
        )

    def down(self, server: fm.Record, client: int, ctx: fm.ServerContext) -> fm.Record:
        payload: fm.Record = {name: server[name] for name in ("model", "prototypes") if name in server}
        name = _head_of(client)
        return payload | {"head": server[name]} if name in server else payload

    def aggregate(self, server: fm.Record, uploads: fm.Uploads, ctx: fm.ServerContext) -> fm.Record:
        counts = fm.tensors_of(uploads, "class_counts")
        class_weights: fm.Weights = counts if self.options.weights == "counts" else "uniform"
        means: fm.ClassTable = self.mean(uploads, "prototypes", class_weights).to(torch.float32)
        if "prototypes" in server:
            # a class without holders in this round keeps the mean of the last round that had it
            means = means.fill_missing(fm.get_table(server, "prototypes"))
        tables = fm.tables_of(uploads, "start_means")
        variances = torch.tensor(fm.numbers_of(uploads, "variance"), dtype=torch.float64)
        h, recorded = weighted_means(tables, counts, fm.numbers_of(uploads, "samples")), recorded_shares(uploads)
        weights = head_weights(h, variances, self.options.cut, None if recorded is None else recorded > 0)
        heads = as_uploads([head_in(upload, "head") for upload in uploads.values()], "head")
        for client, row in zip(uploads, weights.tolist(), strict=True):
            # zero weights are left out rather than multiplied: a head that diverged would spoil the sum
            mixed = {k: weight for k, weight in enumerate(row) if weight > 0}
            server = server | {_head_of(client): mean_by_label({k: heads[k] for k in mixed}, "head", mixed.values())}
        facts: fm.Record = {"prototypes": means, "head_weights": weights.to(torch.float32)}
        return server | super().aggregate(server, uploads, ctx) | facts

    def begin(self, payload: fm.Record, state: fm.Record, ctx: fm.ClientContext) -> fm.Start:
        private = {"model": payload["head"]} if "head" in payload else state
        tree = self._joined(payload, private, ctx.task)
        if "prototypes" not in payload:  # round 1
            return fm.Start(tree, {})
        table = fm.get_table(payload, "prototypes")
        return fm.Start(tree, {"rows": table.values, "known": table.held})

    def phases(self, start: fm.Start, ctx: fm.ClientContext) -> list[fm.Phase]:
        head = frozenset({fm.Role.HEAD})
        optimizer = replace(ctx.task.optimizer, lr=self.options.head_lr, decay=1.0)
        return [
            fm.Collect({"start_means": fm.ClassMeans(features), "squares": fm.SampleMean(_squared_lengths)}),
            fm.Train(super().loss, self.options.head_epochs, head, optimizer=optimizer, evaluates=fm.ALL_ROLES - head),
            fm.Train(self.loss, ctx.task.local_epochs, fm.TRAINABLE - head),
            fm.Collect({"prototypes": fm.ClassMeans(features)}),
        ]

    def loss(self, net: fm.Net, batch: fm.Batch, consts: fm.Consts) -> fm.Objective:
        z = net.features(batch.x)
        terms = {"ce": batch.mean(fm.cross_entropy(net.head(z), batch.y))}
        if "rows" in consts:
            pulled, by_label = batch.by_label(z)
            known, own = consts["known"][by_label.y], consts["start_means"]
            # a class without a global mean is pulled to the client's own mean from before training
            rows = torch.where(known.unsqueeze(1), consts["rows"][by_label.y], own.values[by_label.y])
            has_mean = known | own.held[by_label.y] if self.options.unknown == "own" else known
            distance = torch.where(has_mean, (pulled - rows).square().mean(1), 0.0)
            terms["prototypes"] = self.options.weight * by_label.mean(distance)
        return fm.Objective.sum(terms)

    def end(self, work: fm.Work, state: fm.Record, ctx: fm.ClientContext) -> tuple[fm.Record, fm.Record]:
        payload, next_state = super().end(work, state, ctx)
        means = work.collected["start_means"]
        h = weighted_means(fm.ClassTable.stack([means]), ctx.class_counts.unsqueeze(0), [ctx.samples])
        # E|z y|^2 - sum_c |h_c|^2 in float64, since both are large and nearly equal
        variance = (float(work.collected["squares"]) - float(h.square().sum())) / ctx.samples
        return payload | {"head": next_state["model"], "variance": max(0.0, variance)}, next_state

    def predictors(self, server: fm.Record, state: fm.Record | None, ctx: fm.ServerContext) -> dict[str, fm.Predictor]:
        name = _head_of(ctx.client)
        if state is not None and name in server:
            state = state | {"model": server[name]}
        return super().predictors(server, state, ctx)

    def diagnostics(self, server: fm.Record, uploads: fm.Uploads, ctx: fm.ServerContext) -> list[fm.Diagnostic]:
        weights = fm.get_tensor(server, "head_weights")
        if len(weights) < 2:
            return []
        from_own = float((weights - torch.eye(len(weights))).abs().max())
        from_mean = float((weights - 1 / len(weights)).abs().max())
        if from_own < ALIKE:
            return [fm.Diagnostic("fedpac.own_heads", "every participant keeps its own head: none is shared", from_own)]
        message = "every participant gets the mean of all heads: heads are not personal"
        return [fm.Diagnostic("fedpac.mean_heads", message, from_mean)] if from_mean < ALIKE else []


def minimum_on_simplex(matrix: Tensor) -> Tensor:
    """Return the weights a >= 0 [m] with sum 1 that minimise a^T `matrix` a, by the active set method of Lawson and
    Hanson (1974, chapter 23): weights join the support one by one, by the largest decrease, and leave it where they
    would become negative. Each support is solved exactly in float64."""
    quadratic = matrix.double()
    count, tolerance = len(quadratic), _TOLERANCE * float(quadratic.abs().max().clamp(min=1e-300))
    weights = torch.zeros(count, dtype=torch.float64)
    weights[int(quadratic.diagonal().argmin())] = 1.0
    support = weights > 0
    for _ in range(3 * count + 10):  # supports never come back; the bound is for rounding alone
        slopes = quadratic @ weights
        excess = torch.where(support, torch.inf, slopes - weights @ slopes)
        if support.all() or float(excess.min()) >= -tolerance:
            break
        support[int(excess.argmin())] = True
        weights, support = _descend_to_support(quadratic, weights, support)
    return weights


def _descend_to_support(quadratic: Tensor, weights: Tensor, support: Tensor) -> tuple[Tensor, Tensor]:
    """Move to the minimum over weights of `support` [m] that sum to 1; those that reach 0 on the way leave it."""
    support = support.clone()
    while True:
        target = _minimum_on_support(quadratic, support)
        falling = support & (target <= 0)
        if not falling.any():
            return target, support
        share = torch.where(falling, weights / (weights - target).clamp(min=1e-300), torch.inf).min().clamp(max=1)
        weights = weights + share * (target - weights)
        leaving = falling & (weights <= 1e-15)
        leaving[int(torch.where(falling, weights, torch.inf).argmin())] = True
        support, weights = support & ~leaving, torch.where(leaving, 0.0, weights)


def _minimum_on_support(quadratic: Tensor, support: Tensor) -> Tensor:
    """Return the stationary point [m] of weights that sum to 1 and are 0 outside `support`, of either sign."""
    part = quadratic[support][:, support]
    size = len(part)
    system = torch.ones(size + 1, size + 1, dtype=torch.float64)
    system[:size, :size], system[size, size] = part, 0.0
    right = torch.zeros(size + 1, dtype=torch.float64)
    right[size] = 1.0
    scale = float(part.abs().max().clamp(min=1e-300))
    # scaled to 1, so that the row of ones does not vanish beside it
    system[:size, :size] /= scale
    # least squares, because equal clients make the system singular
    solution = torch.linalg.lstsq(system, right.unsqueeze(1), driver="gelsd").solution[:size, 0]
    weights = torch.zeros(len(quadratic), dtype=torch.float64)
    weights[support] = solution / solution.sum()
    return weights


def weighted_means(means: fm.ClassTable, counts: Tensor, samples: Sequence[float]) -> Tensor:
    """Return h [m, C, d]: class means [m, C, d] times the share of the class among each client's `samples`."""
    shares = counts.double() / torch.tensor(samples, dtype=torch.float64).clamp(min=1).unsqueeze(1)
    return shares.unsqueeze(2) * means.values.double()


def head_weights(h: Tensor, variances: Tensor, cut: float, recorded: Tensor | None = None) -> Tensor:
    """Return the weights of all heads for each client [m, m], rows of sum 1: row i minimises a^T (diag(variances) +
    D_i) a on the simplex, D_i[j, l] = (h_i - h_j) . (h_i - h_l), h the `weighted_means` [m, C, d], over the labels that
    both have `recorded` [m, L]; weights up to `cut` become 0. Without finite statistics clients keep their own head."""
    if not bool(h.isfinite().all() and variances.isfinite().all()):
        return torch.eye(len(h), dtype=torch.float64)
    recorded, rows = torch.ones(h.shape[:2]) > 0 if recorded is None else recorded, []
    for own_means, own_labels in zip(h, recorded, strict=True):
        differences = torch.where((own_labels & recorded).unsqueeze(2), own_means - h, 0.0).flatten(1)
        weights = minimum_on_simplex(variances.diag() + differences @ differences.T)
        large = torch.where(weights > cut, weights, 0.0)
        large = large if bool(large.any()) else weights
        rows.append(large / large.sum())
    return torch.stack(rows)


def _squared_lengths(net: fm.Net, batch: fm.Batch, consts: fm.Consts) -> Tensor:
    squares = net.features(batch.x).double().square().sum(1)
    return squares if batch.y.dim() == 1 else squares * (batch.y == 1).sum(1)  # |z y|^2 of several labels y


def _head_of(client: int) -> str:
    return f"head.{client}"
