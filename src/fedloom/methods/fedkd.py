from typing import Literal, cast

import torch
from torch import Tensor, nn

import fedloom.methods as fm
from fedloom.methods.parts.parameters import client_row
from fedloom.methods.parts.several_models import pair_predictors, require_same_net
from fedloom.methods.wrappers.wrapping import Changed

PARTS = (":u", ":s", ":v")  # behind an entry's name
MENTOR, MENTEE = "mentor", "mentee"
_LEAST_DOUBT = 1e-6  # of a client with one class it becomes 0, and the terms over it 0 / 0


@fm.register
class FedKD(fm.Method):
    """FedKD: a private mentor and a small shared mentee teach each other; the mentee travels at low rank. Wu et al.,
    Nature Communications 2022, arXiv 2108.13323.

    Local, with D = CE_mentor + CE_mentee and a private W_h [d, d']: for the mentor CE + (KL(mentee || mentor) + |z -
    W_h z'|^2 / d) / D, and the reverse for the mentee. Down and up: the update of the mentee as u, s, v of each matrix,
    of the least rank that keeps the energy T0 + (T1 - T0) t / T; the whole mentee for a client that missed a round.
    Server: the uniform mean of updates. A client is tested with its mentor."""

    class Options(fm.Options):
        mentee: str | None = fm.option(
            None,
            "Registered model of the shared net. Null takes the run's own; a name is needed where clients have "
            "different nets.",
        )
        compresses: Literal["updates", "weights", "nothing"] = fm.option(
            "updates", "Decomposed entries: updates of the mentee, its weights (as in PFLlib), or nothing."
        )
        energy_first: float = fm.option(
            0.95, "Share of the squared singular values that is kept at the first round.", gt=0, le=1
        )
        energy_last: float = fm.option(
            0.98, "Share of the squared singular values that is kept at the last round.", gt=0, le=1
        )

    def __init__(self, options: fm.Options | None = None) -> None:
        super().__init__(options)
        factors = self.options.compresses != "nothing"
        self.spec = fm.Spec(
            private=frozenset({fm.Role.EXTRA}),
            nets={MENTOR: None, MENTEE: self.options.mentee},
            private_nets=frozenset({MENTOR}),
            architectures="any",
            sends={"model": fm.Sent(per_client=factors, form="own" if factors else "whole")},
            labels="multi",
        )

    def examine(self, tasks: fm.Tasks, participants: int) -> list[fm.Diagnostic]:
        require_same_net(tasks, MENTEE, f"{self.name()}.mentee")
        return super().examine(tasks, participants)

    def extra(self, net: fm.Net) -> nn.Module:
        bundle = cast(fm.Bundle, net)
        mentee, mentor = bundle[MENTEE].head, bundle[MENTOR].head
        align = nn.Linear(mentee.in_features, mentor.in_features, bias=False, dtype=mentee.weight.dtype)
        nn.init.eye_(align.weight)
        return align

    def server_init(self, ctx: fm.ServerContext) -> fm.Record:
        last_rounds: fm.Record = {"told": torch.zeros(ctx.task.clients, dtype=torch.int64)}
        return super().server_init(ctx) | (last_rounds if self.options.compresses == "updates" else {})

    def down(self, server: fm.Record, client: int, ctx: fm.ServerContext) -> fm.Record:
        is_current = "told" not in server or 0 < int(client_row(server, "told", client)) == ctx.round - 1
        return {"factors": server["factors"]} if "factors" in server and is_current else {"model": server["model"]}

    def aggregate(self, server: fm.Record, uploads: fm.Uploads, ctx: fm.ServerContext) -> fm.Record:
        if self.options.compresses == "nothing":
            return {"model": self.mean(uploads, weights="uniform")}
        whole = Changed(uploads, lambda _, upload: upload | {"model": restored(fm.get_tree(upload, "model"))})
        mean: fm.Tree = self.mean(whole, weights="uniform")
        factors = factored(mean, self.energy(ctx.task, ctx.round))
        if self.options.compresses == "weights":
            return {"model": restored(factors), "factors": factors}
        last_rounds = fm.get_tensor(server, "told").clone()
        last_rounds[list(uploads)] = ctx.round
        return {"model": updated(factors, fm.get_tree(server, "model")), "factors": factors, "told": last_rounds}

    def begin(self, payload: fm.Record, state: fm.Record, ctx: fm.ClientContext) -> fm.Start:
        if "factors" not in payload:
            return super().begin(payload, state, ctx)
        factors = fm.get_tree(payload, "factors")
        updates = self.options.compresses == "updates"
        mentee = updated(factors, fm.get_tree(state, "received")) if updates else restored(factors)
        return super().begin({"model": mentee}, state, ctx)

    def loss(self, net: fm.Net, batch: fm.Batch, consts: fm.Consts) -> fm.Objective:
        nets = {student: cast(fm.Bundle, net)[student] for student in (MENTOR, MENTEE)}
        z = {student: member.features(batch.x) for student, member in nets.items()}
        logits_of = {student: member.head(z[student]) for student, member in nets.items()}
        ce = {student: batch.mean(fm.cross_entropy(logits, batch.y)) for student, logits in logits_of.items()}
        terms = {f"ce_{student}": value for student, value in ce.items()}
        # both nets learn less from each other while they are wrong; the divisor is no path for gradients
        doubt = (ce[MENTOR] + ce[MENTEE]).detach().clamp(min=_LEAST_DOUBT)
        # features of two nets are comparable only through a learned map, which moves with the mentee's term
        aligned = net.extra(z[MENTEE])
        for student, teacher in ((MENTOR, MENTEE), (MENTEE, MENTOR)):
            divergences = fm.kl_divergence(logits_of[teacher].detach(), logits_of[student], batch.y)
            terms[f"kl_{student}"] = batch.mean(divergences) / doubt
        terms["z_mentor"] = batch.mean((z[MENTOR] - aligned.detach()).square().mean(1)) / doubt
        terms["z_mentee"] = batch.mean((z[MENTOR].detach() - aligned).square().mean(1)) / doubt
        return fm.Objective.sum(terms)

    def end(self, work: fm.Work, state: fm.Record, ctx: fm.ClientContext) -> tuple[fm.Record, fm.Record]:
        payload, next_state = super().end(work, state, ctx)
        if self.options.compresses == "nothing":
            return payload, next_state
        mentee = fm.get_tree(payload, "model")
        if self.options.compresses == "updates":
            received = self._shared(work.start.tree, ctx.task)
            mentee, next_state = fm.combine([mentee, received], [1, -1]), next_state | {"received": received}
        return payload | {"model": factored(mentee, self.energy(ctx.task, ctx.round))}, next_state

    def predictors(self, server: fm.Record, state: fm.Record | None, ctx: fm.ServerContext) -> dict[str, fm.Predictor]:
        return pair_predictors(self, server, state, ctx, MENTEE)

    def energy(self, task: fm.Task, round_: int) -> float:
        """Return the share of squared singular values that is kept in a round: T0 + (T1 - T0) t / T."""
        first_share, last_share = self.options.energy_first, self.options.energy_last
        share: float = first_share + (last_share - first_share) * round_ / task.rounds
        return min(1.0, share)


def rank_for(singular: Tensor, energy: float) -> int:
    """Return the fewest singular values (largest first) whose squares have the share `energy` of all; at least 1."""
    gathered = singular.square().cumsum(0)
    # strictly less: values that reach the share exactly need no further one
    return min(len(singular), int((gathered < energy * gathered[-1]).sum()) + 1)


def factored(tree: fm.Tree, energy: float) -> fm.Tree:
    """Decompose each finite matrix of `tree` into u, s and v of the least rank that keeps `energy`; an entry [a, b,
    c, ...] counts as [a, b c ...]. The largest number of each column of u is positive."""
    parts: fm.Tree = {}
    for name, value in tree.items():
        if value.dim() < 2 or not value.is_floating_point() or not value.isfinite().all():
            parts[name] = value
            continue
        u, s, v = torch.linalg.svd(value.double().flatten(1), full_matrices=False)
        rank = rank_for(s, energy)
        u, s, v = u[:, :rank], s[:rank], v[:rank]
        # a singular vector is unique up to its sign, which LAPACK leaves to the machine
        sign = torch.where(u.gather(0, u.abs().argmax(0, keepdim=True)) < 0, -1.0, 1.0)  # [1, r]
        shaped = (v * sign.T).reshape(rank, *value.shape[1:])
        for suffix, factor in zip(PARTS, (u * sign, s, shaped), strict=True):
            parts[name + suffix] = factor.to(value.dtype).contiguous()
    return parts


def restored(parts: fm.Tree) -> fm.Tree:
    """Multiply the factors of `factored` again."""
    tree: fm.Tree = {}
    for name, value in parts.items():
        entry, mark, part = name.rpartition(":")
        if not mark:
            tree[name] = value
        elif part == "u":
            s, v = parts[entry + ":s"].double(), parts[entry + ":v"].double()
            product = (value.double() * s) @ v.flatten(1)
            tree[entry] = product.reshape(len(value), *v.shape[1:]).to(value.dtype)
    return tree


def updated(factors: fm.Tree, tree: fm.Tree) -> fm.Tree:
    """Add an update to a tree; integers are the update's."""
    return fm.combine([restored(factors), tree], [1, 1])
