"""Four methods as a user would write them: each in its own words alone, with one import of fedloom's."""

from dataclasses import replace

import torch
from torch import nn
from torch.func import functional_call

from fedloom.methods import (
    TRAINABLE,
    ClassTable,
    Method,
    Objective,
    OptimizerSpec,
    Options,
    Predictor,
    Role,
    Spec,
    Train,
    averaged,
    cross_entropy,
    kl_divergence,
    names_of,
    wrapped,
)


class APFL(Method):
    """APFL: a mixture of a shared and an own net, by a trained share. Deng et al. 2020, arXiv 2003.13461."""

    spec = Spec(nets={"shared": None, "own": None}, private_nets=frozenset({"own"}), private=frozenset({Role.EXTRA}))

    class Options(Options):
        alpha: float = 0.5
        alpha_lr: float = 0.5

    def extra(self, net):
        module = nn.Module()
        module.alpha = nn.Parameter(torch.tensor(self.options.alpha))
        return module

    def phases(self, start, ctx):
        def clipped(parameters, consts):
            return parameters | {"extra.alpha": parameters["extra.alpha"].clamp(0, 1)}

        own = {"extra": OptimizerSpec(lr=self.options.alpha_lr)}
        return [Train(self.loss, ctx.task.local_epochs, optimizer=own, project=clipped)]

    def loss(self, net, batch, consts):
        shared = batch.mean(cross_entropy(net["shared"](batch.x), batch.y))
        return Objective.sum({"ce_shared": shared, "ce_mixed": batch.mean(cross_entropy(mixed(net, batch.x), batch.y))})

    def predictors(self, server, state, ctx):
        return {} if state is None else {"personal": Predictor(self._joined(server, state, ctx.task), mixed)}


def mixed(net, x):
    """Logits of the mixture; no gradient reaches the shared net."""
    alpha, shared = net.extra.alpha, dict(net["shared"].named_parameters())
    tree = {n: alpha * own + (1 - alpha) * shared[n].detach() for n, own in net["own"].named_parameters()}
    return functional_call(net["shared"], tree, (x,))


class FedBABU(Method):
    """FedBABU: only the body is trained and shared; a client tunes all of it at the end. Oh et al. 2022, 2106.06042."""

    spec = Spec(private=frozenset({Role.HEAD}))

    def phases(self, start, ctx):
        return [Train(self.loss, ctx.task.local_epochs, trains=TRAINABLE - {Role.HEAD})]

    def end(self, work, state, ctx):
        return super().end(work, state, ctx)[0], {}  # the head stays the first one

    def adapt(self, start, ctx):
        return [Train(self.loss)]

    def predictors(self, server, state, ctx):
        head = {"model": self._private(ctx.task.init, ctx.task)}
        return {"global" if state is None else "personal": Predictor(self._joined(server, head, ctx.task))}


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


class Krum(Method):
    """Krum around any method with a mean: the value nearest to its neighbours. Blanchard et al. 2017, 1703.02757."""

    class Own(Options):
        faulty: int = 1

    def __init__(self, options=None):
        super().__init__(options)
        self.krum = names_of(self, "krum").options(Krum.Own, self.options)
        self.robust = averaged(self, "krum")

    def reduce(self, key, values, weights):
        if key not in self.robust:
            return super().reduce(key, values, weights)
        each = list(values)
        return each[int(krum_scores(torch.stack([flat(value) for value in each]), self.krum.faulty).argmin())]


def krum_scores(rows, faulty):
    """Of each row [m, p]: the sum of squared distances to its m - f - 2 nearest others."""
    distances = torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist").square().sort(1).values
    return distances[:, 1 : max(2, len(rows) - faulty - 1)].sum(1)


def flat(value):
    """A tree, a table or a tensor as one vector."""
    value = value.values if isinstance(value, ClassTable) else value
    parts = [tensor for tensor in value.values() if tensor.is_floating_point()] if isinstance(value, dict) else [value]
    return torch.cat([part.flatten().double() for part in parts])


def with_krum(base):
    """`base+krum`."""
    return wrapped(Krum, base, "krum", Krum.Own)
