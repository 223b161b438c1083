"""Class Gaussians with one covariance, of a client's features: their estimate, and how far to trust them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from fedloom.core.tables import ClassTable
from fedloom.methods.parts.gaussian import gaussian_head, shrunk

_STEPS, _HALVINGS, _SMALL = 50, 40, 1e-7  # of the search in the unit box


class Gaussians(NamedTuple):
    """means: class means [C, d]. covariance: within classes [d, d]. Both float64."""

    means: Tensor
    covariance: Tensor

    @staticmethod
    def received(tables: Mapping[str, Tensor]) -> Gaussians:
        """The Gaussians among the tensors that a client received, "means" and "covariance"."""
        return Gaussians(tables["means"].double(), tables["covariance"].double())

    def mixed(self, other: Gaussians, shares: Tensor) -> Gaussians:
        """Return shares * these + (1 - shares) * the others; shares [2] of means and covariance, or [1] of both."""
        first, last = shares[0], shares[-1]
        means = first * self.means + (1 - first) * other.means
        return Gaussians(means, last * self.covariance + (1 - last) * other.covariance)

    def head(self, priors: Tensor, share: float, held: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rows [C, d] and the bias [C] of the head that they give.

        Args:
            priors: shares of the classes [C].
            share: of the identity in the covariance (`shrunk`).
            held: which classes can be predicted [C].
        """
        return gaussian_head(ClassTable(self.means, held), shrunk(self.covariance, share), priors)


def gaussians_of(z: Tensor, labels: Tensor, absent: Tensor, ridge: Tensor, fewest: int = 1) -> Gaussians:
    """Estimate class means and the covariance within classes, divided by the samples less one.

    Args:
        z: features [n, d], n of 1 or more.
        labels: of the features [n], int64.
        absent: means [C, d] of classes with fewer samples than `fewest`.
        ridge: what is added to the covariance [d, d].
        fewest: samples from which on a class has a mean of its own.
    """
    z, membership = z.double(), one_hot(labels, len(absent)).double()
    counts = membership.sum(0)
    means = membership.T @ z / counts.clamp(min=1).unsqueeze(1)
    apart = z - means[labels]
    covariance = apart.T @ apart / max(1, len(z) - 1) + ridge.double()
    return Gaussians(torch.where((counts >= fewest).unsqueeze(1), means, absent.double()), covariance)


def smoothed_shares(counts: Tensor, eps: float) -> Tensor:
    """Return (n_c / n + eps) / (1 + C eps), the class shares [C] in float64, for class counts [C]."""
    shares = counts.double() / counts.sum()
    return (shares + eps) / (1 + eps * len(counts))


def halves(labels: Tensor) -> Tensor | None:
    """Deal the samples of every class to two halves in turn, in stored order: 0 or 1, -1 for classes of one sample.

    None if no class has two.

    Example:
        >>> halves(torch.tensor([0, 2, 0, 2, 0, 1]))
        tensor([ 0,  0,  1,  1,  0, -1])
    """
    membership = one_hot(labels)
    place = (membership.cumsum(0) * membership).sum(1) - 1  # of a sample among those of its class
    half = torch.where(membership.sum(0)[labels] > 1, place % 2, -1)
    return None if bool((half < 0).all()) else half


def held_out_loss(
    z: Tensor, labels: Tensor, others: Gaussians, ridge: Tensor, head: Callable[[Gaussians], tuple[Tensor, Tensor]]
) -> Callable[[Tensor], Tensor] | None:
    """Return the loss of shares on the halves that the Gaussians were not estimated from; None if there are no halves.

    The loss is the sum over both halves of the mean cross-entropy, as a function of the shares ([1] or [2], float64)
    of the client's own Gaussians in the mixture.

    Args:
        z: the client's features [n, d].
        labels: of the features [n], int64.
        others: the Gaussians that are mixed in.
        ridge: what is added to own covariances [d, d].
        head: makes a head of Gaussians.
    """
    half = halves(labels)
    if half is None:
        return None
    folds = []
    for fold in (0, 1):
        inside, outside = (half >= 0) & (half != fold), half == fold
        estimate = gaussians_of(z[inside], labels[inside], others.means, ridge)
        folds.append((estimate, z[outside].double(), labels[outside]))

    def loss(shares: Tensor) -> Tensor:
        losses = []
        for estimate, features, targets in folds:
            rows, bias = head(estimate.mixed(others, shares))
            losses.append(cross_entropy(features @ rows.T + bias, targets))
        return torch.stack(losses).sum()

    return loss


def best_shares(
    z: Tensor,
    labels: Tensor,
    others: Gaussians,
    ridge: Tensor,
    head: Callable[[Gaussians], tuple[Tensor, Tensor]],
    start: Tensor,
) -> Tensor:
    """Return the shares of least `held_out_loss`, searched from `start`; 0 if no class has two samples.

    Args:
        z: the client's features [n, d].
        labels: of the features [n], int64.
        others: the Gaussians that are mixed in.
        ridge: what is added to own covariances [d, d].
        head: makes a head of Gaussians.
        start: where the search begins, [1] for one share or [2], float64.
    """
    loss = held_out_loss(z, labels, others, ridge, head)
    finite = bool(z.isfinite().all() and others.means.isfinite().all() and others.covariance.isfinite().all())
    return least_in_unit_box(loss, start) if loss is not None and finite else torch.zeros_like(start)


def least_in_unit_box(function: Callable[[Tensor], Tensor], start: Tensor) -> Tensor:
    """Descend from `start` [n], float64, to a minimum of a smooth function over [0, 1]^n, by projected Newton steps.

    Args:
        function: maps [n] to a scalar, twice differentiable.
        start: where to begin, within the box.

    Example:
        >>> least_in_unit_box(lambda x: (x - torch.tensor([0.25, 3.0])).square().sum(), torch.tensor([0.5, 0.5]))
        tensor([0.2500, 1.0000])
    """
    point = start.clone()
    for _ in range(_STEPS):
        leaf = point.detach().requires_grad_()
        value = function(leaf)
        (slope,) = torch.autograd.grad(value, leaf)
        curvature: Tensor = torch.autograd.functional.hessian(function, point)  # type: ignore[no-untyped-call]
        held = ((point <= 0) & (slope > 0)) | ((point >= 1) & (slope < 0))
        slope = torch.where(held, 0.0, slope)
        free = (~held).to(slope.dtype)
        matrix = curvature * free.outer(free) + torch.diag(1 - free)
        if not (matrix.isfinite().all() and slope.isfinite().all()):  # no way down can be told
            return point
        curvatures = torch.linalg.eigvalsh(matrix)
        least = (1e-12 * curvatures.abs().max()).clamp(min=1e-6)  # beside large ones, 1e-6 would be lost in rounding
        matrix = matrix + torch.eye(len(point), dtype=matrix.dtype) * (least - curvatures[0]).clamp(min=0)
        step = torch.linalg.solve(matrix, slope)
        for _ in range(_HALVINGS):
            moved: Tensor = (point - step).clamp(0, 1)
            if function(moved) < value.detach():
                break
            step = step / 2
        else:
            return point
        if float((moved - point).abs().max()) < _SMALL:
            return moved
        point = moved
    return point
