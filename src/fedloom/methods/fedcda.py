import itertools
import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

import fedloom.methods as fm
from fedloom.methods.parts.parameters import parameters
from fedloom.methods.parts.several_models import as_uploads, head_in

COMBINATIONS = 4096  # tried for one batch of clients at most


@fm.register
class FedCDA(fm.Method):
    """FedCDA: of each client's last models the server averages those that are close to each other. Wang et al., ICLR
    2024, OpenReview nbPGqeH3lt.

    The server keeps the K last models of each client. Participants, in B random batches, choose one each, by the least
    mean(F) + (L / 2) (mean |w|^2 - |mean w|^2) over all choices so far, absent clients' included, F the training loss.
    w is the mean of all choices. The first rounds are FedAvg. No code was released: K, B, L and the warm-up are those
    of re-implementations."""

    spec = fm.Spec(
        sends={"model": fm.Sent(per_client=True), "loss": fm.Sent(per_client=True, statistic="mean loss")},
        labels="multi",
    )

    class Options(fm.Options):
        kept: int = fm.option(3, "K, models that the server keeps of each client.", ge=1)
        batches: int = fm.option(3, "B, groups of participants that choose one after another.", ge=1)
        warmup: int = fm.option(50, "Number of first rounds that are FedAvg.", ge=0)
        smoothness: float = fm.option(1.0, "L, weight of the distance between the models against their losses.", ge=0)

    def examine(self, tasks: fm.Tasks, participants: int) -> list[fm.Diagnostic]:
        diagnostics, rounds = super().examine(tasks, participants), tasks[0].rounds
        if self.options.warmup >= rounds:
            message = f"warmup = {self.options.warmup} covers all {rounds} rounds: this run is FedAvg"
            diagnostics = [*diagnostics, fm.Diagnostic("fedcda.only_warmup", message, float(self.options.warmup))]
        return diagnostics

    def server_init(self, ctx: fm.ServerContext) -> fm.Record:
        return super().server_init(ctx) | {"choice": torch.full((ctx.task.clients,), -1)}

    def end(self, work: fm.Work, state: fm.Record, ctx: fm.ClientContext) -> tuple[fm.Record, fm.Record]:
        payload, state = super().end(work, state, ctx)
        return payload | {"loss": sum(work.terms.values(), 0.0)}, state

    def aggregate(self, server: fm.Record, uploads: fm.Uploads, ctx: fm.ServerContext) -> fm.Record:
        stored: fm.Record = {name: value for name, value in server.items() if name not in ("model", "choice")}
        choice = fm.get_tensor(server, "choice").clone()
        for client, upload in uploads.items():
            stored |= self._pushed(stored, client, upload)
            choice[client] = 0
        if ctx.round <= self.options.warmup:
            return {"model": self.mean(uploads), "choice": choice} | stored
        centre = fm.get_tree(server, "model")
        chosen = [int(client) for client in (choice >= 0).nonzero() if int(client) not in uploads]
        for group in self._groups(list(uploads), ctx):
            fixed = [_flat(stored, client, int(choice[client]), centre, ctx.task) for client in chosen]
            options = [self._options(stored, client, centre, ctx.task) for client in group]
            for client, best in zip(group, closest(fixed, options, self.options.smoothness), strict=True):
                choice[client] = best
            chosen += group
        trees = [fm.get_tree(stored, f"kept.{client}.{int(choice[client])}") for client in sorted(chosen)]
        return {"model": self.mean(as_uploads(trees, "model"), weights="uniform"), "choice": choice} | stored

    def _pushed(self, stored: fm.Record, client: int, upload: fm.Record) -> fm.Record:
        entries: fm.Record = {f"kept.{client}.0": head_in(upload, "model"), f"loss.{client}.0": upload["loss"]}
        for slot in range(1, self.options.kept):
            for name in ("kept", "loss"):
                if f"{name}.{client}.{slot - 1}" in stored:
                    entries[f"{name}.{client}.{slot}"] = stored[f"{name}.{client}.{slot - 1}"]
        return entries

    def _options(self, stored: fm.Record, client: int, centre: fm.Tree, task: fm.Task) -> list[tuple[Tensor, float]]:
        slots = range(self.options.kept)
        return [_flat(stored, client, slot, centre, task) for slot in slots if f"kept.{client}.{slot}" in stored]

    def _groups(self, clients: list[int], ctx: fm.ServerContext) -> list[list[int]]:
        max_clients = max(1, int(math.log(COMBINATIONS, self.options.kept))) if self.options.kept > 1 else len(clients)
        count = min(len(clients), max(self.options.batches, math.ceil(len(clients) / max_clients)))
        # the order decides which models are fixed when a batch chooses, so every round draws it again
        order = ctx.task.streams.numpy("batches", ctx.round).permutation(clients).tolist()
        return [order[start::count] for start in range(count)]


def _flat(stored: fm.Record, client: int, slot: int, centre: fm.Tree, task: fm.Task) -> tuple[Tensor, float]:
    tree = parameters(fm.get_tree(stored, f"kept.{client}.{slot}"), task)
    # distances are differences of nearly equal numbers: from the centre on, float64 keeps their digits
    flat = torch.cat([(value.double() - centre[name].double()).flatten() for name, value in tree.items()])
    return flat, fm.get_number(stored, f"loss.{client}.{slot}")


def closest(
    fixed: Sequence[tuple[Tensor, float]], options: Sequence[Sequence[tuple[Tensor, float]]], smoothness: float
) -> list[int]:
    """Return each client's choice among its options (weights [p], loss) that minimises mean(loss) + (smoothness / 2)
    (mean |w|^2 - |mean w|^2) over the choices and `fixed`; of equals the first."""
    rows = torch.stack([weights for client in options for weights, _ in client])
    base = torch.stack([weights for weights, _ in fixed]).sum(0) if fixed else torch.zeros_like(rows[0])
    base_square, base_loss = sum(float(w.square().sum()) for w, _ in fixed), sum(loss for _, loss in fixed)
    gram, cross, base_norm = (rows @ rows.T).numpy(), (rows @ base).numpy(), float(base @ base)
    losses = [loss for client in options for _, loss in client]
    starts = [0, *itertools.accumulate(len(client) for client in options)]
    count = len(fixed) + len(options)

    def cost(picked: Iterable[int]) -> float:
        at = [start + pick for start, pick in zip(starts, picked, strict=False)]
        squares = (base_square + gram[at, at].sum()) / count
        square_of_mean = (base_norm + 2 * cross[at].sum() + gram[at][:, at].sum()) / count**2
        loss = (base_loss + sum(losses[row] for row in at)) / count
        return loss + smoothness / 2 * float(squares - square_of_mean)

    return list(min(itertools.product(*(range(len(client)) for client in options)), key=cost))
