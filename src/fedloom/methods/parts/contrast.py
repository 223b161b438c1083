"""Contrast between samples and class prototypes, by matrix products: no tensor of size batch x prototypes x d."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from fedloom.methods.phases import Batch, Consts


class Scaling(Protocol):
    """The options of the normaliser U: per batch, over the client's data set (a statistic "scale"), or none."""

    @property
    def scale(self) -> str: ...

    @property
    def detach_scale(self) -> bool: ...


def unit(rows: Tensor) -> Tensor:
    """rows [Q, d] divided by their norms; a row without length stays zero, and gets no gradient.

    (Clamping a product of norms at 1e-12 gives the same cosines, but gradients of 1e12 for features that died.)
    """
    norms = rows.norm(dim=1, keepdim=True)
    return torch.where(norms > 1e-12, rows / torch.where(norms > 1e-12, norms, 1.0), 0.0)


def mean_distances(z: Tensor, prototypes: Tensor, batch: Batch) -> Tensor:
    """U: mean over the batch of |z_i - prototype_q|_2, clamped at 1e-6: [Q]."""
    return batch.mean(torch.cdist(z, prototypes)).clamp(min=1e-6)


def scaled_similarities(z: Tensor, batch: Batch, consts: Consts, options: Scaling) -> Tensor:
    """s [B, Q]: cosines of z [B, d] to every prototype, divided by that prototype's U.

    consts: "prototypes" [Q, d], "directions" (the same at length 1), and "scale" [Q] where U is the data set's.
    """
    similarities: Tensor = unit(z) @ consts["directions"].T
    if options.scale == "none":
        return similarities
    if options.scale == "dataset":
        scale: Tensor = consts["scale"].clamp(min=1e-6)
    else:
        with torch.set_grad_enabled(not options.detach_scale):
            scale = mean_distances(z, consts["prototypes"], batch)
    return similarities / scale


def log_sum_exp(scores: Tensor, among: Tensor) -> Tensor:
    """log sum_q exp(scores[:, q]) over the q where `among` [B, Q] or [Q]: [B]; finite, but meaningless, without any.

    What is left out is set 60 below the smallest score: it adds e^-60 of a term (nothing in float64), keeps the
    gradients of rows without any member at 0 instead of NaN, and spares exp its slow path for infinities.
    """
    nothing = scores.detach().amin(dim=1, keepdim=True) - 60
    return torch.logsumexp(torch.where(among, scores, nothing), dim=1)


def prototype_contrast(
    scores: Tensor, owner: Tensor, positives: Tensor, negatives: Tensor, batch: Batch, reduce: str = "sum"
) -> tuple[Tensor, Tensor]:
    """-log( sum over own-class positives of exp(s) / (that + sum over other classes' negatives of exp(s)) ).

    scores [B, Q] (already divided by the temperature), owner [Q] class of each prototype; positives, negatives [Q]
    bool: which prototypes can be a positive of their class, and a negative of the others.
    reduce: "sum" over own-class positives, or "mean_exp" (their mean, without the advantage of many holders).
    Returns losses [B] (0 where undefined) and defined [B] (the sample's class has a positive).
    """
    same = owner == batch.y.unsqueeze(1)
    own, others = same & positives, ~same & negatives
    defined = own.any(dim=1)
    positive = log_sum_exp(scores, own)
    if reduce == "mean_exp":
        positive = positive - own.sum(1).clamp(min=1).to(scores.dtype).log()
    losses = log_sum_exp(scores, own | others) - positive
    return torch.where(defined, losses, torch.zeros_like(losses)), defined
