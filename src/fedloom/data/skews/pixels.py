"""Change samples by their client, with one changed copy of each array for any number of clients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedloom.core.errors import ConfigError
from fedloom.data.dataset import Dataset
from fedloom.data.scenario import Scenario
from fedloom.data.views import Indices

Change = Callable[[Dataset, Indices], Tensor]
"""(data, owner [n], -1 for nobody) -> changed x [n, ...], or labels y [n]."""


def change_samples(name: str, scenario: Scenario, change: Change, part: Literal["x", "y"] = "x") -> Scenario:
    """Return the scenario with training, validation and test samples changed by their client.

    Samples that nobody holds stay. Raises `ConfigError` if a test sample has two clients.

    Args:
        name: name of the skew in messages.
        scenario: the scenario before the skew.
        change: makes the pixels, or the labels, of a set from it and the owner of each sample [n], -1 where nobody
            holds it.
        part: what is changed: the samples x or their labels y.
    """
    owner = np.full(len(scenario.train_set), -1, np.int64)
    for views in (scenario.train, scenario.val):
        owner[views.order] = views.holders()
    test_owner = scenario.test.owner_of(len(scenario.test_set))
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
    """Raise `ConfigError` unless samples are images [c, h, w] of uint8 or float32.

    Args:
        name: name of the skew, for the message.
        data: the set.
    """
    if data.x.dim() != 4 or data.x.dtype not in (torch.uint8, torch.float32):
        kind = str(data.x.dtype).removeprefix("torch.")
        raise ConfigError(
            f"skew {name}: needs images [channels, height, width] of uint8 or float32; samples here are "
            f"{data.input_shape} of {kind}"
        )


def full_range(name: str, data: Dataset) -> float:
    """Return the largest stored value, taken for white; black is 0. Raises `ConfigError` for negative values.

    Args:
        name: name of the skew, for the message.
        data: the set.
    """
    if float(data.x.min()) < 0:
        raise ConfigError(f"skew {name}: needs pixels from 0 up; the smallest here is {float(data.x.min()):g}")
    return float(data.x.max()) or 1.0
