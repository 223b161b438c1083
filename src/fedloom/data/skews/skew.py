"""The base of skews, which make clients differ beyond the partition."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np
from pydantic import BaseModel, ConfigDict

from fedloom.core.registry import Registry
from fedloom.core.streams import Streams
from fedloom.data.dataset import Dataset
from fedloom.data.scenario import Scenario
from fedloom.data.views import Indices

SKEWS: Registry[type[Skew]] = Registry("skew", home="fedloom.data.skews")


class Skew(BaseModel):
    """Base of all skews: its fields are its config keys.

    A skew works at one of two moments, or at both; each default changes nothing. Both are pure in their arguments, and
    no sample is ever copied per client: where pixels change, one changed copy of the whole array takes its place.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    kind: ClassVar[str] = ""
    """The name under which it is registered."""

    def thin(self, train: Dataset, rows: Indices, rng: np.random.Generator) -> Indices:
        """Return which of the training samples remain, ascending; called before the partition.

        Args:
            train: the training set.
            rows: row numbers of its samples [m], int64.
            rng: the skew's random stream.
        """
        return rows

    def apply(self, scenario: Scenario, rng: np.random.Generator) -> Scenario:
        """Return the scenario with other views or samples; called after partition and splits."""
        return scenario


def skew(name: str) -> Callable[[type[Skew]], type[Skew]]:
    """Return a class decorator that registers a skew as `name`."""

    def register_class(skew_class: type[Skew]) -> type[Skew]:
        skew_class.kind = name
        return SKEWS.register(name)(skew_class)

    return register_class


def derive_streams(skews: Sequence[Skew], streams: Streams) -> list[Streams]:
    """Return a root of randomness for each skew, from its name and how many of that name came before.

    A skew thus draws the same numbers whatever other skews are added or removed.
    """
    occurrences: Counter[str] = Counter()
    roots = []
    for skew in skews:
        roots.append(Streams(streams.key(f"skew/{skew.kind}", occurrences[skew.kind])))
        occurrences[skew.kind] += 1
    return roots
