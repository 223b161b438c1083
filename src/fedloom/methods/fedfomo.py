from typing import Literal

import torch
from torch import Tensor

import fedloom.methods as fm
from fedloom.methods.parts.parameters import trained
from fedloom.methods.parts.several_models import losses_of_models

Norm = Literal["l2", "l1", "squared", "by_tensor"]


@fm.register
class FedFomo(fm.Method):
    """FedFomo: a client mixes the models of others by how much each lowers its own validation loss. Zhang et al., ICLR
    2021, arXiv 2012.08565, Algorithm 1.

    Local: w_j = (L(b) - L(theta_j)) / |theta_j - b| on the validation part, for received models and its own, b the
    weights with which its last training began; theta = b + sum_j max(w_j, 0) (theta_j - b) / sum_j max(w_j, 0); then CE
    on the other part. Server: adds the weights to the affinities A [N, N] and sends the M models with the highest, each
    with probability epsilon - decay t a random one instead."""

    spec = fm.Spec(
        private=fm.ALL_ROLES,
        sends={"weights": fm.Sent(per_client=True), "raw": fm.Sent(per_client=True, spread=20.0)},
        labels="multi",
    )

    class Options(fm.Options):
        models: int = fm.option(5, "M, how many other clients' models a client receives at most.", ge=1)
        explore: float = fm.option(
            0.3, "epsilon, the probability in round 1 that a model is drawn and not the best known.", ge=0, le=1
        )
        explore_decay: float = fm.option(0.05, "By how much the probability falls in each round.", ge=0)
        validation: float = fm.option(
            0.2, "Share of a client's training samples that weigh models and never train.", gt=0, lt=1
        )
        drawn_validation: bool = fm.option(
            True, "Whether these samples are drawn; if not, they are a client's last in stored order."
        )
        norm: Norm = fm.option(
            "l2",
            "Length by which a fall of the loss is divided: of the whole change (l2), the sum of absolute values (l1),"
            " the squared length (squared), or the sum of the tensors' lengths (by_tensor).",
        )
        base: Literal["first", "own"] = fm.option(
            "first",
            "Weights from which a client moves to others' models: those with which its last training began, or its own"
            " latest, as in FL-bench.",
        )

    def server_init(self, ctx: fm.ServerContext) -> fm.Record:
        return {"affinity": torch.eye(ctx.task.clients)}

    def down(self, server: fm.Record, client: int, ctx: fm.ServerContext) -> fm.Record:
        return {f"client.{j}": server[f"client.{j}"] for j in self._chosen(server, client, ctx)}

    def _chosen(self, server: fm.Record, client: int, ctx: fm.ServerContext) -> list[int]:
        options, affinity = self.options, fm.get_tensor(server, "affinity")
        others = [j for j in senders(server) if j != client]
        rng = ctx.task.streams.numpy("fedfomo models", ctx.round, client)
        # drawn for all others in every round, so that options do not shift later random numbers
        drawn, ties = [int(j) for j in rng.permutation(others)], {j: rng.random() for j in others}
        best = sorted(others, key=lambda j: (-float(affinity[client, j]) if client < len(affinity) else 0.0, ties[j]))
        chance, chosen = options.explore - options.explore_decay * (ctx.round - 1), list[int]()
        for _ in range(min(options.models, len(others))):
            order = drawn if rng.random() < chance else best
            chosen.append(next(j for j in order if j not in chosen))
        return sorted(chosen)

    def aggregate(self, server: fm.Record, uploads: fm.Uploads, ctx: fm.ServerContext) -> fm.Record:
        affinity = fm.get_tensor(server, "affinity").clone()
        for client, upload in uploads.items():
            affinity[client] += fm.get_tensor(upload, "raw")
        return server | {f"client.{k}": upload["weights"] for k, upload in uploads.items()} | {"affinity": affinity}

    def begin(self, payload: fm.Record, state: fm.Record, ctx: fm.ClientContext) -> fm.Start:
        own, others = fm.get_tree(state, "model"), senders(payload)
        base = fm.get_tree(state, "base") if "base" in state and self.options.base == "first" else own
        models = [base, own, *(fm.get_tree(payload, f"client.{j}") for j in others)]
        moved = [trained(tree, ctx.task) for tree in models]
        lengths = torch.tensor([length_of(tree, moved[0], self.options.norm) for tree in moved], dtype=torch.float64)
        return fm.Start(base, {"models": models, "lengths": lengths, "owners": torch.tensor([ctx.client, *others])})

    def phases(self, start: fm.Start, ctx: fm.ClientContext) -> list[fm.Phase]:
        part = self._validation()
        judged = fm.Collect({"losses": fm.SampleMean(losses_of_models)}, part=part)
        return [judged, fm.Choose(mixed), fm.Train(self.loss, ctx.task.local_epochs, part=part.others)]

    def _validation(self) -> fm.Part:
        share, drawn = self.options.validation, self.options.drawn_validation
        return fm.Part("validation", share) if drawn else fm.Part("validation", 1 - share, False).others

    def end(self, work: fm.Work, state: fm.Record, ctx: fm.ClientContext) -> tuple[fm.Record, fm.Record]:
        consts = work.start.consts
        clients = max(ctx.task.clients, ctx.client + 1)  # a client that never trained comes after the others
        raw = torch.zeros(clients, dtype=torch.float64)
        # the first model is the base, which belongs to no other client
        raw[consts["owners"]] = raw_weights(work.collected["losses"], consts["lengths"])[1:]
        started = mixed(work.start.tree, {**consts, **work.collected})
        payload: fm.Record = {"weights": work.tree, "raw": raw.float(), "samples": ctx.samples}
        return payload, {"model": work.tree, "base": started}

    def diagnostics(self, server: fm.Record, uploads: fm.Uploads, ctx: fm.ServerContext) -> list[fm.Diagnostic]:
        raw = fm.tensors_of(uploads, "raw")
        raw[range(len(uploads)), list(uploads)] = 0.0
        if not raw.any() or (raw > 0).any():
            return []
        message = f"in round {ctx.round} no model of another client lowers any participant's validation loss"
        return [fm.Diagnostic("fedfomo.alone", message, float(raw.max()))]


def senders(record: fm.Record) -> list[int]:
    """Return the clients whose models a record has, by id."""
    return sorted(int(name.removeprefix("client.")) for name in record if name.startswith("client."))


def length_of(tree: fm.Tree, base: fm.Tree, norm: Norm) -> float:
    """Return the length of the change from `base` to `tree`, in float64 and the option's `norm`."""
    changes = [value.double() - base[name].double() for name, value in tree.items()]
    if norm == "l1":
        return float(sum(change.abs().sum() for change in changes))
    if norm == "by_tensor":
        return float(sum(change.norm() for change in changes))
    square = float(sum(change.square().sum() for change in changes))
    return square if norm == "squared" else square**0.5


def raw_weights(losses: Tensor, lengths: Tensor) -> Tensor:
    """Return how much each model lowers the loss of the first, over its distance from it [models]; 0 if not finite."""
    falls = (losses[0].double() - losses.double()) / torch.where(lengths > 0, lengths, 1.0)
    return torch.where((lengths > 0) & falls.isfinite() & lengths.isfinite(), falls, 0.0)


def mixed(weights: fm.Tree, consts: fm.Consts) -> fm.Tree:
    """Return `weights`, moved to the mean of `consts["models"]` by their positive raw weights."""
    # a model that raises the loss has no weight, however near it is
    positive = raw_weights(consts["losses"], consts["lengths"]).clamp(min=0)
    shares = positive / torch.where(positive.any(), positive.sum(), 1.0)
    pairs, moved = list(zip(shares, consts["models"], strict=True)), fm.Tree()
    for name, value in weights.items():
        # a model that diverged has share 0, and 0 times infinity would be NaN
        moves = [torch.where(share > 0, share * (tree[name] - value), 0.0) for share, tree in pairs]
        moved[name] = (value + torch.stack(moves).sum(0)).to(value) if value.is_floating_point() else value
    return moved
