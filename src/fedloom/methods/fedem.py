from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

import fedloom.methods as fm
from fedloom.methods.parts.several_models import first_models, noisy_starts

_NEWCOMER_PASSES = 3  # E-steps of a client that has no shares yet, before its test
_LEAST = 1e-12  # floor of a share in its logarithm


@fm.register
class FedEM(fm.Method):
    """FedEM: a client's data are a mixture of shared distributions, with a model for each. Marfoq et al., NeurIPS 2021,
    arXiv 2108.10252, Algorithm 1.

    E: q_ij = softmax_j(log pi_kj - CE_ij) at the received models, in evaluation mode; pi_kj = mean_i q_ij. M: the sum
    over j of the mean over i of q_ij CE_ij, with the old shares. Server: as FedAvg, model by model. Tested with sum_j
    pi_kj softmax(o_j)."""

    spec = fm.Spec(unstackable="it computes the received models as well", single_because="it mixes softmax outputs")

    class Options(fm.Options):
        components: int = fm.option(3, "M, the number of shared models; 1 is FedAvg.", ge=1)

    def __init__(self, options: fm.Options | None = None) -> None:
        super().__init__(options)
        nets: dict[str, str | None] = {component(number): None for number in range(self.options.components)}
        self.spec = replace(self.spec, nets=nets)

    def examine(self, tasks: fm.Tasks, participants: int) -> list[fm.Diagnostic]:
        return [*super().examine(tasks, participants), *noisy_starts(self.name(), self.options.components, tasks[0])]

    def server_init(self, ctx: fm.ServerContext) -> fm.Record:
        starts = first_models(ctx.task, self.options.components)
        number_of = {component(number): number for number in range(len(starts))}
        return {"model": {name: starts[number_of[name.partition(".")[0]]][name] for name in ctx.task.init}}

    def begin(self, payload: fm.Record, state: fm.Record, ctx: fm.ClientContext) -> fm.Start:
        tree = fm.get_tree(payload, "model")
        prefixes = [f"{component(number)}." for number in range(self.options.components)]
        models = [{n.removeprefix(p): v for n, v in tree.items() if n.startswith(p)} for p in prefixes]
        return fm.Start(tree, {"prior": self._shares(state), "received": models})

    def phases(self, start: fm.Start, ctx: fm.ClientContext) -> list[fm.Phase]:
        return [self._e_step(), *super().phases(start, ctx)]

    def loss(self, net: fm.Net, batch: fm.Batch, consts: fm.Consts) -> fm.Objective:
        nets = children(net)
        logits = [one.functional.logits(tree, batch.x) for one, tree in zip(nets, consts["received"], strict=True)]
        # E-step at the received weights: q is a constant of the M-step, so no gradient passes through it
        q = responsibilities(torch.stack([fm.cross_entropy(o, batch.y) for o in logits], 1), consts["prior"])
        ce = torch.stack([fm.cross_entropy(one(batch.x), batch.y) for one in nets], 1)
        return fm.Objective.sum({"ce": batch.mean((q.detach() * ce).sum(1))})

    def end(self, work: fm.Work, state: fm.Record, ctx: fm.ClientContext) -> tuple[fm.Record, fm.Record]:
        shares = work.collected["shares"].tolist()
        return {"model": work.tree, "samples": ctx.samples}, {f"share.{j}": share for j, share in enumerate(shares)}

    def predictors(self, server: fm.Record, state: fm.Record | None, ctx: fm.ServerContext) -> dict[str, fm.Predictor]:
        if state is None:
            return {}
        tree, shares = fm.get_tree(server, "model"), self._shares(state)
        consts = {} if "share.0" in state else {"prior": shares}
        return {"personal": with_shares(fm.Predictor(tree, consts=consts), shares)}

    def adapt(self, start: fm.Start, ctx: fm.ClientContext) -> list[fm.Phase]:
        return [self._e_step() for _ in range(_NEWCOMER_PASSES)] if start.consts else []

    def adapted(self, work: fm.Work, predictor: fm.Predictor, ctx: fm.ClientContext) -> fm.Predictor:
        return with_shares(predictor, work.collected["shares"]) if "shares" in work.collected else predictor

    def _e_step(self) -> fm.Phase:
        return fm.Collect({"shares": fm.SampleMean(sample_shares)})

    def _shares(self, state: fm.Record) -> Tensor:
        count = self.options.components
        shares = [float(fm.get_number(state, f"share.{j}")) if "share.0" in state else 1 / count for j in range(count)]
        return torch.tensor(shares)


def component(number: int) -> str:
    """Return the name of a model in the bundle."""
    return f"component{number}"


def children(net: fm.Net) -> list[fm.Net]:
    """Return the models of a bundle in their order."""
    bundle = cast(fm.Bundle, net)
    return [bundle[name] for name, _ in bundle.named_children() if name.startswith("component")]


def responsibilities(losses: Tensor, shares: Tensor) -> Tensor:
    """Return q [B, M], the posterior of the models, from cross-entropies [B, M] and shares [M]."""
    # q_j is proportional to share_j exp(-CE_j); in logarithms nothing underflows
    return (shares.clamp(min=_LEAST).log().to(losses.dtype) - losses).softmax(1)


def sample_shares(net: fm.Net, batch: fm.Batch, consts: fm.Consts) -> Tensor:
    """Return q [B, M] of a `batch` at the weights of `net`, with the shares of an earlier E-step or the prior."""
    losses = torch.stack([fm.cross_entropy(one(batch.x), batch.y) for one in children(net)], 1)
    return responsibilities(losses, consts["shares"] if "shares" in consts else consts["prior"])


def with_shares(predictor: fm.Predictor, shares: Tensor) -> fm.Predictor:
    """Return the predictor of sum_j share_j softmax(o_j), whose scores are logarithms of these probabilities."""

    def logits(net: fm.Net, x: Tensor) -> Tensor:
        # the mixture is of probabilities, not of logits
        logs = torch.stack([one(x).log_softmax(1) for one in children(net)])
        return (logs + shares.clamp(min=_LEAST).log().to(logs).view(-1, 1, 1)).logsumexp(0)

    return replace(predictor, logits=logits)
