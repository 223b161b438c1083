"""Statistics that a pass or a training phase gathers of tensors that a method names.

`of` is a function of the net in a `Collect` phase and in `Train(refresh=...)`, the name of a tap of the loss in
`Train(collect=...)`. A plug-in's own statistic is a frozen dataclass with the same field and the same two functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import torch
from torch import Tensor

from fedloom.core.errors import ConfigError
from fedloom.core.tables import ClassTable
from fedloom.core.trees import Tree
from fedloom.nets.net import Net

if TYPE_CHECKING:
    from fedloom.methods.contract.phases import Batch, Consts

Measure: TypeAlias = "Callable[[Net, Batch, Consts], Tensor]"


def unit_rows(labels: Tensor, num_classes: int, *, sides: bool = False) -> Tensor:
    """Return one-hot rows [B, C] in float64; of several labels [B, L] the recorded positives, and with both `sides`
    [B, 2 L] then the recorded negatives. `one_hot` reads the labels' values, which a recorded pass cannot."""
    if labels.dim() == 2:
        return (torch.cat([labels == 1, labels == 0], 1) if sides else labels == 1).double()
    return (labels.unsqueeze(-1) == torch.arange(num_classes, device=labels.device)).double()


def _class_rows(batch: Batch, num_classes: int, sides: bool = False) -> Tensor:
    """One-hot rows [B, C]; padded rows are zeros."""
    rows = unit_rows(batch.y, num_classes, sides=sides)
    return rows if batch.mask is None else rows * batch.mask.unsqueeze(-1)


def _added(sums: Tree, fresh: Tree) -> Tree:
    return {name: sums[name] + fresh[name] for name in fresh} if sums else fresh


class Statistic(Protocol):
    """Something that a pass or a training phase gathers of `of`, a function of the net or the name of a tap."""

    @property
    def of(self) -> Measure | str: ...

    def add(self, sums: Tree, values: Tensor, batch: Batch, num_classes: int) -> Tree:
        """Return `sums` (empty at first) with the `values` [B, ...] of a `batch` added, without its padded rows."""

    def result(self, sums: Tree) -> Any:
        """Return the statistic of all batches."""


@dataclass(frozen=True, slots=True)
class ClassMeans:
    """Statistic: mean over the samples of each class of [B, d], with sums in float64; a ClassTable [C, d], float32. Of
    several labels, whose classes are the recorded positives, `sides` adds rows of the recorded negatives: [2 L, d]."""

    of: Measure | str
    sides: bool = False

    def add(self, sums: Tree, values: Tensor, batch: Batch, num_classes: int) -> Tree:
        rows = _class_rows(batch, num_classes, self.sides)
        return _added(sums, {"sums": rows.T @ values.double(), "counts": rows.sum(0)})

    def result(self, sums: Tree) -> ClassTable:
        return ClassTable.from_sums(sums["sums"], sums["counts"]).to(torch.float32)


@dataclass(frozen=True, slots=True)
class SampleMean:
    """Statistic: mean over all samples. `of` gives [B, ...]; the result is a tensor [...], float32."""

    of: Measure | str

    def add(self, sums: Tree, values: Tensor, batch: Batch, num_classes: int) -> Tree:
        count = batch.mask.sum() if batch.mask is not None else torch.full((), float(len(values)), device=values.device)
        # `batch.mean` leaves padded rows out; times their number it is a sum again.
        return _added(sums, {"sums": batch.mean(values.double()) * count, "counts": count})

    def result(self, sums: Tree) -> Tensor:
        return (sums["sums"] / sums["counts"].clamp(min=1)).float()


@dataclass(frozen=True, slots=True)
class ClassCovariances:
    """Statistic: unbiased covariance within each class. `of` gives [B, d]; the result is a ClassTable [C, d d] of
    flattened matrices, float32; 0 for a class of one sample. Sums are float64."""

    of: Measure | str

    def add(self, sums: Tree, values: Tensor, batch: Batch, num_classes: int) -> Tree:
        rows, z = _class_rows(batch, num_classes), values.double()
        squares = torch.einsum("bc,bi,bj->cij", rows, z, z)
        return _added(sums, {"sums": rows.T @ z, "squares": squares, "counts": rows.sum(0)})

    def result(self, sums: Tree) -> ClassTable:
        counts, means = sums["counts"], ClassTable.from_sums(sums["sums"], sums["counts"]).values
        # a difference of large and nearly equal sums: only float64 leaves digits of it
        scatter = sums["squares"] - counts.view(-1, 1, 1) * means.unsqueeze(2) * means.unsqueeze(1)
        spread = torch.where(counts > 1, counts - 1, torch.inf)  # of a single sample: none
        return ClassTable((scatter.flatten(1) / spread.unsqueeze(1)).to(torch.float32), counts > 0)


@dataclass(frozen=True, slots=True)
class Moments:
    """Statistic: the first two moments over all samples of [B, d]. The result is a tree in float64: "count" [], "sum"
    [d], and "outer" [d, d], the sum of z z^T. Sums of several clients add up, so entries may be uploaded."""

    of: Measure | str

    def add(self, sums: Tree, values: Tensor, batch: Batch, num_classes: int) -> Tree:
        z = values.double()
        count = torch.ones(len(z), dtype=torch.float64, device=z.device)
        if batch.mask is not None:
            count = batch.mask.double()
            z = torch.where(batch.mask.unsqueeze(-1), z, 0.0)
        return _added(sums, {"count": count.sum(), "sum": z.sum(0), "outer": z.T @ z})

    def result(self, sums: Tree) -> Tree:
        return sums


@dataclass(frozen=True, slots=True)
class LabelledRows:
    """The result of `Rows`: `values` [n, ...] in the dtype of `of`, and `labels` [n], int64."""

    values: Tensor
    labels: Tensor


@dataclass(frozen=True, slots=True)
class Rows:
    """Statistic: every row of [B, ...] with its label, as `LabelledRows`: in a client's stored order in a pass, in the
    order of steps in a training phase, once for each gathered epoch. Engines that stack clients run each alone if
    another phase follows, because later phases find the rows among their constants, and their number differs.

    Attributes:
        of: a function of the net, or the name of a tap.
        max_mib: bound on the memory of one client's rows and labels, in MiB. More raises `ConfigError`.
    """

    of: Measure | str
    max_mib: float = 256.0

    def add(self, sums: Tree, values: Tensor, batch: Batch, num_classes: int) -> Tree:
        number = len(sums)
        parts = {"rows": values, "labels": batch.y} | ({} if batch.mask is None else {"mask": batch.mask})
        kept = sums | {f"{name}.{number}": part.clone() for name, part in parts.items()}
        mib = sum(part.numel() * part.element_size() for part in kept.values()) / 2**20
        if mib > self.max_mib:
            raise ConfigError(
                f"Rows(max_mib={self.max_mib:g}): one client's rows take {mib:.3g} MiB and more; raise max_mib, or "
                "collect ClassMeans or Moments, which keep no rows"
            )
        return kept

    def result(self, sums: Tree) -> LabelledRows:
        values, labels = [], []
        for name, rows in sums.items():
            kind, _, number = name.partition(".")
            if kind != "rows":
                continue
            mask, of_rows = sums.get(f"mask.{number}"), sums[f"labels.{number}"]
            values.append(rows if mask is None else rows[mask])
            labels.append(of_rows if mask is None else of_rows[mask])
        return LabelledRows(torch.cat(values), torch.cat(labels))
