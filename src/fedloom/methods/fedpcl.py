import functools

import torch
from torch import Tensor

import fedloom.methods as fm
from fedloom.methods.parts.contrast import unit
from fedloom.methods.parts.prototypes import UNKNOWN


@fm.register
class FedPCL(fm.Method):
    """FedPCL: unit features without a head, in contrast with the class means of all clients. Tan et al., NeurIPS 2022,
    arXiv 2209.10083.

    Local, from round 2 on: CE(r G^T / tau, y) + mean over the K clients that have sent of CE(r P_k^T / tau, y), r = z /
    |z|, G global class means, P_k client k's, with G's rows where it has none. Server: G is the uniform mean over the
    round's holders; other classes keep their row. Tested: the class with the largest product of r with the client's own
    class mean. Nets are private and may differ, if their features have one width."""

    spec = fm.Spec(
        receives=("prototypes", "tables"),
        requires=("same_width", "trained_body"),
        private=fm.ALL_ROLES,
        architectures="any",
        features=True,
        sends={"prototypes": fm.Sent(per_client=True, labels=True)},
        labels="multi",
    )

    class Options(fm.Options):
        tau: float = fm.option(0.07, "Temperature of both contrasts. The default is our choice.", gt=0)

    def server_init(self, ctx: fm.ServerContext) -> fm.Record:
        return {}

    def aggregate(self, server: fm.Record, uploads: fm.Uploads, ctx: fm.ServerContext) -> fm.Record:
        fresh: fm.ClassTable = self.mean(uploads, "prototypes", "uniform").to(torch.float32)
        tables = {client: fm.get_table(upload, "prototypes") for client, upload in uploads.items()}
        known = torch.zeros_like(fresh.held)
        if "tables" in server:
            last, known = fm.get_table(server, "tables"), fm.get_table(server, "prototypes").held
            fresh = fresh.fill_missing(fm.get_table(server, "prototypes"))
            rows = zip(fm.get_tensor(server, "senders").tolist(), last.values, last.held, strict=True)
            tables = {client: fm.ClassTable(values, held) for client, values, held in rows} | tables
        ids = sorted(tables)
        stacked = fm.ClassTable.stack([tables[client] for client in ids])
        return {"prototypes": fresh, "tables": stacked, "senders": torch.tensor(ids), "known": known}

    def begin(self, payload: fm.Record, state: fm.Record, ctx: fm.ClientContext) -> fm.Start:
        tree = super().begin(payload, state, ctx).tree
        if "tables" not in payload:  # round 1
            return fm.Start(tree, {})
        overall, tables = fm.get_table(payload, "prototypes"), fm.get_table(payload, "tables")
        # a client without a class lends the mean of all clients, so that tables have equal shapes
        rows = torch.where(tables.held.unsqueeze(2), tables.values, overall.values)
        consts = {"rows": torch.cat([overall.values.unsqueeze(0), rows]), "known": overall.held}
        return fm.Start(tree, consts)

    def phases(self, start: fm.Start, ctx: fm.ClientContext) -> list[fm.Phase]:
        collect = fm.Collect({"prototypes": fm.ClassMeans(unit_features, sides=True)})
        if "rows" not in start.consts:
            return [collect]
        return [fm.Train(self.loss, ctx.task.local_epochs, fm.TRAINABLE - {fm.Role.HEAD}), collect]

    def loss(self, net: fm.Net, batch: fm.Batch, consts: fm.Consts) -> fm.Objective:
        directions, rows, known = unit(net.features(batch.x)), consts["rows"], consts["known"]  # [B, d], [K + 1, C, d]
        products = directions @ rows.flatten(0, 1).to(directions.dtype).T / self.options.tau
        logits = products.view(-1, *rows.shape[:2])  # [B, K + 1, C]
        if batch.y.dim() == 2:  # of several labels, a choice between the two sides of each
            positive, negative = logits.chunk(2, 2)
            labels = torch.where(known.view(2, -1).all(0), batch.y, batch.y.clamp(max=-1))
            logits, labels = (positive - negative).transpose(1, 2), labels.unsqueeze(2).expand(-1, -1, len(rows))
            counted = fm.cross_entropy(logits, labels)
        else:
            logits = logits + torch.where(known, 0.0, fm.ABSENT).to(products.dtype)
            losses = fm.cross_entropy(logits.transpose(1, 2), batch.y.unsqueeze(1).expand(-1, len(rows)))
            counted = torch.where(known[batch.y].unsqueeze(1), losses, 0.0)
        terms = {"ce_global": batch.mean(counted[:, 0]), "ce_clients": batch.mean(counted[:, 1:].mean(1))}
        return fm.Objective.sum(terms)

    def end(self, work: fm.Work, state: fm.Record, ctx: fm.ClientContext) -> tuple[fm.Record, fm.Record]:
        means = work.collected["prototypes"]
        return {"prototypes": means}, {"model": work.tree, "prototypes": means}

    def predictors(self, server: fm.Record, state: fm.Record | None, ctx: fm.ServerContext) -> dict[str, fm.Predictor]:
        offered = super().predictors(server, state, ctx)
        source = state if state is not None and "prototypes" in state else server
        table = fm.get_table(source, "prototypes") if "prototypes" in source else None
        if table is None:  # no client has sent class means yet
            return offered
        scores = functools.partial(products_with, table=table, tau=self.options.tau)
        return {kind: fm.Predictor(predictor.tree, scores) for kind, predictor in offered.items()}

    def diagnostics(self, server: fm.Record, uploads: fm.Uploads, ctx: fm.ServerContext) -> list[fm.Diagnostic]:
        known = fm.get_tensor(server, "known")
        unknown = torch.stack([fm.get_table(upload, "prototypes").held & ~known for upload in uploads.values()])
        if not bool(known.any()) or not bool(unknown.any()):
            return []
        message = "participants hold classes of which nobody had sent a mean: their samples added nothing in this round"
        return [fm.Diagnostic("fedpcl.unknown_classes", message, float(unknown.any(0).sum()))]


def unit_features(net: fm.Net, batch: fm.Batch, consts: fm.Consts) -> Tensor:
    """Return r = z / |z| [B, d] of a `batch`, a measure for statistics of `net`."""
    return unit(net.features(batch.x))


def products_with(net: fm.Net, x: Tensor, table: fm.ClassTable, tau: float) -> Tensor:
    """Return scores [B, C]: products of the unit features of x with the class means of `table` [C, d]; of several
    labels [2 L, d] those of the positives less those of the negatives, over `tau`, as in training."""
    directions, classes = unit(net.features(x)), net.head.out_features
    scores: Tensor = directions @ table.values.to(directions).T
    scores = torch.where(table.held.to(scores.device), scores, UNKNOWN)
    return (scores[:, :classes] - scores[:, classes:]) / tau if len(table.held) > classes else scores
