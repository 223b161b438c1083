"""FedDW, and its regulariser DW as a wrapper of other methods: `fedprox+dw`."""

from dataclasses import replace
from typing import Annotated, Any, Literal, TypeGuard

import torch
from pydantic import Field, PositiveInt
from torch import Tensor

import fedloom.methods as fm
from fedloom.methods.fedavg import FedAvg
from fedloom.methods.parts import consistency
from fedloom.methods.parts.measures import probabilities

_FIRST_ROUNDS = 5  # classes not seen by then are reported
_OWN = ("soft_labels", "classes_seen", "soft_label_sums", "soft_label_counts")  # entries of DW in states and payloads


class DW(fm.Method):
    """DW over a base method whose head is one shared linear layer w [C, d], trained by the base's loss. Down, as well
    as the base's entries: SL matrix [C, C], rows sum to 1. Up: class means of softmax outputs, class counts."""

    class Options(fm.Options):
        mu: float = fm.option(0.1, "Weight of the regulariser.", ge=0)
        mu_decay: tuple[PositiveInt, Annotated[float, Field(ge=1)]] | None = fm.option(
            None, "(every, by): mu is divided by `by` at the start of rounds every, 2 every, and so on. Null keeps mu."
        )
        sl_init: Literal["eye", "uniform", "skip_round1"] = fm.option(
            "eye", "SL matrix of round 1: identity, 1/C everywhere, or no regulariser in that round."
        )
        sl_ema: float = fm.option(1.0, "Share of the new SL matrix in the next.", gt=0, le=1)
        sl_cumulative: bool = fm.option(False, "Sum all uploads since round 1.")
        absent_row: Literal["keep", "eye", "uniform", "mask"] = fm.option(
            "keep", "Row of a class without holders: the previous row, e_i, 1/C, or left out of the regulariser."
        )
        linearised: Literal["off", "softmax_lin", "gram"] = fm.option(
            "off", "A convex form of the regulariser around the received weights; gram is as printed, without softmax."
        )
        relin_every: int = fm.option(
            0, "Local steps after which the convex form is taken around the present weights; 0 is never.", ge=0
        )
        relu_on_cr: bool = fm.option(False, "ReLU before the softmax (released code of the personal variant).")
        head_bias: bool = fm.option(False, "Keep the head's bias.")

    def __init__(self, options: fm.Options | None = None) -> None:
        super().__init__(options)
        self.names = fm.names_of(self, "dw")
        self.dw = self.names.options(DW.Options, self.options)
        entries = {
            "soft_labels": fm.Sent(labels=True, statistic="class means of outputs"),
            "class_counts": fm.Sent(per_client=True, labels=True, dp="ones"),
        }
        sends = {**self.spec.sends, **{self.names.entry(name): sent for name, sent in entries.items()}}
        requires = (*self.spec.requires, "linear_head")
        facts: dict[str, Any] = {"sends": sends, "requires": requires, "labels": "single"}
        self.spec = replace(
            self.spec, head_bias=self.dw.head_bias, single_because="it averages softmax outputs", **facts
        )
        if self.dw.relu_on_cr and self.dw.linearised != "off":
            raise fm.ConfigError(f"{self.name()}.relu_on_cr = True: it has no linearised form; set linearised to off")
        if fm.Role.HEAD in self.spec.private:
            raise fm.ConfigError(f"{self.name()} needs a head that all clients share, here it is private")

    def server_init(self, ctx: fm.ServerContext) -> fm.Record:
        task, classes = ctx.task, ctx.task.num_classes
        base = super().server_init(ctx)
        facts = fm.ClientContext(task, 1, 0, 1, torch.zeros(classes, dtype=torch.int64))
        sent = super().down(base, 0, replace(ctx, round=1, client=0, drawn=(0,)))
        # a rehearsal: only the base's phases tell whether its loss trains the head
        start = super().begin(sent, super().client_init(facts), facts)
        if not any(self._trains_head(phase) for phase in super().phases(start, facts)):
            raise fm.ConfigError(f"{self.name()} needs a head that is trained by the method's loss, here it is not")
        entry, uniform = self.names.entry, self.dw.sl_init == "uniform"
        labels = (consistency.uniform_labels if uniform else consistency.identity_labels)(classes)
        state = base | {entry("soft_labels"): labels, entry("classes_seen"): torch.zeros(classes, dtype=torch.bool)}
        if self.dw.sl_cumulative:
            state[entry("soft_label_sums")] = torch.zeros(classes, classes, dtype=torch.float64)
            state[entry("soft_label_counts")] = torch.zeros(classes, dtype=torch.float64)
        return state

    def down(self, server: fm.Record, client: int, ctx: fm.ServerContext) -> fm.Record:
        payload, entry = super().down(self._inner(server), client, ctx), self.names.entry("soft_labels")
        skipped = ctx.round == 1 and self.dw.sl_init == "skip_round1"
        return payload if skipped else payload | {entry: server[entry]}

    def aggregate(self, server: fm.Record, uploads: fm.Uploads, ctx: fm.ServerContext) -> fm.Record:
        entry = self.names.entry
        client_counts = torch.stack([fm.get_tensor(upload, entry("class_counts")) for upload in uploads.values()])
        fresh: fm.ClassTable = self.mean(uploads, entry("soft_labels"), client_counts)  # Eq. 7
        counts = torch.where(fresh.held, client_counts.double().sum(0), 0.0)  # +dp knows holders, not counts
        classes_seen = fm.get_tensor(server, entry("classes_seen")) | (counts > 0)
        next_server = super().aggregate(self._inner(server), uploads, ctx)
        if self.dw.sl_cumulative:
            sums = fresh.values * counts.unsqueeze(1) + fm.get_tensor(server, entry("soft_label_sums"))
            counts = counts + fm.get_tensor(server, entry("soft_label_counts"))
            next_server |= {entry("soft_label_sums"): sums, entry("soft_label_counts"): counts}
            fresh = fm.ClassTable.from_sums(sums, counts)
        last_labels = fm.get_table(server, entry("soft_labels"))
        soft_labels = consistency.next_soft_labels(fresh, last_labels, self.dw.absent_row, self.dw.sl_ema)
        return next_server | {entry("soft_labels"): soft_labels.to(torch.float32), entry("classes_seen"): classes_seen}

    def begin(self, payload: fm.Record, state: fm.Record, ctx: fm.ClientContext) -> fm.Start:
        start, entry = super().begin(self._inner(payload), state, ctx), self.names.entry
        if entry("soft_labels") not in payload:
            return start
        table = fm.get_table(payload, entry("soft_labels"))
        interval, divisor = self.dw.mu_decay or (ctx.round + 1, 1.0)
        constants = {
            "soft_labels": table.values,
            "soft_label_rows": None if table.held.all() else table.held,
            "mu": decayed(self.dw.mu, divisor, ctx.round // interval),
        }
        if self.dw.linearised != "off":
            constants["reference"] = start.tree["head.weight"].clone()
            constants["steps"] = torch.zeros((), dtype=torch.int64)
        return fm.Start(start.tree, start.consts | {entry(name): value for name, value in constants.items()})

    def phases(self, start: fm.Start, ctx: fm.ClientContext) -> list[fm.Phase]:
        phases = super().phases(start, ctx)
        if self.dw.relin_every:
            phases = [self._relinearising(phase) for phase in phases]
        return [*phases, fm.Collect({self.names.entry("soft_labels"): fm.ClassMeans(probabilities)})]

    def loss(self, net: fm.Net, batch: fm.Batch, consts: fm.Consts) -> fm.Objective:
        base = super().loss(net, batch, consts)
        if not isinstance(base, fm.Objective):
            base = fm.Objective.sum({"ce": base})
        entry = self.names.entry
        if entry("soft_labels") not in consts:  # round 1, if it is skipped
            return base
        regulariser = consts[entry("mu")] * self.regulariser(net.head.weight, consts)
        return fm.Objective(base.total + regulariser, {**base.terms, "dw": regulariser}, base.taps)  # Eq. 12

    def regulariser(self, weight: Tensor, consts: fm.Consts) -> Tensor:
        """L_reg, Eq. 11, of the head's weight [C, d]. It depends on nothing else."""
        entry = self.names.entry
        if self.dw.linearised == "softmax_lin":
            relations = consistency.softmax_linearised(weight, consts[entry("reference")])
        elif self.dw.linearised == "gram":
            relations = consistency.gram_linearised(weight, consts[entry("reference")])
        else:
            relations = consistency.class_relations(weight, relu=self.dw.relu_on_cr)
        return consistency.inconsistency(relations, consts[entry("soft_labels")], consts[entry("soft_label_rows")])

    def end(self, work: fm.Work, state: fm.Record, ctx: fm.ClientContext) -> tuple[fm.Record, fm.Record]:
        payload, state = super().end(work, state, ctx)
        table, counts = self.names.entry("soft_labels"), self.names.entry("class_counts")
        return payload | {table: work.collected[table], counts: ctx.class_counts}, state

    def _relinearising(self, phase: fm.Phase) -> fm.Phase:
        """Return the phase with a new reference every `relin_every` steps, if it trains the head: in place."""
        if not self._trains_head(phase):
            return phase
        before, reference, steps = phase.project, self.names.entry("reference"), self.names.entry("steps")

        def project(parameters: fm.Tree, consts: fm.Consts) -> fm.Tree:
            parameters = before(parameters, consts) if before else parameters
            if reference in consts:
                due = consts[steps].add_(1) % self.dw.relin_every == 0
                consts[reference].copy_(torch.where(due, parameters["head.weight"], consts[reference]))
            return parameters

        return replace(phase, project=project)

    def _trains_head(self, phase: fm.Phase) -> TypeGuard[fm.Train]:
        return isinstance(phase, fm.Train) and fm.Role.HEAD in phase.trains and phase.loss == self.loss

    def _inner(self, record: fm.Record) -> fm.Record:
        return self.names.without(record, *_OWN)

    def diagnostics(self, server: fm.Record, uploads: fm.Uploads, ctx: fm.ServerContext) -> list[fm.Diagnostic]:
        diagnostics = super().diagnostics(self._inner(server), uploads, ctx)
        unseen = (~fm.get_tensor(server, self.names.entry("classes_seen"))).nonzero().flatten().tolist()
        if unseen and self.dw.absent_row != "mask" and ctx.round >= min(_FIRST_ROUNDS, ctx.task.rounds):
            classes = ", ".join(map(str, unseen))
            message = f"no participant ever held class {classes}: rows of the SL matrix without data"
            diagnostics.append(fm.Diagnostic("dw.unseen_rows", message, float(len(unseen))))
        return diagnostics


def decayed(value: float, divisor: float, times: int) -> float:
    """Return value / divisor^times; 0 where the power overflows."""
    try:
        return value / divisor**times
    except OverflowError:
        return 0.0


@fm.register
class FedDW(DW, FedAvg):
    """FedDW: class relations of the head agree with soft labels. Liu et al., 2024, arXiv 2412.04521.

    DW over FedAvg, with a classification layer w [C, d] without bias. Client: CE + mu |SL - softmax(w w^T)|^2 / C^2
    (Eq. 9-13), gradient through both factors of w w^T; then the class means of its softmax outputs (Eq. 4-6). Server:
    weights as FedAvg (Eq. 8); SL row i = mean of the outputs of class i over all samples of the round (Eq. 7). Preset
    `sound` has mu = 30 and leaves out rows without data: see the method's page."""

    spec = fm.Spec(head_bias=False)


@fm.WRAPPERS.register("dw")
def with_dw(base: type[fm.Method]) -> type[fm.Method]:
    """`base` with DW; DW's options have `dw_` in front. Raises `ConfigError` if it has DW already."""
    return fm.wrapped(DW, base, "dw", DW.Options, FedDW.presets)
