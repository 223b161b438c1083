"""Class tables: one row per class, and a mask of the classes that at least one client holds.

The row of any other class is zero, never read and never sent. The server's arithmetic is float64."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class ClassTable:
    """`values` [..., C, d] and `held` [..., C] (bool); leading dimensions are clients. Rows of classes that are not
    held are zero. Tensors are not changed in place."""

    values: Tensor
    held: Tensor

    def __post_init__(self) -> None:
        if self.held.dtype != torch.bool or self.values.shape[:-1] != self.held.shape:
            raise ValueError(
                f"a class table needs values [..., C, d] and a bool mask [..., C], got values "
                f"{tuple(self.values.shape)} and {self.held.dtype} {tuple(self.held.shape)}"
            )

    @staticmethod
    def from_sums(sums: Tensor, counts: Tensor) -> "ClassTable":
        """Return class means from class sums [..., C, d] and counts [..., C]; classes with count 0 are not held."""
        held = counts > 0
        values = sums / torch.where(held, counts, torch.ones_like(counts)).unsqueeze(-1)
        return ClassTable(torch.where(held.unsqueeze(-1), values, torch.zeros_like(values)), held)

    @staticmethod
    def stack(tables: "Sequence[ClassTable]") -> "ClassTable":
        """Stack m tables [C, d] into one table [m, C, d]."""
        return ClassTable(torch.stack([t.values for t in tables]), torch.stack([t.held for t in tables]))

    def to(self, dtype: torch.dtype) -> "ClassTable":
        return ClassTable(self.values.to(dtype), self.held)

    def keep_classes(self, classes: Tensor) -> "ClassTable":
        """Return the table without the rows outside the mask `classes` [..., C] (bool)."""
        held = self.held & classes
        return ClassTable(torch.where(held.unsqueeze(-1), self.values, torch.zeros_like(self.values)), held)

    def mean_over_clients(self, weights: Tensor | None = None) -> "ClassTable":
        """Average a table [m, C, d] over the clients that hold the class -> [C, d], by weights [m] or [m, C]."""
        if weights is None:
            return ClassTable.from_sums(self.values.sum(0), self.held.sum(0))
        class_weights = weights if weights.dim() == 2 else weights.unsqueeze(1)
        held_weights = torch.where(self.held, class_weights, 0).to(self.values.dtype)
        return ClassTable.from_sums((held_weights.unsqueeze(2) * self.values).sum(0), held_weights.sum(0))

    def fill_missing(self, fallback: "ClassTable") -> "ClassTable":
        """Return the table with the rows of `fallback` for classes that are not held."""
        values = torch.where(self.held.unsqueeze(-1), self.values, fallback.values)
        return ClassTable(values, self.held | fallback.held)
