"""FC100: CIFAR-100 as a few-shot set, split by superclass, so that new classes are unlike the trained ones."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch

from fedloom.data.cifar100 import coarse_labels
from fedloom.data.dataset import Dataset
from fedloom.data.sources.source import Splits
from fedloom.data.views import Indices

Part = Literal["train", "val", "test"]

# Official coarse labels of each part: Oreshkin et al. 2018 (TADAM, arXiv 1805.10123), and the code they published.
PARTS: dict[Part, frozenset[int]] = {
    "train": frozenset({1, 2, 3, 4, 5, 6, 9, 10, 15, 17, 18, 19}),
    "val": frozenset({8, 11, 13, 16}),
    "test": frozenset({0, 7, 12, 14}),
}


def fc100(cifar100: Splits, novel: Literal["val", "test"] = "test") -> Splits:
    """The 60 base classes as training set, labels 0 .. 59; the 20 classes of `novel` as test set, labels 0 .. 19.

    As published, both take all 600 images of their classes, those of CIFAR-100's official training set first. Labels
    follow the order of `cifar100`'s classes; mean and standard deviation are left as they are. Raises `DataError` if
    the classes are not those of CIFAR-100.
    """
    coarse = coarse_labels(cifar100.train.classes)
    parts: tuple[Part, Part] = ("train", novel)
    return Splits(
        *(_classes(cifar100, [c for c, label in enumerate(coarse) if label in PARTS[part]]) for part in parts)
    )


def _classes(cifar100: Splits, chosen: list[int]) -> Dataset:
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
