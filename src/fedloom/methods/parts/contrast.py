"""Contrast between samples and class prototypes, by matrix products: no tensor of size batch x prototypes x d."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from fedloom.methods.phases import Batch, Consts


class Scaling(Protocol):
    """The temperature, and the normaliser U: per batch, over the client's data set (a statistic "scale"), or none."""

    @property
    def scale(self) -> str: ...

    @property
    def detach_scale(self) -> bool: ...

    @property
    def tau(self) -> float: ...


def unit(rows: Tensor) -> Tensor:
    """rows [Q, d] divided by their norms; a row without length stays zero, and gets no gradient.

    (Clamping a product of norms at 1e-12 gives the same cosines, but gradients of 1e12 for features that died.)
    """
    norms = rows.norm(dim=1, keepdim=True)
    return torch.where(norms > 1e-12, rows / torch.where(norms > 1e-12, norms, 1.0), 0.0)


def mean_distances(z: Tensor, cosines: Tensor, lengths: Tensor, batch: Batch) -> Tensor:
    """U: mean over the batch of |z_i - prototype_q|_2, clamped at 1e-6: [Q].

    From the cosines [B, Q] that are there anyway and the prototypes' lengths [Q], without another matrix product.
    """
    norms = z.norm(dim=1, keepdim=True)
    squares = torch.addcmul(lengths.square() + norms.square(), cosines, norms * lengths, value=-2)
    return batch.mean(squares.clamp(min=1e-12).sqrt()).clamp(min=1e-6)


def scaled_similarities(z: Tensor, batch: Batch, consts: Consts, options: Scaling) -> Tensor:
    """s / tau [B, Q]: cosines of z [B, d] to every prototype, divided by that prototype's U and the temperature.

    consts: "directions" [Q, d], the prototypes at length 1, their "lengths" [Q], and "scale" [Q] where U is the
    data set's.
    """
    cosines: Tensor = unit(z) @ consts["directions"].T
    with torch.set_grad_enabled(torch.is_grad_enabled() and not options.detach_scale):
        factors = similarity_factors(z, cosines, batch, consts, options)
    return cosines * factors


def similarity_factors(z: Tensor, cosines: Tensor, batch: Batch, consts: Consts, options: Scaling) -> Tensor:
    """1 / (U tau) of every prototype: [Q], or [1] without U."""
    if options.scale == "none":
        return cosines.new_full((1,), 1 / options.tau)
    if options.scale == "dataset":
        scale: Tensor = consts["scale"].clamp(min=1e-6)
        return 1 / (scale * options.tau)
    return 1 / (mean_distances(z, cosines, consts["lengths"], batch) * options.tau)


def log_sum_exp(scores: Tensor, among: Tensor) -> Tensor:
    """log sum_q exp(scores[:, q]) over the q where `among` [B, Q] or [Q]: [B]; finite, but meaningless, without any.

    What is left out is set 60 below the smallest score: it adds e^-60 of a term (nothing in float64), keeps the
    gradients of rows without any member at 0 instead of NaN, and spares exp its slow path for infinities.
    """
    nothing = scores.detach().amin(dim=1, keepdim=True) - 60
    return torch.logsumexp(torch.where(among, scores, nothing), dim=1)


def prototype_contrast(z: Tensor, batch: Batch, consts: Consts, options: Scaling) -> tuple[Tensor, Tensor]:
    """-log( sum over own-class positives of exp(s / tau) / sum over the class's pool of exp(s / tau) ), s as above.

    consts, by class: "members" [C, K] positions of its prototypes, "positives" [C, K] bool which of them attract,
    "pool" [C, Q] bool what stands in the denominator, the positives included; "defined" [C] bool has a positive.
    Returns losses [B] (finite, but meaningless where undefined) and defined [B] (the sample's class has a positive).
    """
    own, members, pool = consts["positives"][batch.y], consts["members"][batch.y], consts["pool"][batch.y]
    if options.scale == "batch" and not options.detach_scale:  # U has a gradient, too
        scores = scaled_similarities(z, batch, consts, options)
        return contrast_of(scores, members, own, pool), consts["defined"][batch.y]
    with torch.no_grad():
        directions = unit(z)
        cosines = directions @ consts["directions"].T
        factors = similarity_factors(z, cosines, batch, consts, options)
    inputs = (z, directions, cosines, factors, consts["directions"], members, own, pool)
    losses, _ = _Contrast.apply(*inputs)  # type: ignore[no-untyped-call]
    return losses, consts["defined"][batch.y]


def contrast_of(scores: Tensor, members: Tensor, own: Tensor, pool: Tensor) -> Tensor:
    """`prototype_contrast` of scores [B, Q]: members, own [B, K] and pool [B, Q] by sample; [B]."""
    return -log_sum_exp(_log_softmax(scores, pool).gather(1, members), own)


def _log_softmax(scores: Tensor, pool: Tensor) -> Tensor:
    nothing = scores.detach().amin(dim=1, keepdim=True) - 60
    return torch.log_softmax(torch.where(pool, scores, nothing), dim=1)


class _Contrast(torch.autograd.Function):
    """`contrast_of` the cosines [B, Q] times factors, with its gradient written out: half the time of autograd's.

    d loss / d score = softmax over the pool - softmax over the positives; d cosine_q / d z = (r_q - cosine_q u) / |z|
    with u = z / |z| and r_q the prototype's direction.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        z: Tensor,
        directions: Tensor,
        cosines: Tensor,
        factors: Tensor,
        prototypes: Tensor,
        members: Tensor,
        own: Tensor,
        pool: Tensor,
    ) -> tuple[Tensor, Tensor]:
        logs = _log_softmax(cosines * factors, pool)
        return -log_sum_exp(logs.gather(1, members), own), logs

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
        losses, logs = output
        ctx.mark_non_differentiable(logs)
        ctx.save_for_backward(*inputs, losses, logs)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        z, directions, _, factors, prototypes, members, own, pool, losses, logs = ctx.saved_tensors
        attracted = torch.where(own, (logs.gather(1, members) + losses.unsqueeze(1)).exp(), 0.0)
        repelled = torch.where(pool, logs.exp(), 0.0)
        pulls = repelled.scatter_add(1, members, -attracted) * factors  # [B, Q] d loss / d cosine
        moves = pulls @ prototypes
        along = (moves * directions).sum(1, keepdim=True)
        norms = z.norm(dim=1, keepdim=True)
        scale = torch.where(norms > 1e-12, upstream.unsqueeze(1) / norms, 0.0)
        return ((moves - along * directions) * scale, *(None,) * 7)
