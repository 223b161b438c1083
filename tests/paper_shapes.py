"""Stand-ins for data that are not on this machine: as many samples of the same shape and classes, all of them black.

They suffice for the sizes of a partition and the cost of a run, which do not depend on pixels.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from fedloom.core.errors import ConfigError
from fedloom.data import Dataset, Scenario
from fedloom.data.sources.cifar import CIFAR10, CIFAR100
from fedloom.data.sources.source import Splits
from fedloom.runs.config.run_config import RunConfig

_PIXEL_SKEWS = ("noise", "rotations", "transforms")


@dataclass(frozen=True, slots=True)
class Shape:
    """The samples of a source.

    - sample: shape of one, without the batch dimension. words: it holds tokens, not pixels.
    - train, test: numbers of samples, one for each domain.
    - test_classes: the classes of the test samples, where they are others than those that train.
    """

    sample: tuple[int, ...]
    classes: tuple[str, ...]
    train: tuple[int, ...]
    test: tuple[int, ...]
    words: bool = False
    test_classes: tuple[str, ...] | None = None

    def splits(self) -> Splits:
        """Make black samples of this shape. They share their memory."""
        test_classes = self.test_classes or self.classes
        return Splits(self._dataset(self.train, self.classes), self._dataset(self.test, test_classes))

    def smallest_splits(self) -> Splits:
        """Make black samples of one pixel, or one word, with the labels and domains of `splits`."""
        return replace(self, sample=(1,) if self.words else (self.sample[0], 1, 1)).splits()

    def _dataset(self, sizes: Sequence[int], classes: tuple[str, ...]) -> Dataset:
        sample = torch.ones(1, *self.sample, dtype=torch.int64 if self.words else torch.uint8)
        y = torch.from_numpy(np.concatenate([np.arange(size) % len(classes) for size in sizes]))  # on one thread
        several = len(sizes) > 1
        return Dataset(
            sample.expand(len(y), *self.sample),
            y,
            classes,
            domain=torch.from_numpy(np.repeat(np.arange(len(sizes)), sizes)) if several else None,
            domains=tuple(f"domain {k}" for k in range(len(sizes))) if several else (),
        )


def _class_names(n: int) -> tuple[str, ...]:
    return tuple(map(str, range(n)))


_SHAPES: dict[str, Shape] = {
    "digits": Shape((1, 8, 8), _class_names(10), (1442,), (355,)),
    "mnist": Shape((1, 28, 28), _class_names(10), (60_000,), (10_000,)),
    "fashion-mnist": Shape((1, 28, 28), _class_names(10), (60_000,), (10_000,)),
    "cifar10": Shape((3, 32, 32), CIFAR10.class_names, (50_000,), (10_000,)),
    "cifar100": Shape((3, 32, 32), CIFAR100.class_names, (50_000,), (10_000,)),
    "tiny-imagenet": Shape((3, 64, 64), _class_names(200), (100_000,), (10_000,)),
    "emnist": Shape((1, 28, 28), _class_names(47), (697_932,), (116_323,)),
    "fc100": Shape((3, 32, 32), _class_names(60), (36_000,), (12_000,), test_classes=_class_names(20)),
    "imdb": Shape((200,), _class_names(2), (25_000,), (25_000,), words=True),
    "domains": Shape((3, 28, 28), _class_names(10), (), ()),  # the sizes are those of its parts
    "office-caltech10": Shape((3, 256, 256), _class_names(10), (766, 898, 125, 236), (192, 225, 32, 59)),
    "domainnet": Shape(
        (3, 256, 256), _class_names(10), (2103, 2626, 2472, 4000, 4864, 2213), (526, 657, 619, 1000, 1217, 554)
    ),
}

# Train and test samples of a domain: FedBN's released splits, and of our own sources a fifth of what they draw.
_DOMAIN_SIZES: dict[str, tuple[int, int]] = {
    "mnist": (7438, 14_000),
    "svhn": (7438, 19_858),
    "usps": (7438, 1860),
    "synthdigits": (7438, 97_791),
    "mnist-m": (7438, 14_000),
    "rendered": (8000, 2000),
    "blended": (1438, 359),
}


def shape_of(config: RunConfig) -> Shape:
    """Look up the shape of a config's data. Raises `ConfigError` for a source, or a domain, of unknown size."""
    source = config.scenario.source
    if source not in _SHAPES:
        raise ConfigError(f"scenario.source = '{source}': none of the papers' data; known: {', '.join(_SHAPES)}")
    shape, extra = _SHAPES[source], dict(config.scenario.model_extra or {})
    if source == "domains":
        train, test = zip(*(_domain_size(part) for part in extra["parts"]), strict=True)
        shape = replace(shape, train=train, test=test)
    if len(shape.sample) == 3 and "size" in extra:
        shape = replace(shape, sample=(shape.sample[0], int(extra["size"]), int(extra["size"])))
    limit = extra.get("per_domain")
    return replace(shape, train=tuple(min(limit, size) for size in shape.train)) if limit else shape


def _domain_size(part: str | Mapping[str, Any]) -> tuple[int, int]:
    source = part if isinstance(part, str) else part["source"]
    if source not in _DOMAIN_SIZES:
        raise ConfigError(f"scenario.parts: size of '{source}' is not known here; known: {', '.join(_DOMAIN_SIZES)}")
    return _DOMAIN_SIZES[source]


def stand_in(config: RunConfig) -> Scenario:
    """Deal a config's scenario from samples of one black pixel, because only labels are dealt, without the skews that
    change pixels alone."""
    skews = tuple(skew for skew in config.scenario.skews if skew["name"] not in _PIXEL_SKEWS)
    without_pixels = config.scenario.model_copy(update={"skews": skews})
    return without_pixels.build(config.seed, shape_of(config).smallest_splits())
