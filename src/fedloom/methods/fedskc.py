from dataclasses import replace
from typing import Literal

import torch
from pydantic import field_validator
from torch import Tensor
from torch.nn.functional import silu

import fedloom.methods as fm
from fedloom.methods.parts import contrast
from fedloom.methods.parts import prototypes as tables
from fedloom.methods.parts.measures import logits
from fedloom.methods.parts.parameters import neighbours_clamped, one_holder_per_class


@fm.register
class FedSKC(fm.Method):
    """FedSKC: contrast with class knowledge in logit space, weights by distance to it. Wang et al., ICWS 2025.

    The feature is the logit vector l [C]; a client's knowledge c_k [C, C] is SiLU of its class means. From round 2 on
    clients minimise CE + LCL (Eq. 2-3). The server merges each client's row with its M nearest and averages over the
    holders to c~ (Eq. 1), weighs clients by size and distance to c~ (GDA, Eq. 4), and steps towards or away from the
    last broadcast model by the relative change of c~'s variance (GPR, Eq. 5). Preset `sound` has no U, GDA or GPR, and
    tau = 0.5: see the method's page."""

    spec = fm.Spec(
        receives=("model", "knowledge"),
        features=True,
        sends={
            "model": fm.Sent(),
            "knowledge": fm.Sent(
                per_client=True, labels=True, spread=2.0, dp="noise", statistic="class means of logits"
            ),
        },
        labels="multi",
    )

    class Options(fm.Options):
        tau: float = fm.option(0.08, "Temperature of LCL.", gt=0)
        scale: Literal["dataset", "batch", "none"] = fm.option(
            "dataset", "The normaliser U: over the client's data set (taken once an epoch), over the batch, or none."
        )
        detach_scale: bool = fm.option(True, "Whether U is a constant for the gradient.")
        denominator: Literal["once", "positive_twice"] = fm.option(
            "once", "Whether the positive counts once in the denominator, or (released code) twice."
        )
        missing_positive: Literal["mask", "self"] = fm.option(
            "mask", "A sample of a class without knowledge is left out, or is its own positive (released code)."
        )
        lambda_lcl: float = fm.option(1.0, "Weight of LCL.", ge=0)
        lcl_ramp: int = fm.option(0, "Rounds over which LCL's weight grows to its full value; 0 is at once.", ge=0)
        naive_exp: bool = fm.option(False, "Plain exponentials, which overflow (the paper's NaN at tau = 0.01).")
        silu: bool = fm.option(True, "Whether knowledge is c * sigmoid(c) of the mean logits c, or c itself.")
        knowledge_from: Literal["after_training", "last_epoch"] = fm.option(
            "after_training",
            "Where knowledge comes from: a pass after training, or the last epoch's own forward passes.",
        )
        neighbours: int = fm.option(1, "M, rows of knowledge that are merged with each row.", ge=0)
        sticky_knowledge: bool = fm.option(False, "Whether a class without holders in a round keeps its last row.")
        gda: Literal["paper", "share", "fedavg", "uniform"] = fm.option(
            "paper",
            "Aggregation weights: as printed, on shares of samples instead of counts, by samples, or all equal.",
        )
        gpr: Literal["paper", "affine", "off"] = fm.option(
            "paper",
            "Step of the server between the last model and the new average: as printed (coefficients sum to beta), "
            "affine (they sum to 1), or off.",
        )
        beta: float = fm.option(0.95, "Weight of the new average in GPR.", gt=0, le=1)
        gpr_classes: Literal["intersection", "own"] = fm.option(
            "intersection", "Classes in the variance ratio rho: those of both rounds, or each round's own."
        )
        gpr_clip: tuple[float, float] | None = fm.option(None, "Lower and upper bound of rho. Null is no bound.")

        @field_validator("gpr_clip")
        @classmethod
        def _in_order(cls, bounds: tuple[float, float] | None) -> tuple[float, float] | None:
            if bounds is not None and not bounds[0] <= bounds[1]:
                raise ValueError("the lower bound comes first")
            return bounds

    def __init__(self, options: fm.Options | None = None) -> None:
        super().__init__(options)
        self.mean_alone = self.options.neighbours == 0 and self.options.gda in ("fedavg", "uniform")
        if self.mean_alone:
            sent = replace(self.spec.sends["knowledge"], per_client=False)
            self.spec = replace(self.spec, sends={**self.spec.sends, "knowledge": sent})

    def examine(self, tasks: fm.Tasks, participants: int) -> list[fm.Diagnostic]:
        clamped = neighbours_clamped("fedskc", self.options.neighbours, participants)
        return super().examine(tasks, participants) + clamped

    def aggregate(self, server: fm.Record, uploads: fm.Uploads, ctx: fm.ServerContext) -> fm.Record:
        options, last = self.options, fm.get_table(server, "knowledge") if "knowledge" in server else None
        knowledge, weights = self._knowledge_and_weights(uploads)
        model = self.mean(uploads, weights=weights)
        if last is not None and options.sticky_knowledge:
            knowledge = knowledge.fill_missing(last.to(torch.float64))
        next_server: fm.Record = {"model": model, "knowledge": knowledge.to(torch.float32)}
        rho = None if last is None or options.gpr == "off" else variance_ratio(knowledge, last, options.gpr_classes)
        if rho is None:  # round 1, or no class to compare
            return next_server
        if options.gpr_clip is not None:
            rho = min(max(rho, options.gpr_clip[0]), options.gpr_clip[1])
        back = (1 - options.beta) * rho
        total_weight = options.beta if options.gpr == "paper" else 1.0
        model = fm.combine([model, fm.get_tree(server, "model")], [total_weight - back, back])  # Eq. 5
        for name in ctx.task.names(frozenset({fm.Role.BN_STAT})):  # extrapolation may make a variance negative
            model[name] = model[name].clamp(min=0) if name.endswith("running_var") else model[name]
        return next_server | {"model": model, "rho": rho}

    def _knowledge_and_weights(self, uploads: fm.Uploads) -> tuple[fm.ClassTable, fm.Weights]:
        """Return c~ and the weights of clients. Without neighbours and distances, the server needs means alone."""
        gda = self.options.gda
        if self.mean_alone:
            return self.mean(uploads, "knowledge", "uniform"), "samples" if gda == "fedavg" else "uniform"
        local = fm.tables_of(uploads, "knowledge").to(torch.float64)
        knowledge = global_knowledge(local, self.options.neighbours)
        diverged = not bool(local.values.isfinite().all())  # no distances
        if gda == "fedavg" or (diverged and gda != "uniform"):
            return knowledge, "samples"
        return knowledge, aggregation_weights(local, knowledge, _samples(uploads), gda).tolist()

    def begin(self, payload: fm.Record, state: fm.Record, ctx: fm.ClientContext) -> fm.Start:
        start = super().begin(payload, state, ctx)
        if "knowledge" not in payload:
            return start
        knowledge, options = fm.get_table(payload, "knowledge"), self.options
        prototypes = contrast.prototypes_of_table(knowledge, all_rows=_as_released(options))  # one a class
        weight = contrast.ramped(options.lambda_lcl, ctx.round, options.lcl_ramp, knowledge.values)
        return fm.Start(start.tree, {"prototypes": prototypes, "known": knowledge.held, "weight": weight})

    def phases(self, start: fm.Start, ctx: fm.ClientContext) -> list[fm.Phase]:
        epochs, options = ctx.task.local_epochs, self.options
        over_all = options.scale == "dataset" and "prototypes" in start.consts
        refresh = {"scale": fm.SampleMean(_distances)} if over_all else {}
        return tables.training_with_class_means(self.loss, epochs, options.knowledge_from, logits, "knowledge", refresh)

    def loss(self, net: fm.Net, batch: fm.Batch, consts: fm.Consts) -> fm.Objective:
        logits = net(batch.x)
        ce = batch.mean(fm.cross_entropy(logits, batch.y))
        taps = {"logits": logits}
        if "known" not in consts:  # round 1: nothing has been shared yet
            return fm.Objective.sum({"ce": ce}, taps)
        return fm.Objective.sum({"ce": ce, "lcl": consts["weight"] * lcl(logits, batch, consts, self.options)}, taps)

    def end(self, work: fm.Work, state: fm.Record, ctx: fm.ClientContext) -> tuple[fm.Record, fm.Record]:
        payload, state = super().end(work, state, ctx)
        means = fm.get_table(work.collected, "knowledge")
        knowledge = fm.ClassTable(silu(means.values), means.held) if self.options.silu else means
        return payload | {"knowledge": knowledge}, state

    def diagnostics(self, server: fm.Record, uploads: fm.Uploads, ctx: fm.ServerContext) -> list[fm.Diagnostic]:
        options, clients = self.options, len(uploads)
        local = fm.tables_of(uploads, "knowledge").to(torch.float64)
        diagnostics = one_holder_per_class("fedskc", local.held, "no row has a neighbour, c~ = the local knowledge")
        if options.gda in ("paper", "share") and clients > 1:
            knowledge = fm.get_table(server, "knowledge").to(torch.float64)
            weights = aggregation_weights(local, knowledge, _samples(uploads), options.gda)
            spread = float((weights * clients - 1).abs().max())
            if spread < 1e-6:
                message = f"GDA weights are uniform (max |e_k m - 1| = {spread:.1e}): gda={options.gda} does nothing"
                diagnostics.append(fm.Diagnostic("fedskc.uniform_gda", message, spread))
        if "rho" in server:
            rho, beta = fm.get_number(server, "rho"), options.beta
            if options.gpr == "paper" and beta < 1:
                message = f"GPR's coefficients sum to beta = {beta:g}: weights shrink by {1 - beta:.0%} a round"
                diagnostics.append(fm.Diagnostic("fedskc.gpr_shrinks", message, beta))
            if abs(rho) * (1 - beta) > 1 + 1e-9:
                size, most = abs(rho), 1 / (1 - beta)
                message = f"GPR oversteps the last model: |rho| = {size:.3g} > 1 / (1 - beta) = {most:.3g}"
                diagnostics.append(fm.Diagnostic("fedskc.gpr_oversteps", message, rho))
        return diagnostics


def released_lcl(logits: Tensor, batch: fm.Batch, consts: fm.Consts, options: FedSKC.Options) -> Tensor:
    """Contrast of logits as released (commit b513979), or with plain exponentials: scalar, mean over the samples of a
    `batch`. There the positive stands in the denominator twice, so no loss falls below log 2, and a sample of a class
    without knowledge is its own positive. Its proximal term compares the weights with themselves and is left out."""
    scores, has_knowledge = contrast.scaled_similarities(logits, batch, consts, options), consts["known"]
    has = has_knowledge[batch.y]
    own_score = scores.gather(1, batch.y.unsqueeze(1)).squeeze(1)
    # a sample without knowledge is its own positive, and its cosine with itself is 1
    positive = torch.where(has, own_score, 1 / options.tau)
    added = torch.ones_like(has) if options.denominator == "positive_twice" else ~has
    if options.naive_exp:
        pool = torch.where(has_knowledge, scores.exp(), 0.0).sum(1)
        losses = -(positive.exp() / torch.where(added, pool + positive.exp(), pool)).log()
    else:
        pool = contrast.log_sum_exp(scores, has_knowledge)
        losses = torch.where(added, torch.logaddexp(pool, positive), pool) - positive
    return batch.mean(losses, among=None if options.missing_positive == "self" else has)


def lcl(logits: Tensor, batch: fm.Batch, consts: fm.Consts, options: FedSKC.Options) -> Tensor:
    """LCL of logits [B, C], Eq. 2-3: mean over the samples of a `batch` whose class, a recorded positive, is known."""
    logits, batch = batch.by_label(logits)
    if _as_released(options):
        return released_lcl(logits, batch, consts, options)
    losses, defined = contrast.prototype_contrast(logits, batch, consts, options)
    return batch.mean(losses, among=defined)


def _as_released(options: FedSKC.Options) -> bool:
    return bool(options.naive_exp) or (options.denominator, options.missing_positive) != ("once", "mask")


def global_knowledge(local: fm.ClassTable, neighbours: int) -> fm.ClassTable:
    """c~ [C, C] from local knowledge [m, C, C], Eq. 1: rows merged with their M nearest, then the holders' mean."""
    nearest = tables.nearest_holders(tables.client_distances(local), local.held, neighbours)
    return tables.merge_neighbours(local, nearest).mean_over_clients()


def aggregation_weights(local: fm.ClassTable, knowledge: fm.ClassTable, samples: Tensor, mode: str) -> Tensor:
    """e_k [m], Eq. 4, from `local` knowledge [m, C, C], c~ and sample counts N [m]. "paper": u_k = N_k - a_k d_k + b_k,
    d_k the distance to c~, a and b the shares of d and N; N_k saturates the sigmoid, so e_k = 1/m. "share": u_k = b_k -
    a_k."""
    if mode == "uniform":
        return tables.shares(torch.zeros(len(samples)))
    distances = torch.where(local.held, (local.values - knowledge.values).norm(dim=2), 0.0).sum(1)
    size, distance = tables.shares(samples), tables.shares(distances)
    return tables.sigmoid_weights(samples - distance * distances + size if mode == "paper" else size - distance)


def variance_ratio(current: fm.ClassTable, last: fm.ClassTable, classes: str) -> float | None:
    """rho = (S_r - S_{r-1}) / S_{r-1}, Eq. 5, from c~ of this round and the `last`; None where undefined. S sums the
    variance of the rows of c~ over the `classes` of both rounds ("intersection") or of each round ("own")."""
    in_both_rounds = current.held & last.held
    counted = [in_both_rounds if classes == "intersection" else table.held for table in (current, last)]
    rows = [table.values.double().var(1, correction=0) for table in (current, last)]
    variances, before = (torch.where(mask, row, 0.0) for mask, row in zip(counted, rows, strict=True))
    total = float(before.sum())
    return (float(variances.sum()) - total) / total if total > 0 and bool(in_both_rounds.any()) else None


def _samples(uploads: fm.Uploads) -> Tensor:
    return torch.tensor(fm.numbers_of(uploads, "samples"), dtype=torch.float64)


def _distances(net: fm.Net, batch: fm.Batch, consts: fm.Consts) -> Tensor:
    return contrast.distances_to(net(batch.x), consts["prototypes"])
