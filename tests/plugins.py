"""Methods as a user would write them: each in its own words alone, with one import of fedloom's."""

from dataclasses import replace

import torch
from torch import nn

from fedloom.methods import (
    TRAINABLE,
    Method,
    Objective,
    Options,
    Role,
    Sent,
    Spec,
    Start,
    Train,
    combine,
    cross_entropy,
    get_tree,
    kl_divergence,
    select,
)


class Scaffold(Method):
    """SCAFFOLD: control variates cancel client drift. Karimireddy et al. 2020, arXiv 1910.06378, option II."""

    spec = Spec(sends={"model": Sent(), "control": Sent()})

    def server_init(self, ctx):
        return super().server_init(ctx) | {"control": self.zeros(ctx.task)}

    def client_init(self, ctx):
        return {"control": self.zeros(ctx.task)}

    def down(self, server, client, ctx):
        return server

    def begin(self, payload, state, ctx):
        correction = combine([get_tree(payload, "control"), get_tree(state, "control")], [1, -1])
        return Start(get_tree(payload, "model"), {"correction": correction})

    def phases(self, start, ctx):
        def corrected(gradients, parameters, consts):
            return {name: gradient + consts["correction"][name] for name, gradient in gradients.items()}

        return [Train(self.loss, ctx.task.local_epochs, grad_map=corrected)]

    def end(self, work, state, ctx):
        payload, _ = super().end(work, {}, ctx)
        begun, scale = work.start, max(1, work.steps) * ctx.lr
        moved = combine([begun.tree, work.tree], [1 / scale, -1 / scale])
        old, correction = get_tree(state, "control"), begun.consts["correction"]
        own = combine([select(moved, old.keys()), correction], [1, -1])
        return payload | {"control": combine([own, old], [1, -1])}, {"control": own}

    def aggregate(self, server, uploads, ctx):
        change, share = self.mean(uploads, "control", "uniform"), len(uploads) / ctx.task.clients
        control = combine([get_tree(server, "control"), change], [1, share])
        return {"model": self.mean(uploads, weights="uniform"), "control": control}

    @staticmethod
    def zeros(task):
        return {name: torch.zeros_like(task.init[name]) for name in task.init if task.roles[name] in TRAINABLE}


class Moon(Method):
    """MOON: features near the received model's, far from the client's last. Li et al. 2021, arXiv 2103.16257."""

    class Options(Options):
        mu: float = 1.0
        tau: float = 0.5

    def begin(self, payload, state, ctx):
        start = super().begin(payload, {}, ctx)
        return Start(start.tree, {"received": start.tree} | state)

    def loss(self, net, batch, consts):
        z = net.features(batch.x)
        terms = {"ce": batch.mean(cross_entropy(net.head(z), batch.y))}
        if "previous" in consts:
            with torch.no_grad():
                anchors = [net.frozen.features(consts[name], batch.x) for name in ("received", "previous")]
            scores = torch.stack([torch.cosine_similarity(z, anchor) for anchor in anchors], 1) / self.options.tau
            terms["moon"] = self.options.mu * batch.mean(-torch.log_softmax(scores, 1)[:, 0])
        return Objective.sum(terms)

    def end(self, work, state, ctx):
        payload, _ = super().end(work, {}, ctx)
        return payload, {"previous": work.tree}


class FedKD(Method):
    """FedKD without compression: a private mentor and a small shared mentee. Wu et al. 2022, arXiv 2108.13323."""

    class Options(Options):
        mentee: str | None = None

    def __init__(self, options=None):
        super().__init__(options)
        nets = {"mentor": None, "mentee": self.options.mentee}
        self.spec = replace(self.spec, nets=nets)

    spec = Spec(private=frozenset({Role.EXTRA}), private_nets=frozenset({"mentor"}), architectures="any")

    def extra(self, net):
        wide, narrow = net["mentor"].head.in_features, net["mentee"].head.in_features
        align = nn.Linear(narrow, wide, bias=False)
        nn.init.eye_(align.weight)
        return align

    def loss(self, net, batch, consts):
        z = {name: net[name].features(batch.x) for name in self.spec.nets}
        out = {name: net[name].head(z[name]) for name in self.spec.nets}
        ce = {name: batch.mean(cross_entropy(out[name], batch.y)) for name in out}
        doubt = (ce["mentor"] + ce["mentee"]).detach()
        terms = {f"ce_{name}": value for name, value in ce.items()}
        aligned = net.extra(z["mentee"])
        for name, other in (("mentor", "mentee"), ("mentee", "mentor")):
            terms[f"kl_{name}"] = batch.mean(kl_divergence(out[other].detach(), out[name])) / doubt
        terms["z_mentor"] = batch.mean((z["mentor"] - aligned.detach()).square().mean(1)) / doubt
        terms["z_mentee"] = batch.mean((z["mentor"].detach() - aligned).square().mean(1)) / doubt
        return Objective.sum(terms)

    def aggregate(self, server, uploads, ctx):
        return {"model": self.mean(uploads, weights="uniform")}
