"""Methods as a user would write them: each in its own words alone, with one import of fedloom's."""

from dataclasses import replace

from torch import nn

from fedloom.methods import (
    Method,
    Objective,
    Options,
    Role,
    Spec,
    cross_entropy,
    kl_divergence,
)


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
