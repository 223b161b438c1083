"""Arrays of samples, as they lie in memory and as a net sees them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedloom.core.errors import DataError


@dataclass(frozen=True, slots=True)
class Dataset:
    """`x` [n, c, h, w] or [n, ...]: uint8 or float32 as stored; `y` [n] int64 in 0 .. C-1.

    `mean` and `std` [c] (in units of the stored values) normalise at the moment a batch is gathered; None leaves
    the values alone. Nothing is ever copied per client: clients are index views into these arrays.
    """

    x: Tensor
    y: Tensor
    classes: tuple[str, ...]
    mean: Tensor | None = None
    std: Tensor | None = None

    @property
    def num_classes(self) -> int:
        """C."""
        return len(self.classes)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one sample, e.g. (1, 28, 28)."""
        return tuple(self.x.shape[1:])

    def __len__(self) -> int:
        return len(self.y)

    def gather(self, indices: Tensor) -> Tensor:
        """indices [B] int64 -> normalised float32 [B, ...]."""
        x = self.x.index_select(0, indices).to(torch.float32)
        if self.mean is not None and self.std is not None:
            shape = (1, -1, *(1,) * (x.dim() - 2))
            x.sub_(self.mean.view(shape)).div_(self.std.view(shape))
        return x


def checked(
    x: np.ndarray,
    y: np.ndarray,
    *,
    origin: str,
    classes: Sequence[str] | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
) -> Dataset:
    """A `Dataset` from arrays that may be wrong. `origin` names the file or array in messages.

    Images [n, h, w] get a channel axis. Raises `DataError` for mismatched lengths, labels that are no integers or
    outside 0 .. C-1, unusable dtypes, and values that are not finite.
    """
    y = np.asarray(y)
    if y.ndim == 2 and y.shape[1] == 1:  # the Keras convention keeps a trailing axis in some sets
        y = y[:, 0]
    if x.ndim == 0 or y.ndim != 1 or len(x) != len(y):
        raise DataError(
            f"{origin}: samples of shape {x.shape} but labels of shape {y.shape}; need one label per sample"
        )
    if len(y) == 0:
        raise DataError(f"{origin}: holds no samples")
    if not np.issubdtype(y.dtype, np.integer):
        raise DataError(f"{origin}: labels have dtype {y.dtype}; need integers 0 .. C-1")
    known = len(classes) if classes is not None else int(y.max()) + 1
    if y.min() < 0 or y.max() >= known:
        wrong = int(y.min() if y.min() < 0 else y.max())
        raise DataError(f"{origin}: label {wrong} is outside 0 .. {known - 1}")
    if x.dtype != np.uint8:
        if not np.issubdtype(x.dtype, np.number) or np.issubdtype(x.dtype, np.complexfloating):
            raise DataError(f"{origin}: samples have dtype {x.dtype}; need uint8 or real numbers")
        with np.errstate(over="ignore"):  # what does not fit float32 becomes infinite, and is refused below
            x = x.astype(np.float32)
        if not np.isfinite(x).all():
            raise DataError(f"{origin}: {int((~np.isfinite(x)).sum())} values are NaN or infinite; need finite numbers")
    if x.ndim == 3:
        x = x[:, None]
    return Dataset(
        torch.from_numpy(np.ascontiguousarray(x)),
        torch.from_numpy(y.astype(np.int64)),
        tuple(classes) if classes is not None else tuple(str(c) for c in range(known)),
        None if mean is None else torch.tensor(mean, dtype=torch.float32),
        None if std is None else torch.tensor(std, dtype=torch.float32),
    )


def channel_moments(x: np.ndarray) -> tuple[list[float], list[float]]:
    """Mean and standard deviation per channel of images [n, h, w] or [n, c, h, w], in the stored units.

    A constant channel gets standard deviation 1. Bytes are counted, not converted: exact, and quick on large sets.
    """
    images = x[:, None] if x.ndim == 3 else x
    mean, std = [], []
    for channel in range(images.shape[1]):
        plane = images[:, channel]
        if plane.dtype == np.uint8:
            share = np.bincount(plane.reshape(-1), minlength=256) / plane.size
            centre = float(share @ np.arange(256))
            spread = float(share @ (np.arange(256) - centre) ** 2) ** 0.5
        else:
            with np.errstate(invalid="ignore", over="ignore"):  # infinite values are `checked`'s to refuse
                centre, spread = float(plane.mean(dtype=np.float64)), float(plane.std(dtype=np.float64))
            if plane.min() == plane.max():
                centre, spread = float(plane.min()), 0.0  # not the rounding error of the mean
        mean.append(centre)
        std.append(spread or 1.0)
    return mean, std
