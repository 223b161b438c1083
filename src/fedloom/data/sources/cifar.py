"""CIFAR-10 and CIFAR-100."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np

from fedloom.core.errors import DataError
from fedloom.data.sources.cached import Allocator, Normalise, ParsedSamples, ParsedSplits
from fedloom.data.sources.cifar100_classes import CLASSES
from fedloom.data.sources.files import Files
from fedloom.data.sources.image_folder import parse_class_folders
from fedloom.data.sources.published import PublishedImages, has_layout, search_path
from fedloom.data.sources.source import source

_PIXEL_COUNT = 3 * 32 * 32
_CIFAR10_CLASSES = "airplane automobile bird cat deer dog frog horse ship truck"


class _Cifar(PublishedImages):
    """Base: records of `label_bytes` label bytes, of which the last one is used, and 3072 pixels."""

    label_bytes: ClassVar[int]
    binary_folder: ClassVar[str]
    pickle_names: ClassVar[tuple[str, ...]]
    """Names of the python version, or of a file in it."""
    train_names: ClassVar[tuple[str, ...]]
    test_name: ClassVar[str]
    normalise: Normalise = "published"

    def layouts(self) -> Sequence[tuple[str, str]]:
        folders = [(subpath, self.train_names[0]) for subpath in ("", self.binary_folder)]
        archive = f"{self.binary_folder.replace('-batches-bin', '-binary')}.tar.gz"
        return [*folders, (archive, ""), (f"{self.kind}.npz", ""), ("", "train/")]

    def data_path(self) -> Path:
        root = search_path(self.kind, self.path)
        if self._is_pickle(root):
            raise DataError(
                f"{root}: this is the python version of {self.kind}, a pickle, and opening one can run any program; "
                f"fetch the binary version ({self.layouts()[2][0]}) from the same page, or convert it to .npz"
            )
        return super().data_path()

    def _is_pickle(self, root: Path) -> bool:
        if root.name in self.pickle_names:
            return True
        children = {child.name for child in root.iterdir()} if root.is_dir() else set()
        if children.isdisjoint(self.pickle_names):
            return False
        return not any(has_layout(root, *layout) for layout in self.layouts())

    def names_to_read(self, files: Files) -> list[str] | None:
        return [*self.train_names, self.test_name] if files.has(self.train_names[0]) else None

    def read(self, files: Files, allocate: Allocator) -> ParsedSplits:
        if not files.has(self.train_names[0]):
            return parse_class_folders(files, 32, 3, allocate, classes=self.class_names)
        contents = dict(files.read_each([*self.train_names, self.test_name]))
        records = {name: self._records(raw, files.display_name(name)) for name, raw in contents.items()}
        train = self._samples(np.concatenate([records[name] for name in self.train_names]))
        return ParsedSplits(str(files.path), train, self._samples(records[self.test_name]), self.class_names)

    def _records(self, raw: bytes, origin: str) -> np.ndarray:
        length = self.label_bytes + _PIXEL_COUNT
        if not raw or len(raw) % length:
            raise DataError(f"{origin}: {len(raw)} bytes are no whole records of {length}; truncated, fetch it again")
        return np.frombuffer(raw, np.uint8).reshape(-1, length)

    def _samples(self, records: np.ndarray) -> ParsedSamples:
        pixels = np.ascontiguousarray(records[:, self.label_bytes :]).reshape(-1, 3, 32, 32)
        return ParsedSamples(pixels, records[:, self.label_bytes - 1].astype(np.int64))


@source("cifar10")
class CIFAR10(_Cifar):
    """CIFAR-10 (Krizhevsky 2009): 50,000 + 10,000 colour images of 32x32, 10 classes.

    Reads the binary version (`cifar-10-binary.tar.gz` or its folder), `cifar10.npz` in the Keras convention, or
    train/<class>/* and test/<class>/*. The python version is refused, since it is a pickle.
    """

    publisher: ClassVar[str] = "Alex Krizhevsky's CIFAR page as cifar-10-binary.tar.gz"
    checksums: ClassVar[dict[str, str]] = {"cifar-10-binary.tar.gz": "c32a1d4ab5d03f1284b67883e8d87530"}
    published: ClassVar[tuple[tuple[float, ...], tuple[float, ...]] | None] = (
        (0.4914, 0.4822, 0.4465),
        (0.2023, 0.1994, 0.2010),
    )
    class_names: ClassVar[tuple[str, ...]] = tuple(_CIFAR10_CLASSES.split())
    label_bytes: ClassVar[int] = 1
    binary_folder: ClassVar[str] = "cifar-10-batches-bin"
    pickle_names: ClassVar[tuple[str, ...]] = ("cifar-10-batches-py", "cifar-10-python.tar.gz", "data_batch_1")
    train_names: ClassVar[tuple[str, ...]] = tuple(f"data_batch_{i}.bin" for i in range(1, 6))
    test_name: ClassVar[str] = "test_batch.bin"


@source("cifar100")
class CIFAR100(_Cifar):
    """CIFAR-100 (Krizhevsky 2009): 50,000 + 10,000 colour images of 32x32, 100 fine classes.

    Reads the same layouts as cifar10, with `cifar-100-binary.tar.gz` and `cifar100.npz`.
    """

    publisher: ClassVar[str] = "Alex Krizhevsky's CIFAR page as cifar-100-binary.tar.gz"
    checksums: ClassVar[dict[str, str]] = {"cifar-100-binary.tar.gz": "03b5dce01913d631647c71ecec9e9cb8"}
    published: ClassVar[tuple[tuple[float, ...], tuple[float, ...]] | None] = (
        (0.5071, 0.4865, 0.4409),
        (0.2673, 0.2564, 0.2762),
    )
    class_names: ClassVar[tuple[str, ...]] = CLASSES
    label_bytes: ClassVar[int] = 2
    binary_folder: ClassVar[str] = "cifar-100-binary"
    pickle_names: ClassVar[tuple[str, ...]] = ("cifar-100-python", "cifar-100-python.tar.gz", "meta")
    train_names: ClassVar[tuple[str, ...]] = ("train.bin",)
    test_name: ClassVar[str] = "test.bin"
