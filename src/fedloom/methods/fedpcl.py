"""FedPCL."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from pydantic import Field
from torch import Tensor

from fedloom.core.records import Record, get_table, get_tensor
from fedloom.core.tables import ClassTable
from fedloom.methods.contract import method
from fedloom.methods.contract.citation import Citation
from fedloom.methods.contract.contexts import ClientContext, Diagnostic, ServerContext, Start, Task, Work
from fedloom.methods.contract.heads import require_same_width, require_trained_body
from fedloom.methods.contract.losses import ABSENT, cross_entropy
from fedloom.methods.contract.method import Method, Uploads, register
from fedloom.methods.contract.phases import TRAINABLE, Batch, Collect, Consts, Objective, Phase, Predictor, Train
from fedloom.methods.contract.sample_statistics import ClassMeans
from fedloom.methods.contract.spec import Sent, Spec
from fedloom.methods.parts.contrast import unit
from fedloom.methods.parts.prototypes import UNKNOWN
from fedloom.nets.net import ALL_ROLES, Net, Role


class Options(method.Options):
    """Options of FedPCL."""

    tau: float = Field(0.07, gt=0, description="Temperature of both contrasts. The default is our choice.")


@register
class FedPCL(Method):
    """FedPCL: unit features without a head, in contrast with the class means of all clients. Tan et al., NeurIPS 2022,
    arXiv 2209.10083.

    Down: from round 2 on global class means G, and each client's last class means P_k [K, C, d], with masks.
    Up: class means of r = z / |z|, z the head's input, and mask.
    Local, from round 2 on: CE(r G^T / tau, y) + mean over the K clients that have sent of CE(r P_k^T / tau, y). A row
    that P_k lacks is G's, the softmax is over the classes of G, and samples of other classes add 0. In round 1 clients
    send class means alone. Server: G is the mean over the round's holders, all alike; other classes keep their row.

    Nets are private and may differ, if their features have one width. Tested: the class with the largest product of r
    with the client's own class mean.
    """

    spec = Spec(
        private=ALL_ROLES,
        architectures="any",
        features=True,
        sends={"prototypes": Sent(per_client=True, labels=True)},
    )
    Options = Options
    settings = {  # noqa: RUF012
        "authors": {"optimizer": {"name": "adam", "lr": 0.001}, "local_epochs": 1, "batch_size": 32}
    }
    citation = Citation(
        "Tan et al.",
        "NeurIPS",
        2022,
        "arXiv 2209.10083",
        {"Cd": 1, "mask": 1, "KCd": 1},
        {"Cd": 1, "mask": 1},
        {"P": 1, "Cd": 1, "mask": 1},
        code="yuetan031/FedPCL at 9a2e238",
        our_choice="The temperature: the paper was not read. A client that joins late trains in its first round, if "
        "others have sent class means.",
        departures="The authors train a projection on frozen, pre-trained backbones; here the whole body trains.",
    )

    def examine(self, tasks: Sequence[Task], participants: int) -> list[Diagnostic]:
        require_same_width(tasks, self.name())
        for task in tasks:
            require_trained_body(task, self.name())
        return super().examine(tasks, participants)

    # -- server ----------------------------------------------------------------------------------------------
    def server_init(self, ctx: ServerContext) -> Record:
        return {}

    def down(self, server: Record, client: int, ctx: ServerContext) -> Record:
        return {name: server[name] for name in ("prototypes", "tables") if name in server}

    def aggregate(self, server: Record, uploads: Uploads, ctx: ServerContext) -> Record:
        fresh: ClassTable = self.mean(uploads, "prototypes", "uniform").to(torch.float32)
        tables = {client: get_table(upload, "prototypes") for client, upload in uploads.items()}
        known = torch.zeros_like(fresh.held)
        if "tables" in server:
            last, known = get_table(server, "tables"), get_table(server, "prototypes").held
            fresh = fresh.fill_missing(get_table(server, "prototypes"))
            senders = get_tensor(server, "senders").tolist()
            tables = {
                client: ClassTable(last.values[place], last.held[place]) for place, client in enumerate(senders)
            } | tables
        ids = sorted(tables)
        stacked = ClassTable.stack([tables[client] for client in ids])
        return {"prototypes": fresh, "tables": stacked, "senders": torch.tensor(ids), "known": known}

    # -- client ----------------------------------------------------------------------------------------------
    def begin(self, payload: Record, state: Record, ctx: ClientContext) -> Start:
        tree = super().begin(payload, state, ctx).tree
        if "tables" not in payload:  # round 1
            return Start(tree, {})
        overall, tables = get_table(payload, "prototypes"), get_table(payload, "tables")
        rows = torch.where(tables.held.unsqueeze(2), tables.values, overall.values)
        consts = {"rows": torch.cat([overall.values.unsqueeze(0), rows]), "known": overall.held}
        return Start(tree, consts)

    def phases(self, start: Start, ctx: ClientContext) -> list[Phase]:
        collect = Collect({"prototypes": ClassMeans(unit_features)})
        if "rows" not in start.consts:
            return [collect]
        return [Train(self.loss, ctx.task.local_epochs, TRAINABLE - {Role.HEAD}), collect]

    def loss(self, net: Net, batch: Batch, consts: Consts) -> Objective:
        directions, rows = unit(net.features(batch.x)), consts["rows"]  # [B, d], [K + 1, C, d]
        products = directions @ rows.flatten(0, 1).to(directions.dtype).T / self.options.tau
        absent = torch.where(consts["known"], 0.0, ABSENT).to(products.dtype)
        logits = products.view(-1, *rows.shape[:2]) + absent  # [B, K + 1, C]
        losses = cross_entropy(logits.transpose(1, 2), batch.y.unsqueeze(1).expand(-1, len(rows)))
        counted = torch.where(consts["known"][batch.y].unsqueeze(1), losses, 0.0)
        terms = {"ce_global": batch.mean(counted[:, 0]), "ce_clients": batch.mean(counted[:, 1:].mean(1))}
        return Objective.sum(terms)

    def end(self, work: Work, state: Record, ctx: ClientContext) -> tuple[Record, Record]:
        means = work.collected["prototypes"]
        return {"prototypes": means}, {"model": work.tree, "prototypes": means}

    # -- tests -----------------------------------------------------------------------------------------------
    def predictors(self, server: Record, state: Record | None, ctx: ServerContext) -> dict[str, Predictor]:
        offered = super().predictors(server, state, ctx)
        source = state if state is not None and "prototypes" in state else server
        table = get_table(source, "prototypes") if "prototypes" in source else None
        if table is None:  # nobody has sent anything yet
            return offered
        scores = functools.partial(products_with, table=table)
        return {kind: Predictor(predictor.tree, scores) for kind, predictor in offered.items()}

    def diagnostics(self, server: Record, uploads: Uploads, ctx: ServerContext) -> list[Diagnostic]:
        known = get_tensor(server, "known")
        unknown = torch.stack([get_table(upload, "prototypes").held & ~known for upload in uploads.values()])
        if not bool(known.any()) or not bool(unknown.any()):
            return []
        message = "participants hold classes of which nobody had sent a mean: their samples added nothing in this round"
        return [Diagnostic("fedpcl.unknown_classes", message, float(unknown.any(0).sum()))]


def unit_features(net: Net, batch: Batch, consts: Consts) -> Tensor:
    """Return r = z / |z| [B, d], z the head's input: a measure for statistics.

    Args:
        net: the net in evaluation mode.
        batch: its inputs are read.
        consts: not used.
    """
    return unit(net.features(batch.x))


def products_with(net: Net, x: Tensor, table: ClassTable) -> Tensor:
    """Scores [B, C]: products of the unit features of x with the class means of `table` [C, d]."""
    directions = unit(net.features(x))
    scores: Tensor = directions @ table.values.to(directions).T
    return torch.where(table.held.to(scores.device), scores, UNKNOWN)
