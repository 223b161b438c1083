"""The base of skews, which make clients differ beyond the partition."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from fedloom.core.errors import ConfigError
from fedloom.core.registry import Registry
from fedloom.core.streams import Streams
from fedloom.data.dataset import Dataset
from fedloom.data.scenario import Scenario
from fedloom.data.views import Indices

SKEWS: Registry[type[Skew]] = Registry("skew", home="fedloom.data.skews")


class Skew(BaseModel):
    """Base of all skews: its fields are its config keys.

    A skew works at one of two moments, or at both; each default changes nothing. Both are pure in their arguments, and
    no sample is ever copied per client: where pixels change, one changed copy of the whole array takes its place."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    kind: ClassVar[str] = ""
    """The name under which it is registered."""

    def thin(self, train: Dataset, rows: Indices, rng: np.random.Generator) -> Indices:
        """Return which of the training samples remain, ascending; called before the partition. rows: row numbers of
        samples of the training set [m], int64. rng: the skew's random stream."""
        return rows

    def apply(self, scenario: Scenario, rng: np.random.Generator) -> Scenario:
        """Return the scenario with other views or samples; called after partition and splits."""
        return scenario


skew = SKEWS.register
"""`skew(name)` registers the decorated skew class under `name`."""


def derive_streams(skews: Sequence[Skew], streams: Streams) -> list[Streams]:
    """Return a root of randomness for each of the skews, from its name and how many of that name came before: a skew
    draws the same numbers whatever other skews are added or removed."""
    occurrences: Counter[str] = Counter()
    roots = []
    for skew in skews:
        roots.append(Streams(streams.key(f"skew/{skew.kind}", occurrences[skew.kind])))
        occurrences[skew.kind] += 1
    return roots


Change = Callable[[Dataset, Indices], Tensor]
"""(data, owner [n], -1 for none) -> changed x [n, ...], or labels y [n]."""


def change_samples(name: str, scenario: Scenario, change: Change, part: Literal["x", "y"] = "x") -> Scenario:
    """Return the scenario with training, validation and test samples changed by their client; `change` returns the new
    samples x, or the new labels y if `part` says so. Raises `ConfigError`, with the skew's name, if a test sample has
    two clients."""
    # A training sample has one client at most (`Partition.deal`); test samples may have several.
    owner = np.full(len(scenario.train_set), -1, np.int64)
    for views in (scenario.train, scenario.val):
        owner[views.order] = views.holders()
    test_owner = scenario.test.owner_of(len(scenario.test_set))
    # `owner_of` names one client for each sample: fewer owners than entries mean that a sample is shared.
    if (test_owner >= 0).sum() < len(scenario.test.order):
        raise ConfigError(f"skew {name}: some test samples belong to several clients; they cannot look like each's")
    return replace(
        scenario,
        train_set=_with(scenario.train_set, part, change(scenario.train_set, owner)),
        test_set=_with(scenario.test_set, part, change(scenario.test_set, test_owner)),
    )


def _with(data: Dataset, part: Literal["x", "y"], changed: Tensor) -> Dataset:
    return replace(data, x=changed) if part == "x" else replace(data, y=changed)


def require_images(name: str, data: Dataset) -> None:
    """Raise `ConfigError`, with the skew's name, unless data are images [c, h, w] of uint8 or float32."""
    if data.x.dim() != 4 or data.x.dtype not in (torch.uint8, torch.float32):
        kind = str(data.x.dtype).removeprefix("torch.")
        raise ConfigError(
            f"skew {name}: needs images [channels, height, width] of uint8 or float32; samples here are "
            f"{data.input_shape} of {kind}"
        )


def full_range(name: str, data: Dataset) -> float:
    """Return the largest stored value of data, taken for white; black is 0. Raises `ConfigError`, with the skew's name,
    for negative values."""
    if float(data.x.min()) < 0:
        raise ConfigError(f"skew {name}: needs pixels from 0 up; the smallest here is {float(data.x.min()):g}")
    return float(data.x.max()) or 1.0
