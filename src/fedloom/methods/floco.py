from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

import fedloom.methods as fm
from fedloom.methods.parts.parameters import client_row

WEIGHT, ENDS = "head.weight", "extra.ends"
APART = 1e-3  # largest distance of two centres below which all clients count as being in one place


@fm.register
class Floco(fm.Method):
    """Floco: the head is a simplex of several ends, and each client trains in its own part of it. Grinwald, Wiesner,
    Nakajima, NeurIPS 2024.

    Local: CE with the head sum_i a_i end_i, a drawn for every batch: uniform on the simplex before round tau, then
    centre_k + U(0, rho) u, u of l1 norm 1. Server: as FedAvg; after round tau - 1, in which all clients train, the
    centres are principal components of their changes, projected to the simplex where they lie farthest apart. Tested:
    personal at the client's centre, global at the middle of the simplex."""

    spec = fm.Spec(
        requires=("trained_head",),
        features=True,
        sends={"model": fm.Sent(), "ends": fm.Sent(per_client=True, form="own")},
        unstackable="the head of each step is drawn at random",
        labels="multi",
    )

    class Options(fm.Options):
        ends: int = fm.option(10, "M, the ends of the simplex of heads; 1 is FedAvg.", ge=1)
        tau: int | None = fm.option(
            None, "First round of clients' own parts. Null is half of the run's rounds, 2 at least.", ge=2
        )
        rho: float = fm.option(0.1, "rho, the radius of a client's part, in the l1 norm.", ge=0)

    def examine(self, tasks: fm.Tasks, participants: int) -> list[fm.Diagnostic]:
        diagnostics, task, options = super().examine(tasks, participants), tasks[0], self.options
        tau = self.first_round(task)
        if options.ends > 1 and tau > task.rounds:
            message = f"tau = {tau} is after the last of {task.rounds} rounds: no client gets a part of its own"
            diagnostics.append(fm.Diagnostic("floco.no_parts", message, float(tau)))
        elif task.clients < options.ends:
            spans = "1 client spans" if task.clients == 1 else f"{task.clients} clients span"
            message = f"{spans} fewer directions than floco.ends = {options.ends}: the others are 0"
            diagnostics.append(fm.Diagnostic("floco.few_clients", message, float(task.clients)))
        return diagnostics

    def extra(self, net: fm.Net) -> nn.Module | None:
        if self.options.ends == 1:
            return None
        sizes = net.head.in_features, net.head.out_features
        drawn = [nn.Linear(*sizes, bias=False).weight for _ in range(self.options.ends - 1)]
        others = nn.Module()
        others.register_parameter("ends", nn.Parameter(torch.stack(drawn).detach().to(net.head.weight)))
        return others

    def first_round(self, task: fm.Task) -> int:
        """Return tau, the first round in which each client trains in its part; with one end there is none."""
        return task.rounds + 2 if self.options.ends == 1 else self.options.tau or max(2, task.rounds // 2)

    def server_init(self, ctx: fm.ServerContext) -> fm.Record:
        clients, ends = ctx.task.clients, self.options.ends
        centres, placed = torch.full((clients, ends), 1 / ends), torch.zeros(clients, dtype=torch.bool)
        return super().server_init(ctx) | {"centres": centres, "placed": placed}

    def select(self, server: fm.Record, count: int, ctx: fm.ServerContext) -> Sequence[int]:
        collects = ctx.round == self.first_round(ctx.task) - 1
        return range(ctx.task.clients) if collects else super().select(server, count, ctx)

    def down(self, server: fm.Record, client: int, ctx: fm.ServerContext) -> fm.Record:
        centre = self._centre(server, client)
        return super().down(server, client, ctx) | ({} if centre is None else {"centre": centre})

    def _centre(self, server: fm.Record, client: int) -> Tensor | None:
        known = client >= 0 and bool(client_row(server, "placed", client))
        return client_row(server, "centres", client) if known else None

    def begin(self, payload: fm.Record, state: fm.Record, ctx: fm.ClientContext) -> fm.Start:
        start = super().begin(payload, state, ctx)
        return fm.Start(start.tree, {"centre": payload["centre"]} if "centre" in payload else {})

    def loss(self, net: fm.Net, batch: fm.Batch, consts: fm.Consts) -> fm.Objective:
        z = net.features(batch.x)
        logits = logits_at(net, z, self.point(z, consts))
        return fm.Objective.sum({"ce": batch.mean(fm.cross_entropy(logits, batch.y))})

    def point(self, z: Tensor, consts: fm.Consts) -> Tensor:
        """Draw the point a [M] of a step: around the client's "centre" in `consts`, else anywhere on the simplex."""
        drawn = torch.rand(self.options.ends, dtype=z.dtype, device=z.device)
        if "centre" not in consts:
            lengths = -drawn.clamp(min=1e-20).log()
            return lengths / lengths.sum().clamp(min=1e-20)
        signed = 2 * drawn - 1  # uniform in a cube, divided by its l1 norm, as in the released code
        way = signed / signed.abs().sum().clamp(min=1e-20)
        near: Tensor = consts["centre"].to(z) + self.options.rho * torch.rand((), dtype=z.dtype, device=z.device) * way
        return near

    def end(self, work: fm.Work, state: fm.Record, ctx: fm.ClientContext) -> tuple[fm.Record, fm.Record]:
        payload, state = super().end(work, state, ctx)
        collects = ctx.round == self.first_round(ctx.task) - 1
        change = flat_ends(work.tree) - flat_ends(work.start.tree)
        return payload | {"ends": change if collects else change[:0]}, state

    def aggregate(self, server: fm.Record, uploads: fm.Uploads, ctx: fm.ServerContext) -> fm.Record:
        centres, placed = fm.get_tensor(server, "centres"), fm.get_tensor(server, "placed")
        length = flat_ends(fm.get_tree(server, "model")).numel()
        sent = {client: fm.get_tensor(upload, "ends").double() for client, upload in uploads.items()}
        present = [client for client, change in sent.items() if len(change) == length and bool(change.isfinite().all())]
        if present and ctx.round == self.first_round(ctx.task) - 1:
            changes = torch.stack([sent[client] for client in present])
            centres, placed = centres.clone(), placed.clone()
            centres[present] = spread_on_simplex(principal_components(-changes, self.options.ends)).float()
            placed[present] = True
        return super().aggregate(server, uploads, ctx) | {"centres": centres, "placed": placed}

    def predictors(self, server: fm.Record, state: fm.Record | None, ctx: fm.ServerContext) -> dict[str, fm.Predictor]:
        centre = None if state is None else self._centre(server, ctx.client)
        middle = torch.full((self.options.ends,), 1 / self.options.ends)
        point = middle if centre is None else centre
        predictor = fm.Predictor(fm.get_tree(server, "model"), lambda net, x: logits_at(net, net.features(x), point))
        return {"global" if state is None else "personal": predictor}

    def diagnostics(self, server: fm.Record, uploads: fm.Uploads, ctx: fm.ServerContext) -> list[fm.Diagnostic]:
        centres = fm.get_tensor(server, "centres")[fm.get_tensor(server, "placed")]
        apart = float((centres - centres.mean(0)).norm(dim=1).max()) if len(centres) > 1 else APART
        if apart >= APART or self.options.ends == 1:
            return []
        message = f"all {len(centres)} clients have one centre: their changes of the ends do not differ"
        return [fm.Diagnostic("floco.one_place", message, apart)]


_TOLERANCE = 1e-12  # of the largest entry of the matrix: below it, a difference is rounding


def flat_ends(tree: fm.Tree) -> Tensor:
    """Return all ends [M C d] as one vector."""
    return torch.cat([tree[name].flatten() for name in (WEIGHT, ENDS) if name in tree])


def logits_at(net: fm.Net, z: Tensor, point: Tensor) -> Tensor:
    """Return the logits [B, C] of features z [B, d] by the head at a `point` [M] of the simplex."""
    ends = net.head.weight.unsqueeze(0)
    if len(point) > 1:
        ends = torch.cat([ends, cast(Tensor, net.extra.ends)])
    return linear(z, torch.einsum("m,mcd->cd", point.to(z), ends), net.head.bias)


def project_to_simplex(rows: Tensor, size: float) -> Tensor:
    """Return the nearest points of 0 and more that sum to `size`, of rows [n, m] (Duchi et al. 2008, Figure 1)."""
    ordered = rows.sort(dim=1, descending=True).values
    excess = (ordered.cumsum(1) - size) / torch.arange(1, rows.shape[1] + 1, device=rows.device)
    last = (ordered > excess).sum(1, keepdim=True) - 1
    return (rows - excess.gather(1, last)).clamp(min=0)


def spread_on_simplex(rows: Tensor) -> Tensor:
    """Project rows [n, m] to simplices of 1,000 sizes from 1e-4 to 1, scale them to sum 1, and return the projection
    whose points lie farthest apart; of equals the smallest."""
    found, least = project_to_simplex(rows, 1.0), torch.inf
    for size in torch.linspace(1e-4, 1, 1000, dtype=torch.float64).tolist() if len(rows) > 1 else ():
        places = project_to_simplex(rows, size)
        # sizes below 1 sharpen the projection; scaled up again, its points lie farther apart
        places = places / places.sum(1, keepdim=True)
        if (energy := riesz_energy(places)) < least:
            found, least = places, energy
    return found


def riesz_energy(rows: Tensor) -> float:
    """Return the logarithm of the mean of 1 / distance^2 over pairs of rows [n, d]."""
    return float(torch.pdist(rows).clamp(min=1e-4).pow(-2).mean().log())


def principal_components(rows: Tensor, count: int) -> Tensor:
    """Return the scores [n, count] of rows [n, p], 0 where rows span fewer; each component's largest is positive."""
    centred = rows.double() - rows.double().mean(0)
    # the Gram matrix [n, n] of n clients gives the components of the covariance of p numbers, and n is small
    values, vectors = torch.linalg.eigh(centred @ centred.T)
    values, vectors = values.flip(0)[:count], vectors.flip(1)[:, :count]
    values = torch.where(values > _TOLERANCE * values.max().clamp(min=1e-300), values, 0.0)
    scores = vectors * values.sqrt()
    largest = scores.gather(0, scores.abs().argmax(0, keepdim=True))
    scores = torch.where(largest < 0, -scores, scores)
    return torch.cat([scores, scores.new_zeros(len(rows), count - scores.shape[1])], 1) + 0.0
