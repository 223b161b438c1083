"""CIFAR-10, CIFAR-100, and FC100, its few-shot split."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import torch

from fedloom.core.errors import DataError, suggest_name
from fedloom.data.dataset import Dataset
from fedloom.data.sources import cached
from fedloom.data.sources.cached import Allocator, Normalise, ParsedSamples, ParsedSplits
from fedloom.data.sources.files import Files, has_layout, search_path
from fedloom.data.sources.image_folders import parse_class_folders
from fedloom.data.sources.npz import PublishedImages
from fedloom.data.sources.source import Splits, source
from fedloom.data.views import Indices

# Superclass -> its five classes; the order is that of the official coarse labels 0 .. 19.
_LINES = Path(__file__).with_name("superclasses.txt").read_text(encoding="utf-8").splitlines()
SUPERCLASSES = {name: tuple(members) for name, *members in map(str.split, _LINES)}

CLASSES = tuple(sorted(name for names in SUPERCLASSES.values() for name in names))
"""The 100 classes; the order is that of the official fine labels 0 .. 99."""


def coarse_labels(classes: Sequence[str]) -> list[int]:
    """Return the superclass (0 .. 19) of each of the 100 classes, in their order; "0" .. "99" are the official fine
    labels. Raises `DataError` unless the classes are CIFAR-100's."""
    names = CLASSES if list(classes) == [str(label) for label in range(100)] else classes
    superclass_of = {name: label for label, members in enumerate(SUPERCLASSES.values()) for name in members}
    if len(names) != len(CLASSES):
        raise DataError(f"superclasses are CIFAR-100's: need its 100 classes, got {len(names)}")
    for name in names:
        if name not in superclass_of:
            problem = f"it has no class '{name}'; {suggest_name(name, superclass_of)}"
            raise DataError(f"superclasses are CIFAR-100's: {problem}")
    if len(set(names)) < len(names):
        raise DataError("superclasses are CIFAR-100's: a class is named twice")
    return [superclass_of[name] for name in names]


_PIXEL_COUNT = 3 * 32 * 32


class _Cifar(PublishedImages):
    """Base: each record has `label_bytes` label bytes (the last one counts) and 3072 pixels."""

    label_bytes: ClassVar[int]
    binary_folder: ClassVar[str]
    pickle_names: ClassVar[tuple[str, ...]]  # names of the python version, or of a file in it
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
        # A folder may hold both versions; the pickle is refused where no other file can be read.
        return not any(has_layout(root, *layout) for layout in self.layouts())

    def names_to_read(self, files: Files) -> list[str] | None:
        return [*self.train_names, self.test_name] if files.has(self.train_names[0]) else None

    def read(self, files: Files, allocate: Allocator) -> ParsedSplits:
        if not files.has(self.train_names[0]):
            return parse_class_folders(files, 32, 3, allocate, classes=self.class_names)
        contents = dict(files.read_each([*self.train_names, self.test_name]))
        records = {name: self._records(raw, files.display_name(name)) for name, raw in contents.items()}
        # In the order of the names, because an archive yields its members in another.
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


@cached.published_set("cifar10")
class CIFAR10(_Cifar):
    pass


@cached.published_set("cifar100")
class CIFAR100(_Cifar):
    class_names = CLASSES


ClassGroup = Literal["train", "val", "test"]

# Superclasses of each group, by coarse label: Oreshkin et al. 2018 (TADAM, arXiv 1805.10123) and their code.
CLASS_GROUPS: dict[ClassGroup, frozenset[int]] = {
    "train": frozenset({1, 2, 3, 4, 5, 6, 9, 10, 15, 17, 18, 19}),
    "val": frozenset({8, 11, 13, 16}),
    "test": frozenset({0, 7, 12, 14}),
}


@source("fc100")
class FC100(CIFAR100):
    """FC100 (Oreshkin et al. 2018): CIFAR-100 split by superclass into 60 training, 20 validation and 20 test classes.

    The training set holds all images of the 60 base classes, official test images included. The test set holds other
    classes, so only `evaluation: {protocol: few-shot}` can test on it. Files, keys and cache entry are those of
    cifar100. `normalise: own` takes the moments of the base classes only."""

    model = "resnet10"
    novel: Literal["val", "test"] = "test"
    normalise: Normalise = "own"

    def files(self) -> Sequence[Path]:
        return self._cifar100().files()

    def load(self) -> Splits:
        # `limit` counts images of the base classes, so `_cifar100` loads all.
        splits = fc100(self._cifar100().load(), self.novel)
        splits = self.normalised(splits, cached.training_moments(splits.train))
        return splits if self.limit is None else replace(splits, train=splits.train.head(self.limit))

    def _cifar100(self) -> CIFAR100:
        return CIFAR100(path=self.path, verify=self.verify, offline=self.offline)


def fc100(cifar100: Splits, novel: Literal["val", "test"] = "test") -> Splits:
    """Split CIFAR-100 into the 60 base classes, labels 0 .. 59, and the 20 classes of `novel`, labels 0 .. 19, in the
    order of `cifar100`'s, with all 600 images of a class, as published. Raises `DataError` for other classes."""
    coarse = coarse_labels(cifar100.train.classes)
    groups: tuple[ClassGroup, ClassGroup] = ("train", novel)
    train, test = (
        _samples_of_classes(
            cifar100, [label for label, superclass in enumerate(coarse) if superclass in CLASS_GROUPS[group]]
        )
        for group in groups
    )
    return Splits(train, test)


def _samples_of_classes(cifar100: Splits, class_ids: list[int]) -> Dataset:
    new_labels: Indices = np.full(cifar100.train.num_classes, -1, np.int64)
    new_labels[class_ids] = np.arange(len(class_ids))
    x, y = [], []
    for part in (cifar100.train, cifar100.test):
        labels = torch.from_numpy(new_labels)[part.y]
        rows = torch.nonzero(labels >= 0).flatten()
        x.append(part.x[rows])
        y.append(labels[rows])
    names, train = tuple(cifar100.train.classes[c] for c in class_ids), cifar100.train
    return Dataset(torch.cat(x), torch.cat(y), names, train.mean, train.std)
