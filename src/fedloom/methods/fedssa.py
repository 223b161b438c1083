"""FedSSA."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from pydantic import BaseModel, Field
from torch import Tensor

from fedloom.core.errors import ConfigError
from fedloom.core.records import Record, get_table, get_tensor, get_tree
from fedloom.core.tables import ClassTable
from fedloom.core.trees import Tree
from fedloom.methods.contract import method
from fedloom.methods.contract.citation import Citation
from fedloom.methods.contract.contexts import ClientContext, Diagnostic, ServerContext, Start, Task, Work
from fedloom.methods.contract.heads import require_linear_head
from fedloom.methods.contract.method import Method, Uploads, register
from fedloom.methods.contract.phases import Phase, Train
from fedloom.methods.contract.spec import Sent, Spec
from fedloom.methods.parts.parameters import client_row, clipped, one_holder_per_class
from fedloom.nets.net import ALL_ROLES

GROWN = 100.0  # a header row this many times longer than its first value is reported


class Options(method.Options):
    """Options of FedSSA."""

    mu0: float = Field(
        0.5,
        ge=0,
        le=1,
        description="Weight of the local row in the fusion at the first round (t = 0): mu0 cos(pi t / (2 t_stable)).",
    )
    t_stable: int = Field(2, ge=0, description="Number of rounds after which this weight is 0.")
    fusion: Literal["literal", "convex"] = Field(
        "literal", description="The global row plus mu times the local one, as printed, or that sum divided by 1 + mu."
    )
    skip_first_fusion: bool = Field(False, description="Whether the first round trains from the client's own header.")
    share_bias: bool = Field(
        True, description="Whether a class's row is its weights and its bias, or the weights alone."
    )
    average: Literal["seen", "all"] = Field(
        "seen", description="Rows that the server averages: those of classes that a client holds, or all (LG-FedAvg)."
    )
    take_over: Literal["seen", "all"] = Field(
        "seen", description="Rows that the client fuses: those of its classes, or all."
    )
    pool: Literal["sampled", "all_known"] = Field(
        "sampled",
        description="Clients in the average: the round's participants, or the last rows of all clients met so far "
        "(released code).",
    )
    weights: Literal["uniform", "count"] = Field(
        "uniform", description="Weights of the holders of a class: all alike, or by their samples of it."
    )
    clip: float | None = Field(None, gt=0, description="Largest gradient norm. Null is no bound.")


@register
class FedSSA(Method):
    """FedSSA: nets of any kind share header rows of the classes they hold. Yi et al., IJCAI 2024, arXiv 2312.09006.

    The header is the last linear layer; its row of class s (weights and bias, d + 1 numbers) says what clients with
    different nets have in common. S_k are the classes in client k's training data.

    | direction | item | shape |
    |---|---|---|
    | down | header rows of S_k (at first contact, all rows) | [|S_k|, d + 1] + mask |
    | up | trained header rows of S_k | [|S_k|, d + 1] + mask |

    Client: row s in S_k becomes global + mu^t local (Eq. 4), mu^t falling to 0 (Eq. 5); then CE over all classes. It
    keeps its whole net, rows of unseen classes included. Server: a row is the plain mean over the participants that
    hold the class (Eq. 3); without any it stays.
    """

    spec = Spec(private=ALL_ROLES, architectures="any", sends={"header": Sent(labels=True)})
    Options = Options
    presets = {  # noqa: RUF012
        "paper": {},
        "authors": {"pool": "all_known", "clip": 50.0, "mu0": 0.5, "t_stable": 2},
        "sound": {},
    }
    settings = {  # noqa: RUF012
        "authors": {
            "optimizer": {"lr": 0.005, "momentum": 0.9, "weight_decay": 5e-5},
            "local_epochs": 25,
            "batch_size": 512,
        }
    }
    citation = Citation(
        "Yi et al.",
        "IJCAI",
        2024,
        "arXiv 2312.09006",
        {"CH": 1, "mask": 1},
        {"CH": 1, "mask": 1},
        {"P": 1},
        code="LipingYi/FedSSA at 0c53d04",
        our_choice="Values of mu0 and t_stable; biases are part of the header; the first header is the first "
        "architecture's.",
        departures="The header is the last layer only. The classes that a client holds are a mask, never inferred "
        "from zero rows.",
        released_code="Preset `authors` is the code for different nets: it pools the stored rows of clients that were "
        "not sampled and clips gradients (its aliasing bugs are left out). The code for one net has "
        "T_stable 45 and 10 epochs.",
    )

    def __init__(self, options: BaseModel | None = None) -> None:
        super().__init__(options)
        if self.options.pool == "all_known" and self.options.weights == "count":
            raise ConfigError("fedssa.weights = 'count': rows of earlier rounds have no counts; set pool to sampled")
        if self.options.weights == "count":
            sends = {**self.spec.sends, "class_counts": Sent(per_client=True, labels=True)}
            self.spec = replace(self.spec, sends=sends)
        elif self.options.pool == "all_known":
            self.spec = replace(self.spec, sends={"header": Sent(per_client=True, labels=True)})

    def examine(self, tasks: Sequence[Task], participants: int) -> list[Diagnostic]:
        for task in tasks:
            require_linear_head(task, self.name())
        shapes = [_rows(task.init, self.options.share_bias).shape for task in tasks]
        for group, shape in enumerate(shapes):
            if shape != shapes[0]:
                raise ConfigError(
                    f"fedssa averages header rows of one width: the clients of group {group} have headers of "
                    f"{shape[0]} x {shape[1]}, those of group 0 of {shapes[0][0]} x {shapes[0][1]}; choose models with "
                    "the same feature width"
                )
        return super().examine(tasks, participants)

    # -- server ----------------------------------------------------------------------------------------------
    def server_init(self, ctx: ServerContext) -> Record:
        task = ctx.task
        rows = _rows(task.init, self.options.share_bias)
        return {
            "header": ClassTable(rows, torch.ones(task.num_classes, dtype=torch.bool)),
            "holds": torch.zeros(task.clients, task.num_classes, dtype=torch.bool),
        }

    def down(self, server: Record, client: int, ctx: ServerContext) -> Record:
        holds = client_row(server, "holds", client)
        header = get_table(server, "header")
        return {"header": header if self.options.take_over == "all" or not holds.any() else header.keep_classes(holds)}

    def aggregate(self, server: Record, uploads: Uploads, ctx: ServerContext) -> Record:
        holds = get_tensor(server, "holds").clone()
        stored_rows: Record = {name: value for name, value in server.items() if name not in ("header", "holds")}
        if self.options.pool == "all_known":
            stored_rows |= {f"rows.{client}": upload["header"] for client, upload in uploads.items()}
            fresh: Any = self.reduce("header", stored_rows.values(), [1.0] * len(stored_rows))
        elif self.options.weights == "count":
            counts = torch.stack([get_tensor(upload, "class_counts") for upload in uploads.values()])
            fresh = self.mean(uploads, "header", counts)
        else:
            fresh = self.mean(uploads, "header", "uniform")  # Eq. 3
        for client, upload in uploads.items():
            holds[client] = get_table(upload, "header").held
        header = fresh.to(torch.float32).fill_missing(get_table(server, "header"))
        next_server: Record = {"header": header, "holds": holds}
        return next_server | stored_rows

    # -- client ----------------------------------------------------------------------------------------------
    def begin(self, payload: Record, state: Record, ctx: ClientContext) -> Start:
        options, tree = self.options, get_tree(state, "model")
        if options.skip_first_fusion and ctx.round == 1:
            return Start(tree, {})
        header = get_table(payload, "header")
        fused_classes = header.held if options.take_over == "all" else header.held & (ctx.class_counts > 0)
        mu = fusion_weight(ctx.round - 1, options.mu0, options.t_stable)
        rows = fused_rows(_rows(tree, options.share_bias), header.values, fused_classes, mu, options.fusion)
        return Start(_with_rows(tree, rows), {})

    def phases(self, start: Start, ctx: ClientContext) -> list[Phase]:
        clip = None if self.options.clip is None else clipped(self.options.clip)
        return [Train(self.loss, ctx.task.local_epochs, grad_map=clip)]

    def end(self, work: Work, state: Record, ctx: ClientContext) -> tuple[Record, Record]:
        all_classes = torch.ones_like(ctx.class_counts, dtype=torch.bool)
        rows = ClassTable(_rows(work.tree, self.options.share_bias), all_classes)
        payload: Record = {
            "header": rows.keep_classes(all_classes if self.options.average == "all" else ctx.class_counts > 0)
        }
        if self.options.weights == "count":
            payload["class_counts"] = ctx.class_counts
        return payload, {"model": work.tree}

    # -- self-examination ------------------------------------------------------------------------------------
    def diagnostics(self, server: Record, uploads: Uploads, ctx: ServerContext) -> list[Diagnostic]:
        tables = ClassTable.stack([get_table(upload, "header") for upload in uploads.values()])
        nothing = "the global row is the client's own, nothing is shared"
        diagnostics = one_holder_per_class("fedssa", tables.held, nothing) if self.options.pool == "sampled" else []
        first_norms = _rows(ctx.task.init, self.options.share_bias).norm(dim=1).clamp(min=1e-12)
        growth = float(torch.where(tables.held, tables.values.norm(dim=2) / first_norms, 0.0).max())
        if growth > GROWN:
            message = f"a header row is {growth:.0f} times as long as at first: the unnormalised fusion adds up"
            diagnostics.append(Diagnostic("fedssa.rows_grow", message, growth))
        return diagnostics


def fusion_weight(t: int, mu0: float, t_stable: int) -> float:
    """mu^t = mu0 cos(pi t / (2 T_stable)) until T_stable, then 0 (Eq. 5); t counts from 0."""
    return mu0 * math.cos(math.pi * t / (2 * t_stable)) if t < t_stable else 0.0


def fused_rows(local: Tensor, received: Tensor, fused_classes: Tensor, mu: float, fusion: str = "literal") -> Tensor:
    """Header rows [C, d] before training, Eq. 4: received + mu local where `taken` [C], the local row elsewhere.

    fusion "convex" divides by 1 + mu, so that rows keep their length.
    """
    rows = received + mu * local
    return torch.where(fused_classes.unsqueeze(1), rows / (1 + mu) if fusion == "convex" else rows, local)


def _rows(tree: Tree, with_bias: bool) -> Tensor:
    """The header as one row per class: weights [C, d], and the bias as one more column."""
    bias = tree.get("head.bias") if with_bias else None
    return tree["head.weight"] if bias is None else torch.cat([tree["head.weight"], bias.unsqueeze(1)], dim=1)


def _with_rows(tree: Tree, rows: Tensor) -> Tree:
    """`tree` with these header rows."""
    width = tree["head.weight"].shape[1]
    new = tree | {"head.weight": rows[:, :width].contiguous()}
    return new if rows.shape[1] == width else new | {"head.bias": rows[:, width].contiguous()}
