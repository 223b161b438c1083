import torch
from torch import Tensor

import fedloom.methods as fm


@fm.register
class FedNTD(fm.Method):
    """FedNTD: the received model teaches the classes that are not the label. Lee et al., NeurIPS 2022, arXiv
    2106.03097.

    Local: CE + beta tau^2 KL(q^g || q), q = softmax(o / tau) over the C - 1 classes that are not the label, q^g that of
    the weights received, in evaluation mode, without gradient."""

    class Options(fm.Options):
        beta: float = fm.option(1.0, "Weight of the distillation; 0 is FedAvg.", ge=0)
        tau: float = fm.option(1.0, "Temperature of the distillation.", gt=0)

    spec = fm.Spec(single_because="it distils a softmax without the true class")

    def begin(self, payload: fm.Record, state: fm.Record, ctx: fm.ClientContext) -> fm.Start:
        start = super().begin(payload, state, ctx)
        return fm.Start(start.tree, {"received": start.tree})

    def loss(self, net: fm.Net, batch: fm.Batch, consts: fm.Consts) -> fm.Objective:
        tau, logits = self.options.tau, net(batch.x)
        with torch.no_grad():
            taught = net.functional.logits(consts["received"], batch.x)
        others = [not_true(o, batch.y) / tau for o in (taught, logits)]
        distilled = self.options.beta * tau**2 * batch.mean(fm.kl_divergence(*others))
        return fm.Objective.sum({"ce": batch.mean(fm.cross_entropy(logits, batch.y)), "not_true": distilled})


def not_true(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the logits [B, C - 1] of the classes that are not the label, in their order."""
    classes = torch.arange(logits.shape[1] - 1, device=logits.device)
    return logits.gather(1, classes + (classes >= labels.unsqueeze(1)).long())
