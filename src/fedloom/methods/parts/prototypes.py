"""Server-side arithmetic of class prototypes [m, C, d] that FedSC and FedSKC share: neighbours, weights, distances."""

from __future__ import annotations

import torch
from torch import Tensor

from fedloom.core.tables import ClassTable


def client_distances(table: ClassTable, p: float = 2.0) -> Tensor:
    """Return |row_k - row_q|_p between the clients' rows of each class: [C, m, m].

    Args:
        table: rows of m clients [m, C, d].
        p: order of the norm.
    """
    rows = table.values.transpose(0, 1)
    return torch.cdist(rows, rows, p=p, compute_mode="donot_use_mm_for_euclid_dist")


def nearest_holders(distance: Tensor, held: Tensor, neighbours: int) -> Tensor:
    """Who is merged with whom: a mask [C, m, m], entry (j, k, q) true if q is k itself or one of its nearest.

    `distance` [C, m, m] and `held` [m, C]. For class j and holder k these are k and the min(neighbours, |H_j| - 1)
    other holders of j with the smallest distance; ties go to the smaller client position. Rows of clients that do
    not hold j are all false. The relation is not symmetric.
    """
    holds = held.T  # [C, m]
    clients = holds.shape[1]
    pairs = holds.unsqueeze(2) & holds.unsqueeze(1)
    itself = torch.eye(clients, dtype=torch.bool)
    # Differences below 1e-12 are rounding, not order: ties must go by client, on every machine.
    key = torch.round(distance.double(), decimals=12)
    key = key.masked_fill(~pairs, torch.inf).masked_fill(itself & pairs, -torch.inf)
    rank = key.argsort(dim=2, stable=True).argsort(dim=2, stable=True)
    return (rank <= neighbours) & pairs


def merge_neighbours(table: ClassTable, merged_with: Tensor) -> ClassTable:
    """Mean of each client's row with its neighbours' rows.

    `table` [m, C, d], `merged_with` [C, m, m] from `nearest_holders`. Divides by the number of rows actually merged
    (not by a nominal M + 1), reads the original rows only.
    """
    weights = merged_with.to(table.values.dtype)
    sums = torch.einsum("jkq,qjd->kjd", weights, table.values)
    return ClassTable.from_sums(sums, merged_with.sum(2).T)


def sigmoid_weights(u: Tensor) -> Tensor:
    """sigmoid(u_k) / sum_i sigmoid(u_i) over the last axis, finite for every u (softmax of log sigmoid).

    Example:
        >>> sigmoid_weights(torch.tensor([0.0, 0.0, -1000.0]))
        tensor([0.5000, 0.5000, 0.0000])
    """
    return torch.softmax(torch.nn.functional.logsigmoid(u), dim=-1)


def shares(amounts: Tensor) -> Tensor:
    """amounts [m] / their sum, in float64; all equal where the sum is 0.

    Example:
        >>> shares(torch.tensor([30, 10]))
        tensor([0.7500, 0.2500], dtype=torch.float64)
    """
    amounts = amounts.double()
    total = amounts.sum()
    return amounts / total if total > 0 else torch.full_like(amounts, 1 / len(amounts))


def cosine(a: Tensor, b: Tensor) -> Tensor:
    """a.b / max(|a| |b|, 1e-12) over the last axis, with broadcasting.

    Example:
        >>> cosine(torch.tensor([[1.0, 0.0], [1.0, 1.0]]), torch.tensor([2.0, 0.0]))
        tensor([1.0000, 0.7071])
    """
    norms: Tensor = a.norm(dim=-1) * b.norm(dim=-1)
    return (a * b).sum(-1) / norms.clamp(min=1e-12)


def label_discrepancy(counts: Tensor) -> Tensor:
    """Distance of label mixes [m, C] (counts) from uniform: sqrt(1/2 sum_j (n_kj / n_k - 1/C)^2), in [0, 1).

    Example:
        >>> label_discrepancy(torch.tensor([[5, 5], [10, 0]]))
        tensor([0.0000, 0.5000], dtype=torch.float64)
    """
    shares = counts.double() / counts.sum(-1, keepdim=True).clamp(min=1).double()
    return torch.sqrt(0.5 * (shares - 1 / counts.shape[-1]).square().sum(-1))
