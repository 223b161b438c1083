"""Class tables: one row per class and a mask of the classes for which the row means something.

A class that nobody holds is masked. Its row is zero in memory, but no arithmetic here ever reads it as a value,
and it does not travel. Server-side arithmetic is float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class ClassTable:
    """`values` [..., C, d] and `held` [..., C] (bool). Leading dimensions, where present, number the clients.

    Rows with `held` False are zero. `ClassTable` is a value: its tensors are not changed in place.
    """

    values: Tensor
    held: Tensor

    def __post_init__(self) -> None:
        if self.held.dtype != torch.bool or self.values.shape[:-1] != self.held.shape:
            raise ValueError(
                f"a class table needs values [..., C, d] and a bool mask [..., C], got values "
                f"{tuple(self.values.shape)} and {self.held.dtype} {tuple(self.held.shape)}"
            )

    @staticmethod
    def from_sums(sums: Tensor, counts: Tensor) -> ClassTable:
        """Class means from class sums [..., C, d] and counts [..., C]; classes with count 0 are not held."""
        held = counts > 0
        values = sums / torch.where(held, counts, torch.ones_like(counts)).unsqueeze(-1)
        return ClassTable(torch.where(held.unsqueeze(-1), values, torch.zeros_like(values)), held)

    @staticmethod
    def stack(tables: Sequence[ClassTable]) -> ClassTable:
        """m tables [C, d] -> one table [m, C, d]."""
        return ClassTable(torch.stack([t.values for t in tables]), torch.stack([t.held for t in tables]))

    def to(self, dtype: torch.dtype) -> ClassTable:
        """The same table in another dtype."""
        return ClassTable(self.values.to(dtype), self.held)

    def only(self, classes: Tensor) -> ClassTable:
        """The same table with the rows of `classes` [..., C] (bool) alone."""
        held = self.held & classes
        return ClassTable(torch.where(held.unsqueeze(-1), self.values, torch.zeros_like(self.values)), held)

    def mean_over_clients(self) -> ClassTable:
        """[m, C, d] -> [C, d]: the mean over the clients that hold the class."""
        return ClassTable.from_sums(self.values.sum(0), self.held.sum(0))

    def or_else(self, other: ClassTable) -> ClassTable:
        """This table's rows where it holds the class, `other`'s elsewhere."""
        values = torch.where(self.held.unsqueeze(-1), self.values, other.values)
        return ClassTable(values, self.held | other.held)


def client_distances(table: ClassTable, p: float = 2.0) -> Tensor:
    """|row_k - row_q|_p between the clients' rows of each class: [m, C, d] -> [C, m, m]."""
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
    """sigmoid(u_k) / sum_i sigmoid(u_i) over the last axis, finite for every u (softmax of log sigmoid)."""
    return torch.softmax(torch.nn.functional.logsigmoid(u), dim=-1)


def shares(amounts: Tensor) -> Tensor:
    """amounts [m] / their sum, in float64; all equal where the sum is 0."""
    amounts = amounts.double()
    total = amounts.sum()
    return amounts / total if total > 0 else torch.full_like(amounts, 1 / len(amounts))


def cosine(a: Tensor, b: Tensor) -> Tensor:
    """a.b / max(|a| |b|, 1e-12) over the last axis, with broadcasting."""
    norms: Tensor = a.norm(dim=-1) * b.norm(dim=-1)
    return (a * b).sum(-1) / norms.clamp(min=1e-12)


def label_discrepancy(counts: Tensor) -> Tensor:
    """Distance of label mixes [m, C] (counts) from uniform: sqrt(1/2 sum_j (n_kj / n_k - 1/C)^2), in [0, 1)."""
    shares = counts.double() / counts.sum(-1, keepdim=True).clamp(min=1).double()
    return torch.sqrt(0.5 * (shares - 1 / counts.shape[-1]).square().sum(-1))
