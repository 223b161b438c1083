"""Sets in the IDX format of MNIST: four files, gzipped or not."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from fedloom.core.errors import DataError
from fedloom.data.dataset import Dataset, channel_moments, checked
from fedloom.data.sources.source import Source, Splits, source

_DTYPES: dict[int, np.dtype[Any]] = {
    0x08: np.dtype(np.uint8),
    0x09: np.dtype(np.int8),
    0x0B: np.dtype(">i2"),
    0x0C: np.dtype(">i4"),
}
_FASHION = (
    "t-shirt",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle boot",
)


def read_idx(path: Path) -> np.ndarray:
    """The array in one IDX file. Raises `DataError` for a missing, truncated or foreign file."""
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; expected an IDX file there") from None
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read ({error}); the file is damaged or truncated, fetch it again") from None
    if len(raw) < 4 or raw[:2] != b"\0\0" or raw[2] not in _DTYPES:
        raise DataError(f"{path}: starts with {raw[:4].hex() or 'nothing'}, which is not an IDX header")
    dtype, dims = _DTYPES[raw[2]], raw[3]
    start = 4 + 4 * dims
    shape = tuple(int.from_bytes(raw[4 + 4 * d : 8 + 4 * d], "big") for d in range(dims))
    expected = start + math.prod(shape) * dtype.itemsize
    if len(raw) != expected:
        raise DataError(f"{path}: {len(raw)} bytes where its header promises {expected}; truncated, fetch it again")
    return np.frombuffer(raw, dtype, offset=start).reshape(shape).copy()


@source("idx")
class Idx(Source):
    """Any set of MNIST's four IDX files (train/t10k, images/labels, .gz or not) in the folder `path`.

    Classes are 0 .. the largest label. Pixels are scaled by the training set's own mean and standard deviation.
    """

    path: Path

    def load(self) -> Splits:
        return self._load(self.path, None)

    def _load(self, folder: Path, classes: tuple[str, ...] | None) -> Splits:
        images, labels = self._pair(folder, "train")
        if images.ndim != 3 or images.size == 0:
            raise DataError(f"{folder}: training images have shape {images.shape}; need [n, h, w]")
        test_images, test_labels = self._pair(folder, "t10k")
        if test_images.shape[1:] != images.shape[1:]:
            raise DataError(f"{folder}: train {images.shape} and t10k {test_images.shape} differ in sample shape")
        mean, std = channel_moments(images)
        classes = classes or tuple(str(c) for c in range(int(labels.max(initial=0)) + 1))

        def dataset(x: np.ndarray, y: np.ndarray, part: str) -> Dataset:
            origin = f"{folder}/{part}"
            return checked(x, y, origin=origin, classes=classes, mean=mean, std=std)

        return Splits(dataset(images, labels, "train"), dataset(test_images, test_labels, "t10k"))

    @staticmethod
    def _pair(folder: Path, part: str) -> tuple[np.ndarray, np.ndarray]:
        found = []
        for kind in ("images-idx3", "labels-idx1"):
            name = f"{part}-{kind}-ubyte"
            packed = folder / f"{name}.gz"
            found.append(read_idx(packed if packed.is_file() else folder / name))
        return found[0], found[1]


@source("fashion-mnist")
class FashionMNIST(Idx):
    """Fashion-MNIST (Xiao et al. 2017, MIT licence): 60,000 + 10,000 images of 28x28, 10 classes.

    Read from the folder `path`; without it, from where Debian's package `dataset-fashion-mnist` puts it. Official
    test set kept. `limit` takes only the first images of the training set.
    """

    path: Path = Path("/usr/share/datasets/fashion-mnist")
    limit: int | None = Field(None, ge=1)

    def load(self) -> Splits:
        if not self.path.is_dir():
            raise DataError(
                f"source fashion-mnist: no folder {self.path}; install Debian's package dataset-fashion-mnist, or set "
                "scenario.path to a folder with the four IDX files"
            )
        splits = self._load(self.path, _FASHION)
        if self.limit is None:
            return splits
        train = splits.train
        return Splits(
            Dataset(train.x[: self.limit], train.y[: self.limit], train.classes, train.mean, train.std),
            splits.test,
        )
