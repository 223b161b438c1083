"""FC100: CIFAR-100 as a few-shot set, split by superclass, so that new classes differ from the trained ones."""

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
    cifar100. `normalise: own` takes the moments of the base classes only.
    """

    model: ClassVar[str] = "resnet10"
    novel: Literal["val", "test"] = Field(
        "test",
        description="Classes of the test set: the 20 validation or the 20 test classes.",
    )
    normalise: Normalise = "own"

    def files(self) -> Sequence[Path]:
        return self._cifar100().files()

    def load(self) -> Splits:
        splits = fc100(self._cifar100().load(), self.novel)
        splits = self.normalised(splits, training_moments(splits.train))
        return splits if self.limit is None else replace(splits, train=splits.train.head(self.limit))

    def _cifar100(self) -> CIFAR100:
        return CIFAR100(path=self.path, verify=self.verify, offline=self.offline)


def fc100(cifar100: Splits, novel: Literal["val", "test"] = "test") -> Splits:
    """Split CIFAR-100 into the 60 base classes, labels 0 .. 59, and the 20 classes of `novel`, labels 0 .. 19.

    As published, both take all 600 images of each class, those of the official training set first. Labels follow the
    order of `cifar100`'s classes; mean and standard deviation stay. Raises `DataError` for other classes.
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


def _samples_of_classes(cifar100: Splits, class_ids: list[int]) -> Dataset:
    """All samples of these classes, relabelled 0 .. len(class_ids) - 1."""
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
