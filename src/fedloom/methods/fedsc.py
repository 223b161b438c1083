from typing import Literal

import torch
from torch import Tensor

import fedloom.methods as fm
from fedloom.methods.parts import contrast
from fedloom.methods.parts import prototypes as tables
from fedloom.methods.parts.parameters import neighbours_clamped, one_holder_per_class


@fm.register
class FedSC(fm.Method):
    """FedSC: contrast with other clients' class prototypes. Wang et al., KDD 2025, doi 10.1145/3711896.3736957.

    The feature is z [d], the head's input; prototypes are class means (Eq. 3). From round 2 on clients minimise CE +
    RPCL (Eq. 13-14) + CPDR (Eq. 15). The server averages weights as FedAvg, merges each prototype with its M nearest by
    the angle to the class mean into R [m, C, d] (Eq. 5-9), and averages R to O [C, d], weighted by size against label
    discrepancy (Eq. 10-12). Preset `sound` takes CPDR as a mean square, because the printed L1 sum swamps CE, and tau =
    0.5: see the method's page."""

    spec = fm.Spec(
        receives=None,
        features=True,
        sends={
            "model": fm.Sent(),
            "prototypes": fm.Sent(per_client=True, labels=True, spread=0.6, dp="noise"),
            "class_counts": fm.Sent(per_client=True, labels=True, dp="ones"),
        },
        labels="multi",
        late=True,
    )

    class Options(fm.Options):
        tau: float = fm.option(0.05, "Temperature of RPCL.", gt=0)
        neighbours: int = fm.option(2, "M, prototypes that are merged with each prototype.", ge=0)
        neighbour: Literal["angle", "l1", "l2", "cosine", "kl", "none"] = fm.option(
            "angle", "Distance by which neighbours of a prototype are chosen."
        )
        scale: Literal["dataset", "batch", "none"] = fm.option(
            "dataset", "The normaliser U: over the client's data set (taken once an epoch), over the batch, or none."
        )
        detach_scale: bool = fm.option(True, "Whether U is a constant for the gradient.")
        positives: Literal["all", "mean", "self"] = fm.option(
            "all",
            "Positives of a sample: all prototypes of its class, their clients' mean, or the sample itself (released "
            "code).",
        )
        rpcl_reduce: Literal["sum", "mean_exp"] = fm.option(
            "sum", "Sum or mean of the exponentials over the positives."
        )
        cpdr: Literal["l1", "l2", "mse", "off"] = fm.option(
            "l1", "Norm of the regulariser: printed sum of absolute differences, L2 norm, mean square, or off."
        )
        consistent: Literal["renorm", "zero_fill", "code"] = fm.option(
            "renorm", "How O treats clients that do not hold a class."
        )
        prototypes_from: Literal["after_training", "last_epoch"] = fm.option(
            "after_training",
            "Where prototypes come from: a pass after training, or the last epoch's own forward passes.",
        )
        lambda_rpcl: float = fm.option(1.0, "Weight of RPCL.", ge=0)
        rpcl_ramp: int = fm.option(0, "Rounds over which RPCL's weight grows to its full value; 0 is at once.", ge=0)
        lambda_cpdr: float = fm.option(1.0, "Weight of CPDR.", ge=0)

    def examine(self, tasks: fm.Tasks, participants: int) -> list[fm.Diagnostic]:
        clamped = neighbours_clamped("fedsc", self.options.neighbours, participants)
        return super().examine(tasks, participants) + clamped

    def aggregate(self, server: fm.Record, uploads: fm.Uploads, ctx: fm.ServerContext) -> fm.Record:
        counts = fm.tensors_of(uploads, "class_counts")
        local = fm.tables_of(uploads, "prototypes").to(torch.float64)
        relational = relational_prototypes(local, self.options.neighbours, self.options.neighbour)
        weights = discrepancy_weights(counts)
        consistent = consistent_prototypes(relational, weights, self.options.consistent)
        knowledge = {"relational": relational.to(torch.float32), "consistent": consistent.to(torch.float32)}
        return {"model": self.mean(uploads), **knowledge}

    def begin(self, payload: fm.Record, state: fm.Record, ctx: fm.ClientContext) -> fm.Start:
        start = super().begin(payload, state, ctx)
        if "relational" not in payload:
            return start
        relational, consistent = (fm.get_table(payload, name) for name in ("relational", "consistent"))
        weight = contrast.ramped(self.options.lambda_rpcl, ctx.round, self.options.rpcl_ramp, consistent.values)
        known = None if consistent.held.all() else consistent.held
        prototypes = {"consistent": consistent.values, "known": known, "weight": weight}
        if self.options.positives == "self":
            holders, classes, width = relational.values.shape
            rows = relational.values.reshape(-1, width)
            is_own_class = torch.arange(classes).repeat(holders) == torch.arange(classes).unsqueeze(1)  # [C, m C]
            pool = {"prototypes": rows, "directions": contrast.unit(rows), "held": relational.held.reshape(-1)}
            return fm.Start(start.tree, pool | {"own": is_own_class} | prototypes)
        all_attract = self.options.positives == "all"
        made = contrast.prototypes_of_table(relational) if all_attract else prototypes_with_means(relational)
        return fm.Start(start.tree, {"prototypes": made} | prototypes)

    def phases(self, start: fm.Start, ctx: fm.ClientContext) -> list[fm.Phase]:
        options, epochs = self.options, ctx.task.local_epochs
        over_all = options.scale == "dataset" and isinstance(start.consts.get("prototypes"), contrast.Prototypes)
        refresh = {"scale": fm.SampleMean(_distances)} if over_all else {}
        return tables.training_with_class_means(self.loss, epochs, options.prototypes_from, refresh=refresh)

    def loss(self, net: fm.Net, batch: fm.Batch, consts: fm.Consts) -> fm.Objective:
        options = self.options
        z = net.features(batch.x)
        ce = batch.mean(fm.cross_entropy(net.head(z), batch.y))
        taps = {"features": z}
        if "prototypes" not in consts:  # round 1: nothing has been shared yet
            return fm.Objective.sum({"ce": ce}, taps)
        z, batch = batch.by_label(z)
        if options.positives == "self":
            repulsion = released_repulsion(z, batch, consts, options.tau)
            return fm.Objective.sum({"ce": ce, "rpcl": consts["weight"] * repulsion}, taps)
        terms = {"ce": ce, "rpcl": consts["weight"] * rpcl(z, batch, consts, options)}
        if options.cpdr != "off":
            terms["cpdr"] = options.lambda_cpdr * cpdr(z, batch, consts, options.cpdr)
        return fm.Objective.sum(terms, taps)

    def diagnostics(self, server: fm.Record, uploads: fm.Uploads, ctx: fm.ServerContext) -> list[fm.Diagnostic]:
        held = fm.tables_of(uploads, "prototypes").held
        return one_holder_per_class("fedsc", held, "no prototype has a neighbour, r = o = the local mean")


def released_repulsion(z: Tensor, batch: fm.Batch, consts: fm.Consts, tau: float) -> Tensor:
    """Return mean_i log(1 + sum over the pool of exp((cos(z_i, p) - 1) / tau)) of features z [B, d]: FedSC as released
    (commit a04dc8e). `torch.mean` of a list fails there under a bare `except`, so each sample is its own positive and
    its own consistency target. What remains is a repulsion from the negatives of the whole `batch`, where every class
    occurs once for each sample of another; R holds the raw local prototypes."""
    scores = (contrast.unit(z) @ consts["directions"].to(z.dtype).T - 1) / tau
    counted = torch.ones_like(batch.y) if batch.mask is None else batch.mask.long()
    same = (consts["own"][batch.y] * counted.unsqueeze(1)).sum(0)  # [Q] samples of the prototype's own class
    repeats = (counted.sum() - same).to(z.dtype)  # [Q] how often the pool holds each prototype
    pooled = (repeats > 0) & consts["held"]
    scores = scores + torch.where(pooled, repeats, torch.ones_like(repeats)).log()
    repelled = torch.nn.functional.softplus(contrast.log_sum_exp(scores, pooled))
    return batch.mean(torch.where(pooled.any(), repelled, 0.0))


def rpcl(z: Tensor, batch: fm.Batch, consts: fm.Consts, options: FedSC.Options) -> Tensor:
    """RPCL, Eq. 13-14, of features z [B, d]: scalar, mean over the samples of a `batch` whose class is known."""
    losses, defined = contrast.prototype_contrast(z, batch, consts, options)
    if options.rpcl_reduce == "mean_exp":  # the positives' mean, without the advantage of many holders
        losses = losses + consts["prototypes"].attracting.log()[batch.y]
    return batch.mean(losses, among=defined)


def cpdr(z: Tensor, batch: fm.Batch, consts: fm.Consts, norm: str) -> Tensor:
    """Eq. 15: distance by `norm` of z [B, d] to the prototype of the class, a mean over known ones of a `batch`."""
    consistent = None if consts["known"] is None else consts["known"][batch.y]
    difference = z - consts["consistent"][batch.y]
    if norm == "mse":
        return batch.mean(difference.square().mean(1), among=consistent)
    return batch.mean(difference.abs().sum(1) if norm == "l1" else difference.norm(dim=1), among=consistent)


def prototypes_with_means(relational: fm.ClassTable) -> contrast.Prototypes:
    """R [m, C, d] with one more row a class, the mean of its rows: the mean attracts, the rows repel other classes."""
    mean = relational.mean_over_clients()
    rows = torch.cat([relational.values, mean.values.unsqueeze(0)])
    positives = torch.cat([torch.zeros_like(relational.held), mean.held.unsqueeze(0)])
    negatives = torch.cat([relational.held, torch.zeros_like(mean.held).unsqueeze(0)])
    return contrast.prototypes_of(rows, positives, negatives)


def relational_prototypes(local: fm.ClassTable, neighbours: int, metric: str) -> fm.ClassTable:
    """R [m, C, d], Eq. 5-9: each local prototype averaged with those of its nearest holders by `metric`; "angle"
    compares cosines with the holders' mean (Eq. 7-8), the others compare prototypes (Table 5)."""
    if metric == "none":
        return local
    nearest = tables.nearest_holders(_client_distances(local, metric), local.held, neighbours)
    return tables.merge_neighbours(local, nearest)


def angles(local: fm.ClassTable) -> Tensor:
    """phi [m, C]: cosine of each local prototype [m, C, d] to its class's mean over the holders, Eq. 5 and 7."""
    return tables.cosine(local.mean_over_clients().values, local.values)


def _client_distances(local: fm.ClassTable, metric: str) -> Tensor:
    rows = local.values.transpose(0, 1)  # [C, m, d]
    if metric == "angle":
        phi = angles(local).T
        return (phi.unsqueeze(2) - phi.unsqueeze(1)).abs()
    if metric in ("l1", "l2"):
        return tables.client_distances(local, p=float(metric[1]))
    if metric == "cosine":
        # a prototype without length is at distance 1 from all
        directions = rows / rows.norm(dim=-1, keepdim=True).clamp(min=1e-12)
        similarities: Tensor = directions @ directions.transpose(1, 2)
        return 1 - similarities
    log_p = rows.log_softmax(-1)
    return (log_p.exp() * log_p).sum(-1).unsqueeze(2) - log_p.exp() @ log_p.transpose(1, 2)  # KL(k || q)


def discrepancy_weights(counts: Tensor) -> Tensor:
    """e_k [m] of counts [m, C], Eq. 10-11: sigmoid(u_k) / sum_i sigmoid(u_i), u_k the sample share - that of d_k."""
    u = tables.shares(counts.sum(1)) - tables.shares(tables.label_discrepancy(counts))
    return tables.sigmoid_weights(u)


def consistent_prototypes(relational: fm.ClassTable, weights: Tensor, mode: str = "renorm") -> fm.ClassTable:
    """O [C, d] from R [m, C, d] and e [m]: sum_k e_k r_k^j over the holders of j, Eq. 12. `mode` "renorm" divides by
    their weights, "zero_fill" does not; "code" takes e by position in the list of holders, as released."""
    held = relational.held
    if mode == "code":
        # the k-th holder of a class gets the weight of the k-th client, whoever it is
        position = (held.cumsum(0) - 1).clamp(min=0)
        share = torch.where(held, weights[position], torch.zeros((), dtype=weights.dtype))
    else:
        share = torch.where(held, weights.unsqueeze(1), torch.zeros((), dtype=weights.dtype))
    if mode == "renorm":
        share = share / torch.where(held.any(0), share.sum(0), 1.0)
    return fm.ClassTable((share.unsqueeze(2) * relational.values).sum(0), held.any(0))


def _distances(net: fm.Net, batch: fm.Batch, consts: fm.Consts) -> Tensor:
    return contrast.distances_to(net.features(batch.x), consts["prototypes"])
