import torch

import fedloom.methods as fm


@fm.register
class FedRS(fm.Method):
    """FedRS: a restricted softmax for classes that a client lacks. Li, Zhan, KDD 2021, 10.1145/3447548.3467254.

    Local: CE of s_c o_c, s_c = 1 for a class that the client holds and alpha for one that it lacks. So the row of a
    missing class gets alpha times the gradient. Tests take the plain logits."""

    class Options(fm.Options):
        alpha: float = fm.option(
            0.5, "Factor of the logits of classes that the client lacks. With 1 the method is FedAvg.", ge=0
        )

    spec = fm.Spec(single_because="it restricts a softmax of classes")

    def begin(self, payload: fm.Record, state: fm.Record, ctx: fm.ClientContext) -> fm.Start:
        start = super().begin(payload, state, ctx)
        return fm.Start(start.tree, {"scale": torch.where(ctx.class_counts > 0, 1.0, self.options.alpha)})

    def loss(self, net: fm.Net, batch: fm.Batch, consts: fm.Consts) -> fm.Objective:
        logits = net(batch.x)
        restricted = logits * consts["scale"].to(logits.dtype)
        return fm.Objective.sum({"ce": batch.mean(fm.cross_entropy(restricted, batch.y))})
