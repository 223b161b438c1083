"""Stand-ins for data that are not here: as many samples of the same shape and classes, all of them black.

Sizes of a partition, and the cost of a run, do not depend on pixels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from fedloom.core.errors import ConfigError
from fedloom.data import Dataset, Scenario
from fedloom.data.sources.cifar import CIFAR10, CIFAR100
from fedloom.data.sources.source import Splits
from fedloom.study.config import RunConfig

_OF_PIXELS = ("noise", "transforms")


@dataclass(frozen=True, slots=True)
class Shape:
    """Samples of a source: their shape, classes, and how many train and test; of each domain, where it has domains."""

    sample: tuple[int, ...]
    classes: tuple[str, ...]
    train: tuple[int, ...]
    test: tuple[int, ...]
    words: bool = False
    test_classes: tuple[str, ...] | None = None  # where they are others than those that train

    def splits(self) -> Splits:
        """Black samples of this shape. They share their memory."""
        return Splits(self._part(self.train, self.classes), self._part(self.test, self.test_classes or self.classes))

    def _part(self, sizes: Sequence[int], classes: tuple[str, ...]) -> Dataset:
        one = torch.ones(1, *self.sample, dtype=torch.int64 if self.words else torch.uint8)
        y = torch.cat([torch.arange(size) % len(classes) for size in sizes])
        several = len(sizes) > 1
        return Dataset(
            one.expand(len(y), *self.sample),
            y,
            classes,
            domain=torch.from_numpy(np.repeat(np.arange(len(sizes)), sizes)) if several else None,
            domains=tuple(f"domain {k}" for k in range(len(sizes))) if several else (),
        )


def _named(n: int) -> tuple[str, ...]:
    return tuple(map(str, range(n)))


_SHAPES: dict[str, Shape] = {
    "digits": Shape((1, 8, 8), _named(10), (1442,), (355,)),
    "mnist": Shape((1, 28, 28), _named(10), (60_000,), (10_000,)),
    "fashion-mnist": Shape((1, 28, 28), _named(10), (60_000,), (10_000,)),
    "cifar10": Shape((3, 32, 32), CIFAR10.class_names, (50_000,), (10_000,)),
    "cifar100": Shape((3, 32, 32), CIFAR100.class_names, (50_000,), (10_000,)),
    "tiny-imagenet": Shape((3, 64, 64), _named(200), (100_000,), (10_000,)),
    "emnist": Shape((1, 28, 28), _named(47), (697_932,), (116_323,)),
    "fc100": Shape((3, 32, 32), _named(60), (36_000,), (12_000,), test_classes=_named(20)),
    "imdb": Shape((200,), _named(2), (25_000,), (25_000,), words=True),
    "domains": Shape((3, 28, 28), _named(10), (), ()),  # of its parts
    "office-caltech10": Shape((3, 256, 256), _named(10), (766, 898, 125, 236), (192, 225, 32, 59)),
    "domainnet": Shape(
        (3, 256, 256), _named(10), (2103, 2626, 2472, 4000, 4864, 2213), (526, 657, 619, 1000, 1217, 554)
    ),
}

# train and test of a domain: FedBN's released splits, and a fifth of what our own sources draw
_DOMAINS: dict[str, tuple[int, int]] = {
    "mnist": (7438, 14_000),
    "svhn": (7438, 19_858),
    "usps": (7438, 1860),
    "synthdigits": (7438, 97_791),
    "mnist-m": (7438, 14_000),
    "rendered": (8000, 2000),
    "blended": (1438, 359),
}


def shape_of(config: RunConfig) -> Shape:
    """The shape of a config's data. Raises `ConfigError` for a source, or a domain, of unknown size."""
    source = config.scenario.source
    if source not in _SHAPES:
        raise ConfigError(f"scenario.source = '{source}': none of the papers' data; known: {', '.join(_SHAPES)}")
    shape, extra = _SHAPES[source], dict(config.scenario.model_extra or {})
    if source == "domains":
        train, test = zip(*(_domain(part) for part in extra["parts"]), strict=True)
        shape = replace(shape, train=train, test=test)
    if len(shape.sample) == 3 and "size" in extra:
        shape = replace(shape, sample=(shape.sample[0], int(extra["size"]), int(extra["size"])))
    most = extra.get("per_domain")
    return replace(shape, train=tuple(min(most, n) for n in shape.train)) if most else shape


def _domain(part: str | Mapping[str, Any]) -> tuple[int, int]:
    source = part if isinstance(part, str) else part["source"]
    if source not in _DOMAINS:
        raise ConfigError(f"scenario.parts: size of '{source}' is not known here; known: {', '.join(_DOMAINS)}")
    return _DOMAINS[source]


def stand_in(config: RunConfig, splits: Splits | None = None) -> Scenario:
    """The scenario of a config, dealt from black samples. Skews that change pixels alone are left out."""
    skews = tuple(skew for skew in config.scenario.skews if skew["name"] not in _OF_PIXELS)
    plain = config.scenario.model_copy(update={"skews": skews})
    return plain.build(config.seed, splits or shape_of(config).splits())
