from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

import fedloom.methods as fm
from fedloom.core.trees import nbytes
from fedloom.methods.contract.means import RECORDED
from fedloom.methods.fedbn import bn_roles
from fedloom.methods.parts.several_models import head_in, with_recorded

ONLINE, OFFLINE = "online", "offline"
_STACK_BYTES = 4 << 20  # of heads that are stacked
_FIRST = "first_"  # of a head in the bank before anybody has sent one


@fm.register
class FedCO2(fm.Method):
    """Fed-CO2: an online and an offline net teach each other. Cai et al., NeurIPS 2023, arXiv 2312.13923.

    Clients share the online net without its batch norm. Feature skew (Algorithm 1): one pass in which each net learns
    the other's earlier outputs (Eq. 4-5), then CE plus the losses of all other clients' offline heads H_j on its maps
    (Eq. 6-7). Label skew (Algorithm 2): CE alone. The server averages the online nets (Eq. 2) and keeps a bank of
    heads. Prediction: the sum of both nets' logits (Eq. 3). The method's page says why preset `sound` is `paper`."""

    nets: dict[str, str | None] = {ONLINE: None, OFFLINE: None}
    spec = fm.Spec(nets=nets, private_nets=frozenset({OFFLINE}), features=True, labels="multi")

    class Options(fm.Options):
        algorithm: Literal["feature_skew", "label_skew"] = fm.option(
            "feature_skew",
            "Algorithm 1, for feature skew, with a mutual phase and foreign heads, or Algorithm 2, for label skew "
            "alone, with neither.",
        )
        mu: float = fm.option(1.0, "Weight of the foreign heads' losses.", ge=0)
        inter_reduce: Literal["sum", "mean"] = fm.option(
            "sum",
            "Sum of the foreign heads' losses, as printed, or their mean, which does not grow with the number of "
            "clients.",
        )
        intra_to_online: bool = fm.option(
            True, "Whether the online net learns from the offline net in the mutual phase."
        )
        intra_to_offline: bool = fm.option(
            True, "Whether the offline net learns from the online net in the mutual phase."
        )
        inter_online: bool = fm.option(True, "Whether the online net's features pass through foreign heads.")
        inter_offline: bool = fm.option(True, "Whether the offline net's features pass through foreign heads.")
        replace_intra: bool = fm.option(
            False,
            "A net whose mutual phase is off trains on cross-entropy meanwhile, so that both nets make as many steps.",
        )
        mutual_epochs: int = fm.option(1, "Passes of the mutual phase.", ge=0)
        personal: Literal["bn", "head", "bn+head"] = fm.option(
            "bn", "Entries of the online net that stay with the client."
        )
        bn_stats: Literal["personal", "shared"] = fm.option(
            "personal", "Whether running statistics stay with the client or are averaged."
        )
        weights: Literal["uniform", "samples"] = fm.option(
            "uniform", "Weights of clients in the mean: equal, or by samples."
        )
        offline_init: Literal["same", "independent"] = fm.option(
            "same", "First weights of the offline net: those of the online net, or drawn by each client."
        )
        bank: Literal["cache", "last_round"] = fm.option(
            "cache", "Foreign heads that the server keeps: the latest of every client, or those of the last round."
        )
        initial_heads: bool = fm.option(
            True, "Until the first uploads the bank holds every client's first head (if offline_init is same)."
        )

    def __init__(self, options: fm.Options | None = None) -> None:
        super().__init__(options)
        if "bn" in self.options.personal:
            self.spec = replace(self.spec, private=bn_roles(self.options.bn_stats))
        if self.exchanges_heads:
            self.spec = replace(self.spec, sends={**self.spec.sends, "head": fm.Sent(per_client=True)})

    def private_names(self, task: fm.Task) -> set[str]:
        names = super().private_names(task)
        return names | set(_classifier(task, ONLINE)) if "head" in self.options.personal else names

    def server_init(self, ctx: fm.ServerContext) -> fm.Record:
        state = super().server_init(ctx)
        if self.exchanges_heads and self.options.initial_heads and self.options.offline_init == "same":
            head = self._head(ctx.task.init, ctx.task)
            state |= {_FIRST + head_of(client): head for client in range(ctx.task.clients)}
        return state

    def down(self, server: fm.Record, client: int, ctx: fm.ServerContext) -> fm.Record:
        sent = {name.removeprefix(_FIRST): value for name, value in server.items()}
        sent.pop(head_of(client), None)
        return sent

    def aggregate(self, server: fm.Record, uploads: fm.Uploads, ctx: fm.ServerContext) -> fm.Record:
        next_server: fm.Record = {"model": self.mean(uploads, weights=self.options.weights)}
        if not self.exchanges_heads:
            return next_server
        bank = server if self.options.bank == "cache" else {}
        heads = {name: value for name, value in bank.items() if name.startswith(head_of())}
        return next_server | heads | {head_of(client): head_in(upload, "head") for client, upload in uploads.items()}

    def client_init(self, ctx: fm.ClientContext) -> fm.Record:
        state = super().client_init(ctx)
        if self.options.offline_init == "independent":
            fresh = ctx.task.fresh(ctx.client)
            model = fm.get_tree(state, "model")
            state["model"] = {n: fresh[n] if n.startswith(f"{OFFLINE}.") else value for n, value in model.items()}
        return state

    def begin(self, payload: fm.Record, state: fm.Record, ctx: fm.ClientContext) -> fm.Start:
        start = super().begin(payload, state, ctx)
        heads = with_recorded([fm.get_tree(payload, name) for name in payload if name != "model"])
        consts: fm.Consts = {"heads": head_stacks(heads)}
        if "participated" in state:
            consts["teachers"] = {name: _child(start.tree, name) for name in (ONLINE, OFFLINE)}
        return fm.Start(start.tree, consts)

    def phases(self, start: fm.Start, ctx: fm.ClientContext) -> list[fm.Phase]:
        options, local = self.options, fm.Train(self.loss, ctx.task.local_epochs)
        to = {ONLINE: options.intra_to_online, OFFLINE: options.intra_to_offline}
        nets = tuple(name for name in to if to[name] or options.replace_intra)
        if options.algorithm == "label_skew" or "teachers" not in start.consts or not nets:
            return [local]
        return [fm.Train(self.mutual, options.mutual_epochs, nets=nets), local]

    def mutual(self, net: fm.Net, batch: fm.Batch, consts: fm.Consts) -> fm.Objective:
        """Intra-client transfer, Eq. 4-5: KL(teacher || student) on a `batch`; the teacher is the other net as it was
        at the start of the round, `consts["teachers"]`."""
        bundle, terms = cast(fm.Bundle, net), {}
        to = {ONLINE: self.options.intra_to_online, OFFLINE: self.options.intra_to_offline}
        for student, teacher in ((ONLINE, OFFLINE), (OFFLINE, ONLINE)):
            if to[student]:
                with torch.no_grad():
                    taught = bundle.functional.logits(consts["teachers"][teacher], batch.x)
                terms[f"intra_{student}"] = batch.mean(fm.kl_divergence(taught, bundle[student](batch.x), batch.y))
            elif self.options.replace_intra:
                terms[f"ce_{student}"] = batch.mean(fm.cross_entropy(bundle[student](batch.x), batch.y))
        return fm.Objective.sum(terms)

    def loss(self, net: fm.Net, batch: fm.Batch, consts: fm.Consts) -> fm.Objective:
        """Local adaptation with inter-client transfer, Eq. 6-7; the nets share nothing, so one sum serves both."""
        bundle, terms = cast(fm.Bundle, net), {}
        to = {ONLINE: self.options.inter_online, OFFLINE: self.options.inter_offline}
        for name in (ONLINE, OFFLINE):
            maps = bundle[name].maps(batch.x)
            terms[f"ce_{name}"] = batch.mean(fm.cross_entropy(bundle[name].classify(maps), batch.y))
            if to[name] and consts["heads"]:
                foreign = foreign_losses(bundle, maps, batch, consts["heads"])
                share = (
                    1 / sum(len(next(iter(stack.values()))) for stack in consts["heads"])
                    if self.options.inter_reduce == "mean"
                    else 1.0
                )
                terms[f"inter_{name}"] = self.options.mu * share * foreign
        return fm.Objective.sum(terms)

    def end(self, work: fm.Work, state: fm.Record, ctx: fm.ClientContext) -> tuple[fm.Record, fm.Record]:
        payload, state = super().end(work, state, ctx)
        if self.exchanges_heads:
            payload["head"] = self._head(work.tree, ctx.task)
        return payload, state | {"participated": True}

    def predictors(self, server: fm.Record, state: fm.Record | None, ctx: fm.ServerContext) -> dict[str, fm.Predictor]:
        if state is None:
            return {}
        tree = self._joined(server, state, ctx.task)
        return {
            "personal": fm.Predictor(tree, fused),
            ONLINE: fm.Predictor(tree, lambda net, x: cast(fm.Bundle, net)[ONLINE](x)),
            OFFLINE: fm.Predictor(tree, lambda net, x: cast(fm.Bundle, net)[OFFLINE](x)),
        }

    @property
    def exchanges_heads(self) -> bool:
        options = self.options
        enabled: bool = options.inter_online or options.inter_offline
        return enabled and options.algorithm == "feature_skew"

    @staticmethod
    def _head(tree: fm.Tree, task: fm.Task) -> fm.Tree:
        return _child({name: tree[name] for name in _classifier(task, OFFLINE)}, OFFLINE)


def fused(net: fm.Net, x: Tensor) -> Tensor:
    """Sum of both nets' logits [B, C], Eq. 3: not of their softmax outputs."""
    bundle = cast(fm.Bundle, net)
    return cast(Tensor, bundle[ONLINE](x) + bundle[OFFLINE](x))


def head_stacks(heads: Sequence[fm.Tree]) -> list[fm.Tree]:
    """Stack heads into trees of entries [Q, ...] of up to 4 MiB: a copy of larger ones costs more than a call."""
    size = max(1, _STACK_BYTES // max(1, nbytes(heads[0]))) if heads else 1
    groups = [heads[first : first + size] for first in range(0, len(heads), size)]
    return [{n: torch.stack([h[n] for h in g]) if len(g) > 1 else g[0][n].unsqueeze(0) for n in g[0]} for g in groups]


def foreign_losses(bundle: fm.Bundle, maps: Tensor, batch: fm.Batch, stacks: Sequence[fm.Tree]) -> Tensor:
    """Return the sum of the foreign heads' cross-entropies on the `maps` [B, f] of a `batch`, Eq. 6."""
    losses = []
    for stack in stacks:
        logits = foreign_logits(bundle, maps, stack)
        labels = batch.y.unsqueeze(1).expand(-1, logits.shape[1], *batch.y.shape[1:])
        if RECORDED in stack:  # a head says nothing of labels that its client does not record
            labels = torch.where(stack[RECORDED] > 0, labels, labels.clamp(max=-1))
        by_sample = fm.cross_entropy(logits.flatten(0, 1), labels.flatten(0, 1)).view(labels.shape[:2])
        losses.append(batch.mean(by_sample).sum())
    return torch.stack(losses).sum()


def foreign_logits(bundle: fm.Bundle, maps: Tensor, stack: fm.Tree) -> Tensor:
    """Return the logits [B, Q, C] of a `stack` of Q heads on `maps` [B, f], in evaluation mode."""
    if bundle.first_net.classifier_block == ("head",) and isinstance(bundle.first_net.head, nn.Linear):
        weight, bias = stack["head.weight"], stack.get("head.bias")
        # Q heads of C classes are one linear layer of Q C outputs
        rows = linear(maps, weight.flatten(0, 1), None if bias is None else bias.flatten())
        return rows.view(len(maps), *weight.shape[:2])
    return torch.vmap(bundle.functional.classify, in_dims=(0, None), out_dims=1)(stack, maps)


def head_of(client: int | str = "") -> str:
    """Return the name of a client's head in the bank; without a client, the prefix of these names."""
    return f"head.{client}"


def _classifier(task: fm.Task, net: str) -> list[str]:
    parts = tuple(f"{net}.{block}." for block in task.classifier)
    return [name for name in task.init if name.startswith(parts)]


def _child(tree: fm.Tree, net: str) -> fm.Tree:
    return {name.removeprefix(f"{net}."): value for name, value in tree.items() if name.startswith(f"{net}.")}
