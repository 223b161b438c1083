import math
from typing import Literal

import torch
from torch import Tensor

import fedloom.methods as fm
from fedloom.core import trees
from fedloom.methods.parts.parameters import trained
from fedloom.methods.parts.prototypes import cosine

ALONE = 1e-3  # sum of the others' weights below which a client learns from no other client


@fm.register
class FedAMP(fm.Method):
    """FedAMP: each client has a cloud model, which mixes all clients' models by nearness. Huang et al., AAAI 2021,
    arXiv 2007.03797.

    Server: u_k = (1 - sum_j xi_kj) w_k + sum_j xi_kj w_j over the others, xi_kj = alpha A'(|w_k - w_j|^2), A'(x) =
    e^(-x / sigma) / sigma; with kernel cosine, xi_kj = (1 - own_share) softmax_j(sigma cos(w_k, w_j)). Local, from w_k
    and not from u_k: CE + lambda / (2 alpha) |w - u_k|^2. Statistics of batch norm stay at clients. Tested: w_k."""

    spec = fm.Spec(
        private=fm.ALL_ROLES, sends={"weights": fm.Sent(per_client=True, no_feedback=fm.ALL_ROLES)}, labels="multi"
    )

    class Options(fm.Options):
        weight: float = fm.option(0.1, "lambda, the strength of the pull to the cloud model; 0 is Local.", ge=0)
        alpha: float = fm.option(
            1.0,
            "alpha, the server's step: it multiplies the others' weights (kernel exponential), and divides lambda.",
            gt=0,
        )
        kernel: Literal["exponential", "cosine"] = fm.option(
            "cosine",
            "Weights of the other models: by their squared distance, as in FedAMP, or by their cosine, which sum to 1,"
            " as in HeurFedAMP, the paper's version for deep networks.",
        )
        sigma: float = fm.option(10.0, "sigma, the width of the exponential kernel, or the factor of cosines.", gt=0)
        own_share: float = fm.option(
            0.5, "Weight of a client's own model under the cosine kernel (our choice).", ge=0, le=1
        )
        among: Literal["everybody", "participants"] = fm.option(
            "everybody",
            "Models that are mixed: the latest of all clients that ever took part, or, as in PFLlib and fluke, of the "
            "last round's participants.",
        )

    def server_init(self, ctx: fm.ServerContext) -> fm.Record:
        return {}

    def down(self, server: fm.Record, client: int, ctx: fm.ServerContext) -> fm.Record:
        own, others = self._models(server, client, ctx)
        weights = self.partner_weights(own, others)
        partners = [(tree, weight) for tree, weight in zip(others, weights, strict=True) if weight]
        shares = [1 - sum(weights), *(weight for _, weight in partners)]
        return {"weights": fm.combine([own, *(tree for tree, _ in partners)], shares)}

    def aggregate(self, server: fm.Record, uploads: fm.Uploads, ctx: fm.ServerContext) -> fm.Record:
        latest = {name: value for name, value in server.items() if name != "round"}
        for client, upload in uploads.items():
            latest |= {f"client.{client}": upload["weights"], f"round.{client}": ctx.round}
        return latest | {"round": ctx.round}

    def _models(self, server: fm.Record, client: int, ctx: fm.ServerContext) -> tuple[fm.Tree, list[fm.Tree]]:
        """Return the client's latest weights, and those of the others that its cloud model mixes, by client id."""
        own = f"client.{client}"
        senders = sorted(int(name.removeprefix("client.")) for name in server if name.startswith("client."))
        if self.options.among == "participants":
            newest = fm.get_number(server, "round") if senders else 0
            senders = [sender for sender in senders if fm.get_number(server, f"round.{sender}") == newest]
        others = [fm.get_tree(server, f"client.{sender}") for sender in senders if sender != client]
        return (fm.get_tree(server, own) if own in server else trained(ctx.task.init, ctx.task)), others

    def partner_weights(self, own: fm.Tree, others: list[fm.Tree]) -> list[float]:
        """Return xi of each of the `others`' models, for a client with weights `own`; 0 for one that is not finite."""
        options, vector = self.options, _flat(own)
        if not others:
            return []
        if options.kernel == "cosine":
            cosines = torch.stack([cosine(vector, _flat(tree)) for tree in others])
            # a model without length has no direction: -inf gives it the weight 0 in the softmax
            scores = torch.where(cosines.isfinite(), options.sigma * cosines, -torch.inf)
            weights = (1 - options.own_share) * torch.softmax(scores, 0)
            return torch.where(weights.isfinite(), weights, 0.0).tolist()
        # A'(d) of A(d) = 1 - exp(-d / sigma), which weighs the pull of each model
        slopes = [math.exp(-float((vector - _flat(tree)).square().sum()) / options.sigma) for tree in others]
        return [options.alpha * slope / options.sigma if math.isfinite(slope) else 0.0 for slope in slopes]

    def begin(self, payload: fm.Record, state: fm.Record, ctx: fm.ClientContext) -> fm.Start:
        return fm.Start(super().begin(payload, state, ctx).tree, {"cloud": fm.get_tree(payload, "weights")})

    def loss(self, net: fm.Net, batch: fm.Batch, consts: fm.Consts) -> fm.Objective:
        ce = batch.mean(fm.cross_entropy(net(batch.x), batch.y))
        pull = trees.squared_distance(dict(net.named_parameters()), consts["cloud"])
        return fm.Objective.sum({"ce": ce, "cloud": self.options.weight / (2 * self.options.alpha) * pull})

    def end(self, work: fm.Work, state: fm.Record, ctx: fm.ClientContext) -> tuple[fm.Record, fm.Record]:
        return {"weights": trained(work.tree, ctx.task), "samples": ctx.samples}, {"model": work.tree}

    def diagnostics(self, server: fm.Record, uploads: fm.Uploads, ctx: fm.ServerContext) -> list[fm.Diagnostic]:
        models = [self._models(server, client, ctx) for client in uploads]
        sums = [sum(self.partner_weights(own, others)) for own, others in models if others]
        if sums and max(sums) < ALONE:
            message = (
                f"the other clients' models have weights of at most {max(sums):.1e} in sum: nobody learns from "
                "anybody; choose a sigma near the squared distances between models, or the cosine kernel"
            )
            return [fm.Diagnostic("fedamp.alone", message, max(sums))]
        if sums and max(sums) > 1 + ALONE:
            message = f"the other clients' weights sum to {max(sums):.2f}: the weight of the own model is negative"
            return [fm.Diagnostic("fedamp.negative_own", message, max(sums))]
        return []


def _flat(tree: fm.Tree) -> Tensor:
    return torch.cat([value.double().flatten() for value in tree.values()])
