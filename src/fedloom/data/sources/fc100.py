"""FC100: CIFAR-100 as a few-shot set, split by superclass, so that new classes are unlike the trained ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field

from fedloom.data.dataset import Dataset
from fedloom.data.sources.cached import Normalise, training_moments
from fedloom.data.sources.cifar import CIFAR100
from fedloom.data.sources.cifar100_classes import coarse_labels
from fedloom.data.sources.source import Splits, source
from fedloom.data.views import Indices

ClassGroup = Literal["train", "val", "test"]

# Official coarse labels of each part: Oreshkin et al. 2018 (TADAM, arXiv 1805.10123), and the code they published.
CLASS_GROUPS: dict[ClassGroup, frozenset[int]] = {
    "train": frozenset({1, 2, 3, 4, 5, 6, 9, 10, 15, 17, 18, 19}),
    "val": frozenset({8, 11, 13, 16}),
    "test": frozenset({0, 7, 12, 14}),
}


@source("fc100")
class FC100(CIFAR100):
    """FC100 (Oreshkin et al. 2018): CIFAR-100 split by superclass into 60 training, 20 validation and 20 test classes.

    Training data are all images of the 60 base classes, official test images included; the test set holds other
    classes, so that only `evaluation: {protocol: few-shot}` can test on it. Files and keys as for cifar100, of which it
    uses the cache entry. With `normalise: own` pixels are scaled by the base images: nothing of a new class is known in
    training.
    """

    model: ClassVar[str] = "resnet10"
    novel: Literal["val", "test"] = Field(
        "test",
        description="Classes of the test set: the 20 validation or the 20 test classes.",
    )
    normalise: Normalise = "own"

    def files(self) -> Sequence[Path]:
        return self._whole().files()

    def load(self) -> Splits:
        split = fc100(self._whole().load(), self.novel)
        split = self.scaled(split, training_moments(split.train))
        return split if self.limit is None else replace(split, train=split.train.head(self.limit))

    def _whole(self) -> CIFAR100:
        return CIFAR100(path=self.path, verify=self.verify, offline=self.offline)


def fc100(cifar100: Splits, novel: Literal["val", "test"] = "test") -> Splits:
    """The 60 base classes as training set, labels 0 .. 59; the 20 classes of `novel` as test set, labels 0 .. 19.

    As published, both take all 600 images of their classes, those of CIFAR-100's official training set first. Labels
    follow the order of `cifar100`'s classes; mean and standard deviation are left as they are. Raises `DataError` if
    the classes are not those of CIFAR-100.
    """
    coarse = coarse_labels(cifar100.train.classes)
    groups: tuple[ClassGroup, ClassGroup] = ("train", novel)
    train, test = (
        _samples_of_classes(
            cifar100, [label for label, superclass in enumerate(coarse) if superclass in CLASS_GROUPS[group]]
        )
        for group in groups
    )
    return Splits(train, test)


def _samples_of_classes(cifar100: Splits, chosen: list[int]) -> Dataset:
    """All samples of the `chosen` classes, relabelled 0 .. len(chosen) - 1."""
    renamed: Indices = np.full(cifar100.train.num_classes, -1, np.int64)
    renamed[chosen] = np.arange(len(chosen))
    x, y = [], []
    for half in (cifar100.train, cifar100.test):
        labels = torch.from_numpy(renamed)[half.y]
        rows = torch.nonzero(labels >= 0).flatten()
        x.append(half.x[rows])
        y.append(labels[rows])
    names, train = tuple(cifar100.train.classes[c] for c in chosen), cifar100.train
    return Dataset(torch.cat(x), torch.cat(y), names, train.mean, train.std)
