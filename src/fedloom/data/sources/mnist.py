"""Sets in the IDX format: MNIST, Fashion-MNIST, EMNIST, and user-supplied folders."""

import gzip
import io
import math
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from fedloom.core.errors import DataError
from fedloom.data.dataset import require_memory
from fedloom.data.labels import class_ids
from fedloom.data.sources.cached import Allocator, ImageSource, ParsedSamples, ParsedSplits
from fedloom.data.sources.files import Files
from fedloom.data.sources.npz import PublishedImages
from fedloom.data.sources.source import source

_DTYPES = {code: np.dtype(kind) for code, kind in ((0x08, "u1"), (0x09, "i1"), (0x0B, ">i2"), (0x0C, ">i4"))}


def parse_idx(raw: bytes, label: str) -> np.ndarray:
    """Return the array in the `raw` bytes of an IDX file, gzipped if `label` ends in .gz."""
    if label.endswith(".gz"):
        try:
            with gzip.open(io.BytesIO(raw)) as stream:
                head = stream.read(4 + 4 * 255)  # the longest header: a magic number and 255 sizes
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
    """Return the bytes of the IDX file that begins with `head`; those of the head if it is no such file."""
    if len(head) < 4 or head[2] not in _DTYPES or len(head) < 4 + 4 * head[3]:
        return len(head)
    shape = (int.from_bytes(head[4 + 4 * d : 8 + 4 * d], "big") for d in range(head[3]))
    return 4 + 4 * head[3] + math.prod(shape) * _DTYPES[head[2]].itemsize


def idx_names(files: Files, train: str, test: str) -> list[str]:
    """Return the names of the four files, images and labels of both parts (`train` and `test` begin their names), each
    gzipped if that is what `files` have."""
    plain = [f"{part}-{kind}-ubyte" for part in (train, test) for kind in ("images-idx3", "labels-idx1")]
    return [f"{name}.gz" if files.has(f"{name}.gz") else name for name in plain]


def parse_idx_set(files: Files, train: str, test: str, classes: tuple[str, ...] | None = None) -> ParsedSplits:
    """Make a set from its four files; files, train, test as for `idx_names`, classes as for
    `fedloom.data.labels.class_ids`. Raises `DataError` for images that are not [n, h, w], and for test labels above
    all training labels."""
    read = dict(files.read_each(names := idx_names(files, train, test)))
    x, y, x_test, y_test = (parse_idx(read.pop(name), files.display_name(name)) for name in names)
    if x.ndim != 3 or x.size == 0:
        raise DataError(f"{files.path}: training images have shape {x.shape}; need [n, h, w]")
    (ids, test_ids), class_names = class_ids([y, y_test], str(files.path), classes)
    if classes is None and test_ids.max(initial=0) > ids.max(initial=0):
        alone = class_names[int(test_ids.max())]
        raise DataError(f"{files.path} (test): label {alone} is above all training labels; no client could learn it")
    return ParsedSplits(str(files.path), ParsedSamples(x, ids), ParsedSamples(x_test, test_ids), class_names)


@source("idx")
class Idx(ImageSource):
    """Any set of MNIST's four IDX files (train/t10k, images/labels, .gz or not) in a folder.

    Labels are whole numbers from 0; others are the names of their classes. Pixels are scaled by the training set's own
    mean and standard deviation."""

    path: Path = Field(description="Path of the folder with the four files.", examples=["data/mnist"])

    def files(self) -> Sequence[Path]:
        files = Files(self.path)
        return files.stamped_paths(idx_names(files, "train", "t10k"))

    def parse(self, allocate: Allocator) -> ParsedSplits:
        return parse_idx_set(Files(self.path), "train", "t10k")


_FIRST = "train-images-idx3-ubyte"
_CLOTHES = "t-shirt, trouser, pullover, dress, coat, sandal, shirt, sneaker, bag, ankle boot"
_DEBIAN = Path("/usr/share/datasets/fashion-mnist")


@source("mnist")
class MNIST(PublishedImages):
    """MNIST (LeCun et al. 1998): 60,000 + 10,000 gray images of 28x28, 10 classes; the four IDX files, .gz or not, or
    `mnist.npz` in the Keras convention. Official test set kept."""

    publisher = "Yann LeCun, Corinna Cortes and Christopher Burges as four train-/t10k- IDX files"
    published = ((0.1307,), (0.3081,))
    places = (("", f"{_FIRST}.gz"), ("", _FIRST), ("MNIST/raw", _FIRST), ("mnist.npz", ""))

    def names_to_read(self, files: Files) -> list[str] | None:
        return idx_names(files, "train", "t10k")

    def read(self, files: Files, allocate: Allocator) -> ParsedSplits:
        return parse_idx_set(files, "train", "t10k", self.class_names)


@source("fashion-mnist")
class FashionMNIST(MNIST):
    """Fashion-MNIST (Xiao et al. 2017, MIT licence): 60,000 + 10,000 images of 28x28, 10 classes.

    Official test set kept."""

    published = ((0.2860,), (0.3530,))
    class_names = tuple(_CLOTHES.split(", "))

    path: Path | None = Field(
        _DEBIAN,
        description="Folder of the four IDX files; without it, the folder of Debian's package `dataset-fashion-mnist`.",
    )

    def data_path(self) -> Path:
        if self.path is not None and not self.path.exists():
            raise DataError(
                f"source fashion-mnist: no folder {self.path}; install Debian's package dataset-fashion-mnist, or set "
                "scenario.path to a folder with the four IDX files"
            )
        return super().data_path()


@source("emnist")
class EMNIST(PublishedImages):
    """EMNIST (Cohen et al. 2017): gray images of 28x28, 47 classes of digits and letters. The published `gzip.zip`, or
    its IDX files in a folder.

    The published images are transposed; they are turned upright here, as MNIST's are."""

    publisher = "NIST as gzip.zip with emnist-<subset>-train-images-idx3-ubyte.gz and three more"
    checksums: ClassVar[dict[str, str]] = {"gzip.zip": "58c8d27c78d21e728a6bc7b3cc06412e"}
    class_names = tuple("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabdefghnqrt")
    model = "emnist-cnn"

    subset: Literal["bymerge", "balanced"] = Field(
        "bymerge",
        description="Part of EMNIST: bymerge (697,932 + 116,323 images) or balanced (112,800 + 18,800 images).",
    )

    def layouts(self) -> Sequence[tuple[str, str]]:
        first = f"emnist-{self.subset}-{_FIRST}"
        folders = [(place, f"{first}{gz}") for place in ("", "gzip", "EMNIST/raw") for gz in (".gz", "")]
        return [*folders, ("gzip.zip", "")]

    def names_to_read(self, files: Files) -> list[str] | None:
        return idx_names(files, f"emnist-{self.subset}-train", f"emnist-{self.subset}-test")

    def read(self, files: Files, allocate: Allocator) -> ParsedSplits:
        stored = parse_idx_set(files, f"emnist-{self.subset}-train", f"emnist-{self.subset}-test", self.class_names)
        train, test = (ParsedSamples(part.x.swapaxes(-1, -2), part.y) for part in (stored.train, stored.test))
        return replace(stored, train=train, test=test)
