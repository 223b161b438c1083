import math
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

import fedloom.methods as fm
from fedloom.methods.parts.parameters import client_row, clipped, one_holder_per_class

GROWN = 100.0  # a header row this many times longer than its first value is reported


@fm.register
class FedSSA(fm.Method):
    """FedSSA: nets of any kind share header rows of the classes they hold. Yi et al., IJCAI 2024, arXiv 2312.09006.

    The header is the last linear layer, its row of a class d + 1 numbers. A client gets the rows of its classes (at
    first contact all), adds mu^t times its own, mu^t falling to 0 (Eq. 4-5), trains with CE over all classes, and sends
    those rows. The server takes the plain mean over the holders of a class (Eq. 3); a row without holders stays."""

    spec = fm.Spec(
        requires=("linear_head",),
        private=fm.ALL_ROLES,
        architectures="any",
        sends={"header": fm.Sent(labels=True, statistic="head rows of held classes")},
        labels="multi",
        late=True,
    )

    class Options(fm.Options):
        mu0: float = fm.option(
            0.5,
            "Weight of the local row in the fusion at the first round (t = 0): mu0 cos(pi t / (2 t_stable)).",
            ge=0,
            le=1,
        )
        t_stable: int = fm.option(2, "Number of rounds after which this weight is 0.", ge=0)
        fusion: Literal["literal", "convex"] = fm.option(
            "literal", "The global row plus mu times the local one, as printed, or that sum divided by 1 + mu."
        )
        skip_first_fusion: bool = fm.option(False, "Whether the first round trains from the client's own header.")
        share_bias: bool = fm.option(True, "Whether a class's row is its weights and its bias, or the weights alone.")
        average: Literal["seen", "all"] = fm.option(
            "seen", "Rows that the server averages: those of classes that a client holds, or all (LG-FedAvg)."
        )
        take_over: Literal["seen", "all"] = fm.option(
            "seen", "Rows that the client fuses: those of its classes, or all."
        )
        pool: Literal["sampled", "all_known"] = fm.option(
            "sampled",
            "Clients in the average: the round's participants, or the last rows of all clients met so far (released "
            "code).",
        )
        weights: Literal["uniform", "count"] = fm.option(
            "uniform", "Weights of the holders of a class: equal, or by their samples of it."
        )
        clip: float | None = fm.option(None, "Largest gradient norm. Null is no bound.", gt=0)

    def __init__(self, options: fm.Options | None = None) -> None:
        super().__init__(options)
        if self.options.pool == "all_known" and self.options.weights == "count":
            raise fm.ConfigError("fedssa.weights = 'count': rows of earlier rounds have no counts; set pool to sampled")
        if self.options.weights == "count":
            sends = {**self.spec.sends, "class_counts": fm.Sent(per_client=True, labels=True)}
            self.spec = replace(self.spec, sends=sends)
        elif self.options.pool == "all_known":
            self.spec = replace(self.spec, sends={"header": replace(self.spec.sends["header"], per_client=True)})

    def examine(self, tasks: fm.Tasks, participants: int) -> list[fm.Diagnostic]:
        diagnostics = super().examine(tasks, participants)
        shapes = [_rows(task.init, self.options.share_bias).shape for task in tasks]
        for group, shape in enumerate(shapes):
            if shape != shapes[0]:
                raise fm.ConfigError(
                    f"fedssa averages header rows of one width: the clients of group {group} have headers of "
                    f"{shape[0]} x {shape[1]}, those of group 0 of {shapes[0][0]} x {shapes[0][1]}; choose models with "
                    "the same feature width"
                )
        return diagnostics

    def server_init(self, ctx: fm.ServerContext) -> fm.Record:
        clients, classes = ctx.task.clients, ctx.task.num_classes
        rows = _rows(ctx.task.init, self.options.share_bias)
        header = fm.ClassTable(rows, torch.ones(classes, dtype=torch.bool))
        return {"header": header, "holds": torch.zeros(clients, classes, dtype=torch.bool)}

    def down(self, server: fm.Record, client: int, ctx: fm.ServerContext) -> fm.Record:
        holds = client_row(server, "holds", client)
        header = fm.get_table(server, "header")
        return {"header": header if self.options.take_over == "all" or not holds.any() else header.keep_classes(holds)}

    def aggregate(self, server: fm.Record, uploads: fm.Uploads, ctx: fm.ServerContext) -> fm.Record:
        holds = fm.get_tensor(server, "holds").clone()
        stored_rows: fm.Record = {name: value for name, value in server.items() if name not in ("header", "holds")}
        if self.options.pool == "all_known":
            stored_rows |= {f"rows.{client}": upload["header"] for client, upload in uploads.items()}
            fresh: Any = self.reduce("header", stored_rows.values(), [1.0] * len(stored_rows))
        else:  # Eq. 3
            counted = self.options.weights == "count"
            fresh = self.mean(uploads, "header", fm.tensors_of(uploads, "class_counts") if counted else "uniform")
        for client, upload in uploads.items():
            holds[client] = fm.get_table(upload, "header").held
        header = fresh.to(torch.float32).fill_missing(fm.get_table(server, "header"))
        next_server: fm.Record = {"header": header, "holds": holds}
        return next_server | stored_rows

    def begin(self, payload: fm.Record, state: fm.Record, ctx: fm.ClientContext) -> fm.Start:
        options, tree = self.options, fm.get_tree(state, "model")
        if options.skip_first_fusion and ctx.round == 1:
            return fm.Start(tree, {})
        header = fm.get_table(payload, "header")
        fused_classes = header.held if options.take_over == "all" else header.held & (ctx.class_counts > 0)
        mu = fusion_weight(ctx.round - 1, options.mu0, options.t_stable)
        rows = fused_rows(_rows(tree, options.share_bias), header.values, fused_classes, mu, options.fusion)
        width = tree["head.weight"].shape[1]
        biases = {} if rows.shape[1] == width else {"head.bias": rows[:, width].contiguous()}
        return fm.Start(tree | {"head.weight": rows[:, :width].contiguous()} | biases, {})

    def phases(self, start: fm.Start, ctx: fm.ClientContext) -> list[fm.Phase]:
        clip = None if self.options.clip is None else clipped(self.options.clip)
        return [fm.Train(self.loss, ctx.task.local_epochs, grad_map=clip)]

    def end(self, work: fm.Work, state: fm.Record, ctx: fm.ClientContext) -> tuple[fm.Record, fm.Record]:
        all_classes = torch.ones_like(ctx.class_counts, dtype=torch.bool)
        rows = fm.ClassTable(_rows(work.tree, self.options.share_bias), all_classes)
        header = rows.keep_classes(all_classes if self.options.average == "all" else ctx.class_counts > 0)
        counts: fm.Record = {"class_counts": ctx.class_counts} if self.options.weights == "count" else {}
        return {"header": header, **counts}, {"model": work.tree}

    def diagnostics(self, server: fm.Record, uploads: fm.Uploads, ctx: fm.ServerContext) -> list[fm.Diagnostic]:
        tables = fm.tables_of(uploads, "header")
        nothing = "the global row is the client's own, nothing is shared"
        diagnostics = one_holder_per_class("fedssa", tables.held, nothing) if self.options.pool == "sampled" else []
        # lengths are compared with those of the first header: its scale depends on the net
        first_norms = _rows(ctx.task.init, self.options.share_bias).norm(dim=1).clamp(min=1e-12)
        growth = float(torch.where(tables.held, tables.values.norm(dim=2) / first_norms, 0.0).max())
        if growth > GROWN:
            message = f"a header row is {growth:.0f} times as long as at first: the unnormalised fusion adds up"
            diagnostics.append(fm.Diagnostic("fedssa.rows_grow", message, growth))
        return diagnostics


def fusion_weight(t: int, mu0: float, t_stable: int) -> float:
    """mu^t = mu0 cos(pi t / (2 T_stable)) until T_stable, then 0 (Eq. 5); t counts from 0."""
    return mu0 * math.cos(math.pi * t / (2 * t_stable)) if t < t_stable else 0.0


def fused_rows(local: Tensor, received: Tensor, fused_classes: Tensor, mu: float, fusion: str = "literal") -> Tensor:
    """Header rows [C, d] before training, Eq. 4: `received` + mu `local` for the fused classes, else the local row."""
    rows = received + mu * local
    return torch.where(fused_classes.unsqueeze(1), rows / (1 + mu) if fusion == "convex" else rows, local)


def _rows(tree: fm.Tree, with_bias: bool) -> Tensor:
    bias = tree.get("head.bias") if with_bias else None
    return tree["head.weight"] if bias is None else torch.cat([tree["head.weight"], bias.unsqueeze(1)], dim=1)
