"""Sets in the IDX format of MNIST: four files, gzipped or not."""

from __future__ import annotations

import gzip
import io
import math
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from fedloom.core.errors import DataError
from fedloom.data.labels import class_ids
from fedloom.data.memory import require_memory
from fedloom.data.sources.cached import Allocator, ImageSource, ParsedSamples, ParsedSplits
from fedloom.data.sources.files import Files
from fedloom.data.sources.source import source

_DTYPES: dict[int, np.dtype[Any]] = {
    0x08: np.dtype(np.uint8),
    0x09: np.dtype(np.int8),
    0x0B: np.dtype(">i2"),
    0x0C: np.dtype(">i4"),
}


def parse_idx(raw: bytes, label: str) -> np.ndarray:
    """The array in the bytes of an IDX file, gzipped if `label` ends in .gz."""
    if label.endswith(".gz"):
        try:
            with gzip.open(io.BytesIO(raw)) as stream:
                head = stream.read(4 + 4 * 255)
            require_memory(_stated_size(head), label)  # before it is unpacked: a few bytes may become gigabytes
            with gzip.open(io.BytesIO(raw)) as stream:
                raw = stream.read(_stated_size(head) + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(
                f"{label}: cannot be read ({error}); the file is damaged or truncated, fetch it again"
            ) from None
    if len(raw) < 4 or raw[:2] != b"\0\0" or raw[2] not in _DTYPES:
        raise DataError(f"{label}: starts with {raw[:4].hex() or 'nothing'}, which is not an IDX header")
    dtype, dims = _DTYPES[raw[2]], raw[3]
    start = 4 + 4 * dims
    shape = tuple(int.from_bytes(raw[4 + 4 * d : 8 + 4 * d], "big") for d in range(dims))
    expected = start + math.prod(shape) * dtype.itemsize
    if len(raw) != expected:
        raise DataError(f"{label}: {len(raw)} bytes where its header promises {expected}; truncated, fetch it again")
    return np.frombuffer(raw, dtype, offset=start).reshape(shape).copy()


def _stated_size(head: bytes) -> int:
    """Bytes of the IDX file that begins with `head`; those of the head if it is no such file."""
    if len(head) < 4 or head[2] not in _DTYPES or len(head) < 4 + 4 * head[3]:
        return len(head)
    shape = (int.from_bytes(head[4 + 4 * d : 8 + 4 * d], "big") for d in range(head[3]))
    return 4 + 4 * head[3] + math.prod(shape) * _DTYPES[head[2]].itemsize


def idx_names(files: Files, train: str, test: str) -> list[str]:
    """Return the names of the four files: images and labels of both parts, each gzipped if that is what there is.

    Args:
        files: the folder or archive.
        train: first word of the training files' names.
        test: first word of the test files' names.
    """
    plain = [f"{part}-{kind}-ubyte" for part in (train, test) for kind in ("images-idx3", "labels-idx1")]
    return [f"{name}.gz" if files.has(f"{name}.gz") else name for name in plain]


def parse_idx_set(files: Files, train: str, test: str, classes: tuple[str, ...] | None = None) -> ParsedSplits:
    """Make a set from its four files.

    Args:
        files: the folder or archive.
        train: first word of the training files' names.
        test: first word of the test files' names.
        classes: names of the classes; None takes those that the labels have (`fedloom.data.labels.class_ids`).

    Raises `DataError` for images that are not [n, h, w], and for test labels above all training labels.
    """
    read = dict(files.read_each(names := idx_names(files, train, test)))
    x, y, x_test, y_test = (parse_idx(read.pop(name), files.display_name(name)) for name in names)
    if x.ndim != 3 or x.size == 0:
        raise DataError(f"{files.path}: training images have shape {x.shape}; need [n, h, w]")
    (ids, test_ids), class_names = class_ids([y, y_test], str(files.path), classes)
    if classes is None and test_ids.max(initial=0) > ids.max(initial=0):
        alone = class_names[int(test_ids.max())]
        raise DataError(f"{files.path} (test): label {alone} is above all of the training set's; nobody could learn it")
    return ParsedSplits(str(files.path), ParsedSamples(x, ids), ParsedSamples(x_test, test_ids), class_names)


@source("idx")
class Idx(ImageSource):
    """Any set of MNIST's four IDX files (train/t10k, images/labels, .gz or not) in a folder.

    Labels are whole numbers from 0; others are the names of their classes. Pixels are scaled by the training set's own
    mean and standard deviation.
    """

    path: Path = Field(
        description="Path of the folder with the four files.",
        examples=["data/mnist"],
    )

    def files(self) -> Sequence[Path]:
        files = Files(self.path)
        return files.stamped_paths(idx_names(files, "train", "t10k"))

    def parse(self, allocate: Allocator) -> ParsedSplits:
        return parse_idx_set(Files(self.path), "train", "t10k")
