import torch

import fedloom.methods as fm


@fm.register
class MOON(fm.Method):
    """MOON: features near the received model's, far from the client's last. Li, He, Song, CVPR 2021, arXiv 2103.16257.

    Local: CE - mu log(e^(cos(z, z_g) / tau) / (e^(cos(z, z_g) / tau) + e^(cos(z, z_p) / tau))) (Eq. 3), z_g and z_p the
    features by the received and by the client's last model, in evaluation mode, without gradient. A client without a
    last model trains on CE alone. mu is the paper's for CIFAR-10; it has 1 for CIFAR-100."""

    spec = fm.Spec(features=True, labels="multi")

    class Options(fm.Options):
        mu: float = fm.option(5.0, "Weight of the contrast; 0 is FedAvg.", ge=0)
        tau: float = fm.option(0.5, "Temperature of the contrast.", gt=0)

    def begin(self, payload: fm.Record, state: fm.Record, ctx: fm.ClientContext) -> fm.Start:
        start = super().begin(payload, {}, ctx)
        return fm.Start(start.tree, {"received": start.tree} | state)

    def loss(self, net: fm.Net, batch: fm.Batch, consts: fm.Consts) -> fm.Objective:
        z = net.features(batch.x)
        terms = {"ce": batch.mean(fm.cross_entropy(net.head(z), batch.y))}
        if "previous" in consts:
            with torch.no_grad():
                anchors = [net.functional.features(consts[name], batch.x) for name in ("received", "previous")]
            scores = torch.stack([torch.cosine_similarity(z, anchor) for anchor in anchors], 1) / self.options.tau
            terms["contrast"] = self.options.mu * batch.mean(-torch.log_softmax(scores, 1)[:, 0])
        return fm.Objective.sum(terms)

    def end(self, work: fm.Work, state: fm.Record, ctx: fm.ClientContext) -> tuple[fm.Record, fm.Record]:
        payload, _ = super().end(work, {}, ctx)
        return payload, {"previous": work.tree}
