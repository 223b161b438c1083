"""FedAMP."""

from __future__ import annotations

import math
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from fedloom.core import trees
from fedloom.core.records import Record, get_number, get_tree
from fedloom.core.trees import Tree, combine
from fedloom.methods.contract import method
from fedloom.methods.contract.citation import Citation
from fedloom.methods.contract.contexts import ClientContext, Diagnostic, ServerContext, Start, Work
from fedloom.methods.contract.losses import cross_entropy
from fedloom.methods.contract.method import Method, Uploads, register
from fedloom.methods.contract.phases import Batch, Consts, Objective
from fedloom.methods.contract.spec import Sent, Spec
from fedloom.methods.parts.parameters import trained
from fedloom.methods.parts.prototypes import cosine
from fedloom.nets.net import ALL_ROLES, Net

ALONE = 1e-3  # sum of the others' weights below which a client learns from nobody


class Options(method.Options):
    """Options of FedAMP."""

    weight: float = Field(0.1, ge=0, description="lambda, the strength of the pull to the cloud model; 0 is Local.")
    alpha: float = Field(
        1.0,
        gt=0,
        description="alpha, the server's step: it multiplies the others' weights (kernel exponential), and divides "
        "lambda.",
    )
    kernel: Literal["exponential", "cosine"] = Field(
        "cosine",
        description="Weights of the other models: by their squared distance, as in FedAMP, or by their cosine, which "
        "sum to 1, as in HeurFedAMP, the paper's version for deep networks.",
    )
    sigma: float = Field(
        10.0, gt=0, description="sigma, the width of the exponential kernel, or the factor of cosines."
    )
    own_share: float = Field(
        0.5, ge=0, le=1, description="Weight of a client's own model under the cosine kernel (our choice)."
    )
    among: Literal["everybody", "participants"] = Field(
        "everybody",
        description="Models that are mixed: the latest of all clients that ever took part, or, as in PFLlib and "
        "fluke, of the last round's participants.",
    )


@register
class FedAMP(Method):
    """FedAMP: each client has a cloud model of its own, which mixes all clients' models by nearness. Huang et al.,
    AAAI 2021, arXiv 2007.03797.

    Down: the client's cloud model u_k.   Up: its weights w_k.   A client keeps its model, the server the latest of all.
    Server: u_k = (1 - sum_j xi_kj) w_k + sum_j xi_kj w_j over the others, xi_kj = alpha A'(|w_k - w_j|^2),
    A'(x) = e^(-x / sigma) / sigma; with kernel cosine, xi_kj = (1 - own_share) softmax_j(sigma cos(w_k, w_j)).
    Local, from w_k and not from u_k: CE + lambda / (2 alpha) |w - u_k|^2. Statistics of batch norm stay at clients.

    Tested: personal, by w_k.
    """

    spec = Spec(private=ALL_ROLES, sends={"weights": Sent(per_client=True, no_feedback=ALL_ROLES)})
    Options = Options
    presets = {  # noqa: RUF012
        "paper": {"weight": 1.0, "alpha": 1e4, "kernel": "exponential", "sigma": 1e6},
        "authors": {"weight": 1.0, "alpha": 1e4, "kernel": "exponential", "sigma": 1e6},
        "sound": {},
    }
    citation = Citation(
        "Huang et al.",
        "AAAI",
        2021,
        "arXiv 2007.03797",
        {"W": 1},
        {"W": 1},
        {"P": 1},
        our_choice="The values of preset `paper` are recalled, not read again; the paper lowers alpha over the rounds, "
        "here it is constant. sigma must fit squared distances, which grow with the network, so `sound` takes the "
        "cosine kernel, whose weights sum to 1.",
        released_code="No code of the authors is known. PFLlib's pull has no gradient, so its clients train alone.",
    )

    # -- server ----------------------------------------------------------------------------------------------
    def server_init(self, ctx: ServerContext) -> Record:
        return {}

    def down(self, server: Record, client: int, ctx: ServerContext) -> Record:
        own, others = self._models(server, client, ctx)
        weights = self.partner_weights(own, others)
        partners = [(tree, weight) for tree, weight in zip(others, weights, strict=True) if weight]
        shares = [1 - sum(weights), *(weight for _, weight in partners)]
        return {"weights": combine([own, *(tree for tree, _ in partners)], shares)}

    def aggregate(self, server: Record, uploads: Uploads, ctx: ServerContext) -> Record:
        latest = {name: value for name, value in server.items() if name != "round"}
        for client, upload in uploads.items():
            latest |= {f"client.{client}": upload["weights"], f"round.{client}": ctx.round}
        return latest | {"round": ctx.round}

    def _models(self, server: Record, client: int, ctx: ServerContext) -> tuple[Tree, list[Tree]]:
        """Return the client's latest weights, and those of the others that its cloud model mixes, by client id."""
        own = f"client.{client}"
        senders = sorted(int(name.removeprefix("client.")) for name in server if name.startswith("client."))
        if self.options.among == "participants":
            newest = get_number(server, "round") if senders else 0
            senders = [sender for sender in senders if get_number(server, f"round.{sender}") == newest]
        others = [get_tree(server, f"client.{sender}") for sender in senders if sender != client]
        return (get_tree(server, own) if own in server else trained(ctx.task.init, ctx.task)), others

    def partner_weights(self, own: Tree, others: list[Tree]) -> list[float]:
        """Return xi of each of the other models; 0 for one that is not finite.

        Args:
            own: the client's weights.
            others: weights of the other clients.
        """
        options, vector = self.options, _flat(own)
        if not others:
            return []
        if options.kernel == "cosine":
            cosines = torch.stack([cosine(vector, _flat(tree)) for tree in others])
            scores = torch.where(cosines.isfinite(), options.sigma * cosines, -torch.inf)
            weights = (1 - options.own_share) * torch.softmax(scores, 0)
            return torch.where(weights.isfinite(), weights, 0.0).tolist()
        slopes = [math.exp(-float((vector - _flat(tree)).square().sum()) / options.sigma) for tree in others]
        return [options.alpha * slope / options.sigma if math.isfinite(slope) else 0.0 for slope in slopes]

    # -- client ----------------------------------------------------------------------------------------------
    def begin(self, payload: Record, state: Record, ctx: ClientContext) -> Start:
        return Start(super().begin(payload, state, ctx).tree, {"cloud": get_tree(payload, "weights")})

    def loss(self, net: Net, batch: Batch, consts: Consts) -> Objective:
        ce = batch.mean(cross_entropy(net(batch.x), batch.y))
        pull = trees.squared_distance(dict(net.named_parameters()), consts["cloud"])
        return Objective.sum({"ce": ce, "cloud": self.options.weight / (2 * self.options.alpha) * pull})

    def end(self, work: Work, state: Record, ctx: ClientContext) -> tuple[Record, Record]:
        return {"weights": trained(work.tree, ctx.task), "samples": ctx.samples}, {"model": work.tree}

    def diagnostics(self, server: Record, uploads: Uploads, ctx: ServerContext) -> list[Diagnostic]:
        models = [self._models(server, client, ctx) for client in uploads]
        sums = [sum(self.partner_weights(own, others)) for own, others in models if others]
        if sums and max(sums) < ALONE:
            message = (
                f"the other clients' models have weights of at most {max(sums):.1e} in sum: nobody learns from "
                "anybody; choose a sigma near the squared distances between models, or the cosine kernel"
            )
            return [Diagnostic("fedamp.alone", message, max(sums))]
        if sums and max(sums) > 1 + ALONE:
            message = f"the other clients' weights sum to {max(sums):.2f}: the weight of the own model is negative"
            return [Diagnostic("fedamp.negative_own", message, max(sums))]
        return []


def _flat(tree: Tree) -> Tensor:
    return torch.cat([value.double().flatten() for value in tree.values()])
