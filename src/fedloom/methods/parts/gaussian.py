"""A linear head made from class Gaussians with one covariance: linear discriminant analysis (Fisher 1936; Rao 1948)."""

from __future__ import annotations

import torch
from torch import Tensor

from fedloom.core.tables import ClassTable
from fedloom.methods.parts.prototype_pull import UNKNOWN


def gaussian_head(means: ClassTable, covariance: Tensor, priors: Tensor) -> tuple[Tensor, Tensor]:
    """Return the head whose softmax is the posterior of the classes, for features z ~ N(mean_c, covariance).

    Row c is S^-1 m_c, its bias -1/2 m_c . S^-1 m_c + log prior_c. A class that nobody holds has a row of zeros and the
    bias `UNKNOWN`, so that it is never predicted. Solved in float64, through which gradients flow.

    Args:
        means: class means [C, d].
        covariance: S [d, d], symmetric and positive definite.
        priors: shares of the classes [C]; those of classes that are held are positive.

    Returns the rows [C, d] and the bias [C], float64. Raises `torch.linalg.LinAlgError` if S is singular.

    Example:
        >>> means = ClassTable(torch.tensor([[2.0, 0.0], [0.0, 0.0]]), torch.tensor([True, False]))
        >>> gaussian_head(means, 2 * torch.eye(2), torch.tensor([1.0, 0.0]))[0]
        tensor([[1., 0.],
                [0., 0.]], dtype=torch.float64)
    """
    values, held = means.values.double(), means.held
    solved: Tensor = torch.linalg.solve(covariance.double(), values.T)
    rows = torch.where(held.unsqueeze(1), solved.T, 0.0)
    log_priors = torch.where(held, priors.double(), 1.0).log()
    return rows, torch.where(held, log_priors - (values * rows).sum(1) / 2, UNKNOWN)


def shrunk(covariance: Tensor, share: float) -> Tensor:
    """Return (1 - share) S + share (tr S / d) I in float64, which is positive definite for every S but 0.

    Args:
        covariance: S [d, d], symmetric and positive semidefinite.
        share: of the multiple of the identity, in [0, 1].

    Example:
        >>> shrunk(torch.tensor([[3.0, 0.0], [0.0, 1.0]]), 0.5).diagonal()
        tensor([2.5000, 1.5000], dtype=torch.float64)
    """
    matrix = covariance.double()
    identity = torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)
    return (1 - share) * matrix + share * matrix.diagonal().mean() * identity


def conditioned(covariance: Tensor, largest: float) -> tuple[Tensor, float]:
    """Return a covariance that can be solved with, and the condition of S: the largest variance over the smallest.

    If the condition is above `largest`, the smaller variances, negative ones included, are raised to the largest one
    divided by it, and to 1e-12 at least. Otherwise S is returned as it is, and so is one that is not finite.

    Args:
        covariance: S [d, d], symmetric.
        largest: the condition that may stay.

    Example:
        >>> matrix, condition = conditioned(torch.diag(torch.tensor([4.0, 0.0])), 8.0)
        >>> matrix.diagonal(), condition
        (tensor([4.0000, 0.5000], dtype=torch.float64), inf)
    """
    matrix = covariance.double()
    if not matrix.isfinite().all():
        return matrix, torch.inf
    variances, axes = torch.linalg.eigh(matrix)
    smallest, greatest = float(variances[0]), float(variances[-1])
    condition = greatest / smallest if smallest > 0 else torch.inf
    if condition <= largest:
        return matrix, condition
    raised = variances.clamp(min=max(greatest / largest, 1e-12))
    return (axes * raised) @ axes.T, condition
