"""Standardisation of numeric columns across nodes, from the counts, means and squares that each node reports."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field

from fedloom.core.errors import RunFolderError
from fedloom.core.files import read_file, write_atomic
from fedloom.data import Dataset, Scenario
from fedloom.data.sources.nodes import Nodes
from fedloom.flower.bounds import FEWEST

Means = tuple[Annotated[float, Field(ge=-1e30, le=1e30)], ...]  # deviations of such values fit float32
_FILE = "flower-scale.json"
FARTHEST = 30.0  # largest deviation from the median client, over the usual one


class ChannelMoments(BaseModel):
    """For each numeric feature of a node's training samples: the mean, and the sum of squared distances from it."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    mean: Means
    squares: tuple[Annotated[float, Field(ge=0, le=1e70)], ...]


class Scale(BaseModel):
    """The common standardisation: nets see (value - mean) / std of each numeric feature."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    mean: Means
    std: tuple[Annotated[float, Field(gt=0, le=1e35)], ...]

    def apply(self, data: Dataset, nodes: Nodes) -> Dataset:
        """Return `data` with this standardisation; other features stay as they are stored."""
        mean, std, columns = torch.zeros(nodes.input_shape), torch.ones(nodes.input_shape), list(nodes.numeric_features)
        mean[columns], std[columns] = torch.tensor(self.mean), torch.tensor(self.std)
        return replace(data, mean=mean, std=std)

    def apply_to_scenario(self, scenario: Scenario, nodes: Nodes) -> Scenario:
        """Return a scenario with this standardisation of all its samples."""
        train, test = (self.apply(data, nodes) for data in (scenario.train_set, scenario.test_set))
        public = None if scenario.public is None else self.apply(scenario.public, nodes)
        scaled = replace(scenario, train_set=train, test_set=test, public=public)
        if scenario.newcomers is None:
            return scaled
        newcomers = self.apply_to_scenario(scenario.newcomers, nodes)
        return replace(scaled, newcomers=replace(newcomers, train_set=train))


@dataclass(frozen=True, slots=True)
class ClientMoments:
    """The moments of one client's `samples` training samples."""

    samples: int
    moments: ChannelMoments


def moments_of(data: Dataset, rows: np.ndarray, measured: Collection[int]) -> ChannelMoments:
    """Return the moments of samples, computed in float64.

    Args:
        data: a node's data.
        rows: row numbers of its training samples [n], int64.
        measured: indices of the measured features.
    """
    mean, squares = [], []
    for feature in measured:
        values = data.x[torch.from_numpy(rows), feature].numpy().astype(np.float64)
        varies = values.min() < values.max()  # a constant feature gets exact moments, without rounding errors
        mean.append(float(values.mean() if varies else values[0]))
        squares.append(float(values.var() * len(values)) if varies else 0.0)
    return ChannelMoments(mean=tuple(mean), squares=tuple(squares))


def outliers(reported: Mapping[int, ClientMoments], features: Sequence[str]) -> dict[int, str]:
    """Return the clients whose moments lie far from the others', with the reason.

    A client is compared with the medians, over clients, of the mean and of the root mean square distance from it. A
    client that measures in another unit would otherwise dominate the scale. Fewer than four clients are not compared.
    """
    if len(reported) < FEWEST:
        return {}
    clients = list(reported)
    means, squares = (np.array([getattr(reported[k].moments, key) for k in clients]) for key in ("mean", "squares"))
    deviations = np.sqrt(squares / np.array([max(1, reported[k].samples) for k in clients])[:, None])
    centre = np.median(means, axis=0)
    spread = np.median(np.sqrt(deviations**2 + (means - centre) ** 2), axis=0)
    unit = np.where(spread > 0, spread, 1e6 * np.maximum(1.0, np.abs(centre)) / FARTHEST)
    refused = {}
    for name, values in (("mean", np.abs(means - centre)), ("deviation", deviations)):
        for row, column in zip(*np.nonzero(values > FARTHEST * unit), strict=True):
            value = (means if name == "mean" else deviations)[row, column]
            typical_value = (centre if name == "mean" else spread)[column]
            refused[clients[row]] = (
                f"its {name} of '{features[column]}' is {value:.4g}, where the median client's is {typical_value:.4g}; "
                "is it measured in another unit?"
            )
    return refused


def pool_moments(reported: Collection[ClientMoments]) -> Scale:
    """Return mean and deviation over all samples, summed in client order in float64; a constant feature gets 1."""
    samples = np.array([client.samples for client in reported], np.float64)[:, None]
    means, squares = (np.array([getattr(client.moments, key) for client in reported]) for key in ("mean", "squares"))
    mean = (samples * means).sum(0) / samples.sum()
    mean = np.where((means == means[0]).all(0), means[0], mean)
    variance = (squares + samples * (means - mean) ** 2).sum(0) / samples.sum()
    return Scale(mean=tuple(mean.tolist()), std=tuple(np.where(variance > 0, np.sqrt(variance), 1.0).tolist()))


def read_scale(out: Path | None) -> Scale | None:
    """Read the scale of the run in `out`; None if the run is new. Raises `RunFolderError` for a damaged file."""
    if out is None or not (out / _FILE).exists():
        return None
    try:
        return Scale.model_validate_json(read_file(out / _FILE))
    except (OSError, ValueError):
        raise RunFolderError(f"{out / _FILE}: damaged; start the run again in another folder") from None


def write_scale(out: Path, scale: Scale) -> None:
    """Write the scale to the run's folder, for a restarted server."""
    write_atomic(out / _FILE, scale.model_dump_json())
