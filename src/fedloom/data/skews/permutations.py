"""Groups of clients that see their pixels in another order, or call the classes by other names."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedloom.core.errors import ConfigError
from fedloom.data.dataset import Dataset
from fedloom.data.scenario import Scenario
from fedloom.data.skews.pixels import change_samples
from fedloom.data.skews.skew import Skew, skew
from fedloom.data.views import Indices

_AT_ONCE = 4096


@skew("permutations")
class Permutations(Skew):
    """Client k has permutation number k mod `groups`, of its labels or of its pixels, in training and test alike.

    Labels: a concept shift as in CFL's clusters (Sattler et al. 2020, arXiv 1910.01991): no model serves two groups.
    Pixels: permuted MNIST (Goodfellow et al. 2013, arXiv 1312.6211), the same order in all channels. The permutations
    are drawn all alike from the scenario's seed. Samples that nobody holds stay, so a global test set mixes groups.

        skews: [{name: permutations, of: labels, groups: 4}]
    """

    of: Literal["labels", "pixels"] = Field(
        "labels",
        description="What is permuted: `labels`, the names of the classes, or `pixels`, the places of an image's "
        "pixels or of the features.",
    )
    groups: int = Field(4, ge=2, description="Number of groups, each with a permutation of its own.")

    def apply(self, scenario: Scenario, rng: np.random.Generator) -> Scenario:
        data = scenario.train_set
        if self.groups > scenario.clients:
            raise ConfigError(
                f"skew permutations: groups = {self.groups}, but there are {scenario.clients} clients; need a client "
                "for each group"
            )
        if self.of == "labels":
            places = scenario.num_classes
        elif data.x.dtype not in (torch.uint8, torch.float32):
            raise ConfigError(f"skew permutations: of = 'pixels' needs images or features, samples are {data.x.dtype}")
        else:
            places = int(np.prod(data.input_shape[1:] or data.input_shape))
        orders = torch.from_numpy(rng.permuted(np.tile(np.arange(places), (self.groups, 1)), axis=1))
        if self.of == "labels":
            return change_samples(self.kind, scenario, lambda part, owner: _renamed(part, owner, orders), "y")
        return change_samples(self.kind, scenario, lambda part, owner: _reordered(part, owner, orders))


def _renamed(data: Dataset, owner: Indices, orders: Tensor) -> Tensor:
    group = torch.from_numpy(owner % len(orders))
    return torch.where(torch.from_numpy(owner >= 0), orders[group, data.y], data.y)


def _reordered(data: Dataset, owner: Indices, orders: Tensor) -> Tensor:
    result = data.x.clone()
    for number, order in enumerate(orders):
        rows = torch.from_numpy(np.flatnonzero((owner >= 0) & (owner % len(orders) == number)))
        for chunk in torch.split(rows, _AT_ONCE):
            samples = data.x[chunk]
            flat = samples.reshape(len(chunk), -1, len(order))
            result[chunk] = flat[:, :, order].reshape(samples.shape)
    return result
