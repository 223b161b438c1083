from collections.abc import Sequence
from math import isfinite
from statistics import pstdev
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

import fedloom.methods as fm

_SETTLED, _LOSSES = 0.1, 10  # a first mixing ends when the last losses differ by less than that


@fm.register
class FedALA(fm.Method):
    """FedALA: a client mixes the received head with its own, entry by entry. Zhang et al., AAAI 2023, arXiv 2212.01197.

    The body is the received one; the head is own + (received - own) * A, and A moves by the gradient of CE, clipped to
    [0, 1] (Eq. 4, 5). Then all weights train. Tested: the net that a client kept, before the next mix."""

    spec = fm.Spec(
        requires=("trained_head",),
        private=frozenset({fm.Role.EXTRA}),
        sends={"model": fm.Sent(no_feedback=frozenset({fm.Role.HEAD}))},
        labels="multi",
    )

    class Options(fm.Options):
        eta: float = fm.option(1.0, "Rate at which a client learns how to mix.", gt=0)
        share: float = fm.option(0.8, "Share of its data, drawn at random, that a mixing pass uses.", gt=0, le=1)
        first: int = fm.option(
            20,
            "Largest number of passes of a client's first mixing, which ends when its losses settle (our choice: "
            "released code has no bound). Later mixings take one pass.",
            ge=1,
        )

    def extra(self, net: fm.Net) -> nn.Module:
        roles, mixing = net.roles(), nn.Module()
        for name, entry in net.named_parameters():
            if roles[name] is fm.Role.HEAD:
                mixing.register_parameter(_flat(name), nn.Parameter(torch.ones_like(entry)))
        return mixing

    def begin(self, payload: fm.Record, state: fm.Record, ctx: fm.ClientContext) -> fm.Start:
        start = super().begin(payload, state, ctx)
        if "trained" not in state:
            return start
        trained, head = fm.get_tree(state, "trained"), ctx.task.names(frozenset({fm.Role.HEAD}))
        pairs = {name: (trained[name], start.tree[name]) for name in start.tree if name in head}
        mixing = {name: start.tree[f"{fm.EXTRA}.{_flat(name)}"] for name in pairs}
        return fm.Start(start.tree | _mixed(pairs, mixing), {"pairs": pairs, "again": "again" in state})

    def phases(self, start: fm.Start, ctx: fm.ClientContext) -> list[fm.Phase]:
        training = fm.Train(self.loss, ctx.task.local_epochs, trains=fm.TRAINABLE - {fm.Role.EXTRA})
        if "pairs" not in start.consts:
            return [training]
        passes, step = 1 if start.consts["again"] else self.options.first, fm.OptimizerSpec(lr=self.options.eta)
        mixed, share = frozenset({fm.Role.EXTRA}), self.options.share
        rules: dict[str, Any] = {"project": _clipped, "until": _settled}
        mixing = fm.Train(self.mixing_loss, passes, trains=mixed, optimizer=step, share=share, **rules)
        return [mixing, fm.Choose(_mixed_head), training]

    def mixing_loss(self, net: fm.Net, batch: fm.Batch, consts: fm.Consts) -> Tensor:
        """Return the CE of the net with the mixed head, a function of A = `net.extra`, on a `batch`."""
        mixing: fm.Tree = {name: getattr(net.extra, _flat(name)) for name in consts["pairs"]}
        logits: Tensor = functional_call(net, _mixed(consts["pairs"], mixing), (batch.x,))
        return batch.mean(fm.cross_entropy(logits, batch.y))

    def end(self, work: fm.Work, state: fm.Record, ctx: fm.ClientContext) -> tuple[fm.Record, fm.Record]:
        payload, next_state = super().end(work, state, ctx)
        trained = {name: value for name, value in work.tree.items() if ctx.task.roles[name] is not fm.Role.EXTRA}
        again = {"again": 1} if "trained" in state else {}
        return payload, next_state | {"trained": trained} | again

    def predictors(self, server: fm.Record, state: fm.Record | None, ctx: fm.ServerContext) -> dict[str, fm.Predictor]:
        trained = fm.get_tree(state, "trained") if state is not None and "trained" in state else {}
        tree = self._full(server, state, ctx.task) | trained
        return {"global" if state is None else "personal": fm.Predictor(tree)}


def _flat(name: str) -> str:
    """An entry's name as that of a parameter, which may hold no dot."""
    return name.replace(".", "_")


def _mixed(pairs: dict[str, tuple[Tensor, Tensor]], mixing: fm.Tree) -> fm.Tree:
    """own + (received - own) * A."""
    return {name: local + (received - local) * mixing[name] for name, (local, received) in pairs.items()}


def _clipped(parameters: fm.Tree, consts: fm.Consts) -> fm.Tree:
    return {name: value.clamp(0, 1) for name, value in parameters.items()}


def _mixed_head(weights: fm.Tree, consts: fm.Consts) -> fm.Tree:
    return _mixed(consts["pairs"], {name: weights[f"{fm.EXTRA}.{_flat(name)}"] for name in consts["pairs"]})


def _settled(means: Sequence[float]) -> bool:
    recent_losses = means[-_LOSSES:]
    if not all(map(isfinite, recent_losses)):
        return True  # the run diverged: more passes will not mend it
    return len(means) > _LOSSES and pstdev(recent_losses) < _SETTLED
