"""FC100 from the files of CIFAR-100."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Literal

from fedloom.data.fc100 import fc100
from fedloom.data.sources.cached import Normalise, own_moments
from fedloom.data.sources.cifar import CIFAR100
from fedloom.data.sources.source import Splits, source


@source("fc100")
class FC100(CIFAR100):
    """FC100 (Oreshkin et al. 2018): CIFAR-100 split by superclass into 60 training, 20 validation and 20 test classes.

    Training data are all images of the 60 base classes, official test images included; the test set holds other
    classes, the 20 of `novel`, so that only `evaluation: {protocol: few-shot}` can test on it. Files and keys as for
    cifar100, of which it uses the cache entry. `normalise: own` is by the base images: nothing of a new class is known
    in training.
    """

    model: ClassVar[str] = "resnet10"
    novel: Literal["val", "test"] = "test"
    normalise: Normalise = "own"

    def files(self) -> Sequence[Path]:
        return self._whole().files()

    def load(self) -> Splits:
        split = fc100(self._whole().load(), self.novel)
        split = self.scaled(split, own_moments(split.train))
        return split if self.limit is None else Splits(split.train.first(self.limit), split.test)

    def _whole(self) -> CIFAR100:
        return CIFAR100(path=self.path, verify=self.verify, offline=self.offline)
