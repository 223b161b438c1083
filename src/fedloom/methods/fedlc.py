import torch

import fedloom.methods as fm


@fm.register
class FedLC(fm.Method):
    """FedLC: logits calibrated by the client's own class counts. Zhang et al., ICML 2022, arXiv 2209.00189.

    Local: CE of o_c - tau n_c^(-1/4), n_c the client's number of samples of class c. A class that it lacks is left out
    of the softmax. Another method of this name (Wang et al., ISPA 2022) is not this one."""

    class Options(fm.Options):
        tau: float = fm.option(
            1.0, "Strength of the calibration; 0 only leaves out classes that the client lacks.", ge=0
        )

    spec = fm.Spec(single_because="it leaves classes out of a softmax")

    def begin(self, payload: fm.Record, state: fm.Record, ctx: fm.ClientContext) -> fm.Start:
        start, counts = super().begin(payload, state, ctx), ctx.class_counts.double()
        # n^(-1/4) is the margin of a class; an absent class gets so low a logit that no gradient reaches it
        offset = torch.where(counts > 0, -self.options.tau * counts.clamp(min=1) ** -0.25, fm.ABSENT)
        return fm.Start(start.tree, {"offset": offset})

    def loss(self, net: fm.Net, batch: fm.Batch, consts: fm.Consts) -> fm.Objective:
        logits = net(batch.x)
        calibrated = logits + consts["offset"].to(logits.dtype)
        return fm.Objective.sum({"ce": batch.mean(fm.cross_entropy(calibrated, batch.y))})
