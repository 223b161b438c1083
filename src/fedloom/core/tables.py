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

    def mean_over_clients(self, weights: Tensor | None = None) -> ClassTable:
        """[m, C, d] -> [C, d]: the mean over the clients that hold the class.

        weights: [m], or [m, C]; None weighs all alike.
        """
        if weights is None:
            return ClassTable.from_sums(self.values.sum(0), self.held.sum(0))
        each = weights if weights.dim() == 2 else weights.unsqueeze(1)
        kept = torch.where(self.held, each, 0).to(self.values.dtype)
        return ClassTable.from_sums((kept.unsqueeze(2) * self.values).sum(0), kept.sum(0))

    def or_else(self, other: ClassTable) -> ClassTable:
        """This table's rows where it holds the class, `other`'s elsewhere."""
        values = torch.where(self.held.unsqueeze(-1), self.values, other.values)
        return ClassTable(values, self.held | other.held)
