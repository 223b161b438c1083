"""Class prototypes [m, C, d]: neighbours, weights and clusters at the server, and a pull to them at the client."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

import fedloom.methods as fm
from fedloom.methods.contract.phases import LossFunction
from fedloom.methods.parts.measures import features


def client_distances(table: fm.ClassTable, p: float = 2.0) -> Tensor:
    """Return |row_k - row_q|_p between the clients' rows of each class [m, C, d]: [C, m, m]."""
    rows = table.values.transpose(0, 1)
    # by matrix products equal rows would lie apart by rounding, and ties would break at random
    return torch.cdist(rows, rows, p=p, compute_mode="donot_use_mm_for_euclid_dist")


def nearest_holders(distance: Tensor, held: Tensor, neighbours: int) -> Tensor:
    """Return a mask [C, m, m]: (j, k, q) is true if q is k or one of the min(neighbours, |H_j| - 1) other holders of
    class j nearest to k by `distance` [C, m, m]. Ties go to the first client; rows not in `held` [m, C] are false."""
    holds = held.T  # [C, m]
    clients = holds.shape[1]
    pairs = holds.unsqueeze(2) & holds.unsqueeze(1)
    itself = torch.eye(clients, dtype=torch.bool)
    # Differences below 1e-12 are rounding, not order: ties must go by client, on every machine.
    key = torch.round(distance.double(), decimals=12)
    key = key.masked_fill(~pairs, torch.inf).masked_fill(itself & pairs, -torch.inf)
    # sorting the order again gives the rank of each client in its row
    rank = key.argsort(dim=2, stable=True).argsort(dim=2, stable=True)
    return (rank <= neighbours) & pairs


def merge_neighbours(table: fm.ClassTable, merged_with: Tensor) -> fm.ClassTable:
    """Return the mean of each client's row with its neighbours' rows, over the merged rows, not over M + 1."""
    weights = merged_with.to(table.values.dtype)
    sums = torch.einsum("jkq,qjd->kjd", weights, table.values)
    return fm.ClassTable.from_sums(sums, merged_with.sum(2).T)


def sigmoid_weights(u: Tensor) -> Tensor:
    """Return sigmoid(u_k) / sum_i sigmoid(u_i) over the last axis; softmax of log sigmoid is finite for every u."""
    return torch.softmax(torch.nn.functional.logsigmoid(u), dim=-1)


def shares(amounts: Tensor) -> Tensor:
    """Return amounts [m] / their sum, in float64; equal shares where the sum is 0."""
    amounts = amounts.double()
    total = amounts.sum()
    return amounts / total if total > 0 else torch.full_like(amounts, 1 / len(amounts))


def cosine(a: Tensor, b: Tensor) -> Tensor:
    """Return a.b / max(|a| |b|, 1e-12) over the last axis, with broadcasting."""
    norms: Tensor = a.norm(dim=-1) * b.norm(dim=-1)
    return (a * b).sum(-1) / norms.clamp(min=1e-12)


def label_discrepancy(counts: Tensor) -> Tensor:
    """Return sqrt(1/2 sum_j (n_kj / n_k - 1/C)^2) of class counts [m, C], the distance from uniform in [0, 1)."""
    shares = counts.double() / counts.sum(-1, keepdim=True).clamp(min=1).double()
    return torch.sqrt(0.5 * (shares - 1 / counts.shape[-1]).square().sum(-1))


UNKNOWN = -1e6  # the score of a class without a prototype: finite, so that losses stay so


class PrototypePull(fm.Method):
    """Private nets of any kind with features of one width; a table [C, d] of prototypes goes down and up. Local: CE +
    weight mean over the batch of `distance` to the prototype of the class, 0 for classes without one; then the class
    means of z. Predictors: the net's own head, and "nearest" prototype."""

    spec = fm.Spec(
        receives=("model", "prototypes"),
        requires=("same_width",),
        private=fm.ALL_ROLES,
        architectures="any",
        sends={"prototypes": fm.Sent(labels=True)},
        labels="multi",
    )

    def server_init(self, ctx: fm.ServerContext) -> fm.Record:
        classes, width = ctx.task.num_classes, ctx.task.feature_dim
        return {"prototypes": fm.ClassTable(torch.zeros(classes, width), torch.zeros(classes, dtype=torch.bool))}

    def begin(self, payload: fm.Record, state: fm.Record, ctx: fm.ClientContext) -> fm.Start:
        table = fm.get_table(payload, "prototypes")
        return fm.Start(super().begin(payload, state, ctx).tree, {"rows": table.values, "known": table.held})

    def phases(self, start: fm.Start, ctx: fm.ClientContext) -> list[fm.Phase]:
        return [fm.Train(self.loss, ctx.task.local_epochs), fm.Collect({"prototypes": fm.ClassMeans(features)})]

    def loss(self, net: fm.Net, batch: fm.Batch, consts: fm.Consts) -> fm.Objective:
        z = net.features(batch.x)
        ce = batch.mean(fm.cross_entropy(net.head(z), batch.y))
        rows, by_label = batch.by_label(z)
        distance = self.distance(rows, consts["rows"][by_label.y])
        pull = by_label.mean(torch.where(consts["known"][by_label.y], distance, 0.0))
        return fm.Objective.sum({"ce": ce, "prototypes": self.options.weight * pull}, {"features": z})

    def distance(self, z: Tensor, rows: Tensor) -> Tensor:
        """Return how far features z [B, d] are from the prototypes of their classes, `rows` [B, d]: [B]."""
        return (z - rows).square().mean(1)

    def end(self, work: fm.Work, state: fm.Record, ctx: fm.ClientContext) -> tuple[fm.Record, fm.Record]:
        return {"prototypes": work.collected["prototypes"]}, {"model": work.tree}

    def predictors(self, server: fm.Record, state: fm.Record | None, ctx: fm.ServerContext) -> dict[str, fm.Predictor]:
        offered = super().predictors(server, state, ctx)
        by_distance = functools.partial(nearest, table=self.tested_with(server, state))
        for own_head in list(offered.values()):
            offered["nearest"] = fm.Predictor(own_head.tree, by_distance)
        return offered

    def tested_with(self, server: fm.Record, state: fm.Record | None) -> fm.ClassTable:
        """Return the prototypes [C, d] among which "nearest" chooses; `state` is None for the server's own test."""
        return fm.get_table(server, "prototypes")


def nearest(net: fm.Net, x: Tensor, table: fm.ClassTable) -> Tensor:
    """Return scores [B, C]: minus the squared distance of the features of x to each prototype of `table` [C, d]."""
    z = net.features(x)
    # differences first: a difference of squares would cancel for features near a prototype
    distance = (z.unsqueeze(1) - table.values.to(z)).square().sum(2)
    return torch.where(table.held.to(z.device), -distance, UNKNOWN)


Origin = Literal["after_training", "last_epoch"]
Measure = Callable[[fm.Net, fm.Batch, fm.Consts], Tensor]


class Options(fm.Options):
    """Options about class means as prototypes."""

    prototypes_from: Origin = fm.option(
        "after_training", "Where class means come from: a pass after training, or the last epoch's own forward passes."
    )
    keep_absent: bool = fm.option(
        True, "Whether a class that no participant holds keeps its prototypes. Released code drops them."
    )


def training_with_class_means(
    loss: LossFunction,
    epochs: int,
    origin: Origin,
    measure: Measure = features,
    name: str = "prototypes",
    refresh: Mapping[str, fm.Statistic] | None = None,
) -> list[fm.Phase]:
    """Return the phases of training on `loss` for `epochs` that leave the class means of `measure` under `name`: those
    of the loss's tap of the same name in the last epoch, or of a pass after training, as `origin` says."""
    if origin == "last_epoch":
        collect: dict[str, fm.Statistic] = {name: fm.ClassMeans(measure.__name__)}
        return [fm.Train(loss, epochs, refresh=refresh or {}, collect=collect)]
    return [fm.Train(loss, epochs, refresh=refresh or {}), fm.Collect({name: fm.ClassMeans(measure)})]


_BLOCK = 1024  # rows whose cosines to all points are in memory at once


def finch(points: Tensor) -> Tensor:
    """Return the cluster of each point [n, d], int64 [n]: the coarsest partition of FINCH with more than one cluster.
    Each point joins its nearest one by cosine; the connected components are clusters, whose means are joined in the
    same way until all are one. Up to three points are always one cluster."""
    points = points.double()
    labels, number = torch.arange(len(points)), len(points)
    while number > 1:
        coarser = components(nearest_by_cosine(cluster_means(points, labels)).tolist())[labels]
        fewer = int(coarser.max()) + 1
        if fewer == 1:
            # all joined in the first step: one cluster is the only partition coarser than single points
            return coarser if number == len(points) else labels
        labels, number = coarser, fewer
    return labels


def cluster_means(points: Tensor, labels: Tensor) -> Tensor:
    """Return the mean of the points [n, d] of each cluster [k, d], in float64; labels [n] from 0 to k - 1."""
    clusters = int(labels.max()) + 1
    sums = torch.zeros(clusters, points.shape[1], dtype=torch.float64).index_add_(0, labels, points.double())
    return sums / labels.bincount(minlength=clusters).unsqueeze(1)


def clusters_by_class(rows_by_class: Sequence[Tensor]) -> fm.ClassTable:
    """Cluster rows [n_c, d] of each class by `finch`: means [K, C, d] in float64, those of a class first."""
    points = [rows.double() for rows in rows_by_class]
    means_by_class = [cluster_means(rows, finch(rows)) if len(rows) else rows for rows in points]
    most = max(1, *(len(means) for means in means_by_class))
    clusters = torch.stack([torch.nn.functional.pad(m, (0, 0, 0, most - len(m))) for m in means_by_class], 1)
    numbers = torch.tensor([len(means) for means in means_by_class])
    return fm.ClassTable(clusters, torch.arange(most).unsqueeze(1) < numbers)


def nearest_by_cosine(points: Tensor) -> Tensor:
    """Return which other of points [n, d] has the largest cosine to each; of those within 1e-12 the first."""
    directions = torch.nn.functional.normalize(points, dim=1, eps=1e-12)
    nearest, start = [], 0
    for block in torch.split(directions, _BLOCK):
        cosines = torch.round(block @ directions.T, decimals=12)
        rows = torch.arange(len(block))
        cosines[rows, start + rows] = -torch.inf
        nearest.append(cosines.argmax(1))
        start += len(block)
    return torch.cat(nearest)


def components(neighbours: list[int]) -> Tensor:
    """Return the connected component [n] of each node of the graph whose edges are (i, neighbours[i])."""
    parents = list(range(len(neighbours)))

    def root(node: int) -> int:
        while parents[node] != node:
            # halves the path, so that long chains stay cheap
            parents[node] = parents[parents[node]]
            node = parents[node]
        return node

    for node, neighbour in enumerate(neighbours):
        first, second = sorted((root(node), root(neighbour)))
        parents[second] = first  # so that the root of a component is its first node
    numbers: dict[int, int] = {}
    return torch.tensor([numbers.setdefault(root(node), len(numbers)) for node in range(len(neighbours))])
