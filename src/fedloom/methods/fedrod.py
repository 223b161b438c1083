import torch
from torch import Tensor, nn

import fedloom.methods as fm
from fedloom.nets.net import deep_copy


@fm.register
class FedRoD(fm.Method):
    """FedRoD: a shared head with a class-balanced loss, and a private one on top. Chen & Chao, ICLR 2022, arXiv
    2107.00778, the linear variant.

    Local: CE(o + gamma log n_c) + CE(sg[o] + private(sg[z])), o the shared head's logits, n_c the client's samples of
    class c, sg without gradient. Predictors: "global" is the shared head, "personal" the sum of both. Preset `fedco2`
    has plain cross-entropy for the shared head, as that paper's code."""

    spec = fm.Spec(private=frozenset({fm.Role.EXTRA}), features=True, single_because="it balances a softmax")

    class Options(fm.Options):
        balanced: bool = fm.option(True, "Balanced softmax for the shared head, or plain cross-entropy.")
        gamma: float = fm.option(
            1.0, "Strength of the balance; at 0 only classes that the client lacks are left out.", ge=0
        )

    def extra(self, net: fm.Net) -> nn.Module:
        return deep_copy(net.head)

    def begin(self, payload: fm.Record, state: fm.Record, ctx: fm.ClientContext) -> fm.Start:
        start, counts = super().begin(payload, state, ctx), ctx.class_counts.double()
        # balanced softmax: log n_c is added to logits while the generic head trains
        offset = torch.where(counts > 0, self.options.gamma * counts.clamp(min=1).log(), fm.ABSENT)
        return fm.Start(start.tree, {"offset": offset})

    def loss(self, net: fm.Net, batch: fm.Batch, consts: fm.Consts) -> fm.Objective:
        z = net.features(batch.x)
        logits = net.head(z)
        balanced = logits + consts["offset"].to(logits.dtype) if self.options.balanced else logits
        return fm.Objective.sum(
            {
                "ce": batch.mean(fm.cross_entropy(balanced, batch.y)),
                # the personal head learns the rest: no gradient returns to the body or to the generic head
                "ce_private": batch.mean(fm.cross_entropy(logits.detach() + net.extra(z.detach()), batch.y)),
            }
        )

    def predictors(self, server: fm.Record, state: fm.Record | None, ctx: fm.ServerContext) -> dict[str, fm.Predictor]:
        tree = self._full(server, state, ctx.task)
        return {"global": fm.Predictor(tree)} if state is None else {"personal": fm.Predictor(tree, both_heads)}


def both_heads(net: fm.Net, x: Tensor) -> Tensor:
    """Return the sum of the shared and the private head's logits [B, C]."""
    z = net.features(x)
    logits: Tensor = net.head(z) + net.extra(z)
    return logits
