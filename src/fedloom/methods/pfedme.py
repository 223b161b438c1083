from dataclasses import replace
from typing import Literal, cast

import torch
from torch.func import functional_call

import fedloom.methods as fm
from fedloom.methods.parts.parameters import zero_with_gradients


@fm.register
class PFedMe(fm.Method):
    """pFedMe: Moreau envelopes; a personal model is held to the shared one. T Dinh et al., NeurIPS 2020, 2006.08848.

    Local, for each batch: K times theta <- theta - personal_lr (grad CE(theta) + lambda (theta - w) + decay theta),
    then w <- w - lr lambda (w - theta) (Eq. 7, 8). theta starts at w in each round, as in released code. Server: (1 -
    beta) w + beta mean of clients' w (Algorithm 1). lr lambda must be below 1."""

    spec = fm.Spec(
        nets={"shared": None, "own": None},
        private_nets=frozenset({"own"}),
        unstackable="its steps take gradients inside the loss",
        labels="multi",
    )

    class Options(fm.Options):
        lam: float = fm.option(15.0, "lambda, how strongly the personal model is held to w.", gt=0)
        inner_steps: int = fm.option(5, "K, steps on each batch towards the personal model.", ge=1)
        personal_lr: float = fm.option(0.01, "Learning rate of these steps.", gt=0)
        decay: float = fm.option(0.0, "Weight decay of these steps (the authors' mu).", ge=0)
        beta: float = fm.option(1.0, "The server's step.", gt=0)
        weights: Literal["uniform", "samples"] = fm.option(
            "uniform", "Weights of clients in the mean: equal, as in Algorithm 1, or by samples."
        )

    def begin(self, payload: fm.Record, state: fm.Record, ctx: fm.ClientContext) -> fm.Start:
        shared = fm.get_tree(payload, "model")
        return fm.Start(shared | {f"own.{name.removeprefix('shared.')}": value for name, value in shared.items()}, {})

    def phases(self, start: fm.Start, ctx: fm.ClientContext) -> list[fm.Phase]:
        rates = {"shared": fm.OptimizerSpec(lr=ctx.lr), "own": fm.OptimizerSpec(lr=1.0)}
        return [fm.Train(self.loss, ctx.task.local_epochs, optimizer=rates)]

    def loss(self, net: fm.Net, batch: fm.Batch, consts: fm.Consts) -> fm.Objective:
        options, bundle = self.options, cast(fm.Bundle, net)
        own_weights = dict(bundle["own"].named_parameters())
        shared_weights = dict(bundle["shared"].named_parameters())
        shared = [shared_weights[name].detach() for name in own_weights]
        own = [value.detach() for value in own_weights.values()]
        personal, ce = own, torch.zeros(())
        for _ in range(options.inner_steps):
            leaves = [value.detach().requires_grad_() for value in personal]
            logits = functional_call(bundle["own"], dict(zip(own_weights, leaves, strict=True)), (batch.x,))
            ce = batch.mean(fm.cross_entropy(logits, batch.y))
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
        return fm.Objective(ce.detach() + moved, {"ce": ce})

    def end(self, work: fm.Work, state: fm.Record, ctx: fm.ClientContext) -> tuple[fm.Record, fm.Record]:
        still = (fm.Role.BN_STAT, fm.Role.COUNTER, fm.Role.BUFFER)  # the shared net never runs, the private one does
        names = [n for n in work.tree if n.startswith("shared.") and ctx.task.roles[n] in still]
        moved = {name: work.tree[f"own.{name.removeprefix('shared.')}"] for name in names}
        return super().end(replace(work, tree=work.tree | moved), state, ctx)

    def aggregate(self, server: fm.Record, uploads: fm.Uploads, ctx: fm.ServerContext) -> fm.Record:
        mean, beta = self.mean(uploads, weights=self.options.weights), self.options.beta
        return {"model": fm.combine([fm.get_tree(server, "model"), mean], [1 - beta, beta]) if beta != 1 else mean}

    def predictors(self, server: fm.Record, state: fm.Record | None, ctx: fm.ServerContext) -> dict[str, fm.Predictor]:
        kind, name = ("global", "shared") if state is None else ("personal", "own")
        return {kind: fm.Predictor(self._full(server, state, ctx.task), lambda net, x: cast(fm.Bundle, net)[name](x))}
