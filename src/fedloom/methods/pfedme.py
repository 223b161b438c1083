"""pFedMe."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, cast

import torch
from pydantic import Field
from torch.func import functional_call

from fedloom.core.records import Record, get_tree
from fedloom.core.trees import combine
from fedloom.methods.contract import method
from fedloom.methods.contract.citation import Citation
from fedloom.methods.contract.contexts import ClientContext, ServerContext, Start, Work
from fedloom.methods.contract.losses import cross_entropy
from fedloom.methods.contract.method import Method, Uploads, register
from fedloom.methods.contract.phases import Batch, Consts, Objective, OptimizerSpec, Phase, Predictor, Train
from fedloom.methods.contract.spec import Spec
from fedloom.methods.parts.parameters import zero_with_gradients
from fedloom.nets.blueprint import Bundle
from fedloom.nets.net import Net, Role


class Options(method.Options):
    """Options of PFedMe."""

    lam: float = Field(15.0, gt=0, description="lambda, how strongly the personal model is held to w.")
    inner_steps: int = Field(5, ge=1, description="K, steps on each batch towards the personal model.")
    personal_lr: float = Field(0.01, gt=0, description="Learning rate of these steps.")
    decay: float = Field(0.0, ge=0, description="Weight decay of these steps (the authors' mu).")
    beta: float = Field(1.0, gt=0, description="The server's step.")
    weights: Literal["uniform", "samples"] = Field(
        "uniform", description="Weights of clients in the mean: all alike, as in Algorithm 1, or by samples."
    )


@register
class PFedMe(Method):
    """pFedMe: Moreau envelopes; a personal model is held to the shared one. T Dinh et al., NeurIPS 2020, 2006.08848.

    Down, up: w, as FedAvg.   A client keeps its personal model theta.
    Local, for each batch: K times theta <- theta - personal_lr (grad CE(theta) + lambda (theta - w) + decay theta),
    then w <- w - lr lambda (w - theta) (Eq. 7, 8). theta starts at w in each round and goes on from batch to batch,
    as in released code. Server: (1 - beta) w + beta mean of clients' w (Algorithm 1).
    lr lambda must be below 1. Batch norm: w has theta's statistics.
    """

    spec = Spec(
        nets={"shared": None, "own": None},
        private_nets=frozenset({"own"}),
        unstackable="its steps take gradients inside the loss",
    )
    Options = Options
    presets = {  # noqa: RUF012
        "paper": {},
        "authors": {"weights": "samples", "decay": 1e-3},
        "sound": {},
    }
    citation = Citation(
        "T Dinh et al.",
        "NeurIPS",
        2020,
        "arXiv 2006.08848",
        {"P": 1},
        {"P": 1},
        {"P": 1},
        code="CharlieDinh/pFedMe at caf24b1",
    )

    def begin(self, payload: Record, state: Record, ctx: ClientContext) -> Start:
        shared = get_tree(payload, "model")
        return Start(shared | {f"own.{name.removeprefix('shared.')}": value for name, value in shared.items()}, {})

    def phases(self, start: Start, ctx: ClientContext) -> list[Phase]:
        rates = {"shared": OptimizerSpec(lr=ctx.lr), "own": OptimizerSpec(lr=1.0)}
        return [Train(self.loss, ctx.task.local_epochs, optimizer=rates)]

    def loss(self, net: Net, batch: Batch, consts: Consts) -> Objective:
        options, bundle = self.options, cast(Bundle, net)
        own_weights = dict(bundle["own"].named_parameters())
        shared_weights = dict(bundle["shared"].named_parameters())
        shared = [shared_weights[name].detach() for name in own_weights]
        own = [value.detach() for value in own_weights.values()]
        personal, ce = own, torch.zeros(())
        for _ in range(options.inner_steps):
            leaves = [value.detach().requires_grad_() for value in personal]
            logits = functional_call(bundle["own"], dict(zip(own_weights, leaves, strict=True)), (batch.x,))
            ce = batch.mean(cross_entropy(logits, batch.y))
            slopes = torch.autograd.grad(ce, leaves)
            with torch.no_grad():
                moves = list(torch._foreach_sub(leaves, shared))
                torch._foreach_mul_(moves, options.lam)
                torch._foreach_add_(moves, slopes)
                if options.decay:
                    torch._foreach_add_(moves, torch._foreach_mul(leaves, options.decay))
                torch._foreach_mul_(moves, options.personal_lr)
                personal = list(torch._foreach_sub(leaves, moves))
        # Gradients of the two steps: that of w is lambda (w - theta); that of theta, at rate 1, leads to the new theta.
        to_shared = list(torch._foreach_sub(shared, personal))
        torch._foreach_mul_(to_shared, options.lam)
        weights = [*(shared_weights[name] for name in own_weights), *own_weights.values()]
        moved = zero_with_gradients(weights, [*to_shared, *torch._foreach_sub(own, personal)])
        return Objective(ce.detach() + moved, {"ce": ce})

    def end(self, work: Work, state: Record, ctx: ClientContext) -> tuple[Record, Record]:
        still = (Role.BN_STAT, Role.COUNTER, Role.BUFFER)  # the shared net is never run, the own one is
        moved = {
            name: work.tree[f"own.{name.removeprefix('shared.')}"]
            for name in work.tree
            if name.startswith("shared.") and ctx.task.roles[name] in still
        }
        return super().end(replace(work, tree=work.tree | moved), state, ctx)

    def aggregate(self, server: Record, uploads: Uploads, ctx: ServerContext) -> Record:
        mean, beta = self.mean(uploads, weights=self.options.weights), self.options.beta
        return {"model": combine([get_tree(server, "model"), mean], [1 - beta, beta]) if beta != 1 else mean}

    def predictors(self, server: Record, state: Record | None, ctx: ServerContext) -> dict[str, Predictor]:
        private_record: Record = {"model": self._private(ctx.task.init, ctx.task)} if state is None else state
        kind, name = ("global", "shared") if state is None else ("personal", "own")
        return {
            kind: Predictor(self._joined(server, private_record, ctx.task), lambda net, x: cast(Bundle, net)[name](x))
        }
