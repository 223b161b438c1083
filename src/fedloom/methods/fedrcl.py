import torch
from torch import Tensor
from torch.nn.functional import normalize, softplus

import fedloom.methods as fm
from fedloom.methods.parts.contrast import same_and_other

NONE = 2.0  # no cosine: stands where there is no partner
FAR = -1e4  # below every cosine: stands where there is no negative
NEGATIVES = 2


@fm.register
class FedRCL(fm.Method):
    """FedRCL: supervised contrast at several depths, without features of one class collapsing. Seo et al., CVPR 2024,
    arXiv 2401.04928.

    Local: CE + mean over levels (`Net.levels`) of contrast + beta penalty, of cosines in a batch: contrast = -log(e^(p
    / tau) / (e^(p / tau) + sum_n e^(n / tau))), p the least similar sample of the class (itself allowed), n the two
    most similar of others; penalty = -log(e^(1 / tau) / (e^(1 / tau) + e^(q / tau))), q the least similar other sample
    of the class, -1 where it is below the threshold."""

    spec = fm.Spec(features=True, labels="multi")

    class Options(fm.Options):
        weight: float = fm.option(1.0, "Weight of both terms relative to cross-entropy; 0 is FedAvg.", ge=0)
        tau: float = fm.option(0.05, "Temperature of the cosines.", gt=0)
        beta: float = fm.option(1.0, "Weight of the penalty relative to the contrast.", ge=0)
        threshold: float = fm.option(0.7, "Cosine below which a pair is not penalised.", ge=-1, le=1)

    def loss(self, net: fm.Net, batch: fm.Batch, consts: fm.Consts) -> fm.Objective:
        options = self.options
        levels, z = net.levels(batch.x)
        by_level = [relaxed_contrast(level, batch, options.tau, options.threshold) for level in levels]
        mean = batch.by_label(z)[1].mean
        contrast, penalty = (torch.stack([mean(t) for t in ts]).mean() for ts in zip(*by_level, strict=True))
        contrasts = {"contrast": options.weight * contrast, "penalty": options.weight * options.beta * penalty}
        return fm.Objective.sum({"ce": batch.mean(fm.cross_entropy(net.head(z), batch.y)), **contrasts})


def relaxed_contrast(level: Tensor, batch: fm.Batch, tau: float, threshold: float) -> tuple[Tensor, Tensor]:
    """Return contrast and penalty [B] of the samples of a `batch`, or its rows by label, for a `level` [B, c, ...]."""
    directions = normalize(level.flatten(2).mean(2) if level.dim() > 2 else level, dim=1)
    cosines, (is_same, is_other) = batch.by_label(directions @ directions.T)[0], same_and_other(batch)
    if batch.mask is not None:
        is_same, is_other = is_same & batch.mask, is_other & batch.mask
    positive = cosines.masked_fill(~is_same, NONE).amin(1)
    negatives = cosines.masked_fill(~is_other, FAR).topk(min(NEGATIVES, len(batch.y)), 1).values
    scores = torch.cat([positive.unsqueeze(1), negatives], 1) / tau
    others = batch.by_label(~torch.eye(len(batch.y), dtype=torch.bool, device=cosines.device))[0]
    partner = cosines.masked_fill(~(is_same & others), NONE).amin(1)
    partner = torch.where((partner < threshold) | (partner == NONE), -1.0, partner)
    return -torch.log_softmax(scores, 1)[:, 0], softplus((partner - 1) / tau)
