"""What tests share that hold a method to the worked example of its specification. Nothing here is checked itself."""

import torch
from torch import Tensor

from fedloom.core.tables import ClassTable
from fedloom.methods.contract.phases import Batch
from support import CLASSES, Precision


class Noting(Batch):
    """A batch that notes the per-sample values which a loss reduces: `noted` [B] and which of them count."""

    noted: tuple[Tensor, Tensor | None] | None

    def mean(self, values, among=None):
        self.noted = values, among
        return super().mean(values, among)

    def per_sample(self) -> list[float | None]:
        values, among = self.noted
        counts = torch.ones(len(values), dtype=torch.bool) if among is None else among
        return [float(v) if c else None for v, c in zip(values, counts, strict=True)]


def samplewise(ours, golden, atol: float) -> bool:
    """Per-sample lists agree; `None` where, and only where, the golden file drops the sample."""
    return len(ours) == len(golden) and all(
        a is None if b is None else a is not None and abs(a - b) <= atol for a, b in zip(ours, golden, strict=True)
    )


def assert_table(table: ClassTable, golden: dict, precision: Precision) -> None:
    """`table` [C, d] holds exactly the classes that `golden` names, with its values."""
    assert table.held.tolist() == [str(j) in golden for j in range(CLASSES)]
    for label, row in golden.items():
        assert precision.matches(table.values[int(label)], row), (label, table.values[int(label)], row)
