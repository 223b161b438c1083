"""How measured columns are standardised where no node may read another's: counts, means and squares, pooled once."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field

from fedloom.core.errors import RunFolderError
from fedloom.core.files import write_atomic
from fedloom.data import Dataset, Scenario
from fedloom.data.sources.nodes import Nodes
from fedloom.flower.bounds import FEWEST

Means = tuple[Annotated[float, Field(ge=-1e30, le=1e30)], ...]  # float32 can have their squares' root
_FILE = "flower-scale.json"
FARTHEST = 30.0  # times the usual distance from the mean


class Moments(BaseModel):
    """What a node tells of its training samples, for each measured feature: the mean, and the sum of squared distances
    from it."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    mean: Means
    squares: tuple[Annotated[float, Field(ge=0, le=1e70)], ...]


class Scale(BaseModel):
    """What all nodes and the server use: nets see (value - mean) / std, for each measured feature."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    mean: Means
    std: tuple[Annotated[float, Field(gt=0, le=1e35)], ...]

    def on(self, data: Dataset, nodes: Nodes) -> Dataset:
        """`data`, whose measured features nets see so; the others as they are stored."""
        mean, std, places = torch.zeros(nodes.input_shape), torch.ones(nodes.input_shape), list(nodes.numeric_features)
        mean[places], std[places] = torch.tensor(self.mean), torch.tensor(self.std)
        return replace(data, mean=mean, std=std)

    def on_all(self, scenario: Scenario, nodes: Nodes) -> Scenario:
        """The same for the samples of a scenario."""
        train, test = (self.on(data, nodes) for data in (scenario.train_set, scenario.test_set))
        public = None if scenario.public is None else self.on(scenario.public, nodes)
        return replace(scenario, train_set=train, test_set=test, public=public)


@dataclass(frozen=True, slots=True)
class ClientMoments:
    """One node's moments of `samples` training samples."""

    samples: int
    moments: Moments


def moments_of(data: Dataset, rows: np.ndarray, measured: Collection[int]) -> Moments:
    """Over the samples `rows` [n] of `data`, in float64."""
    mean, squares = [], []
    for feature in measured:
        held = data.x[torch.from_numpy(rows), feature].numpy().astype(np.float64)
        varies = held.min() < held.max()  # not the rounding error of the mean
        mean.append(float(held.mean() if varies else held[0]))
        squares.append(float(held.var() * len(held)) if varies else 0.0)
    return Moments(mean=tuple(mean), squares=tuple(squares))


def outliers(parts: Mapping[int, ClientMoments], features: Sequence[str]) -> dict[int, str]:
    """Clients whose moments lie far from the others', and why; nobody where there are fewer than four clients.

    A client is compared with the median over clients of the mean and of the root mean square distance from it. Whoever
    measures in another unit, or tells moments that no data have, would become the scale of all.
    """
    if len(parts) < FEWEST:
        return {}
    clients = list(parts)
    means, squares = (np.array([getattr(parts[k].moments, key) for k in clients]) for key in ("mean", "squares"))
    deviations = np.sqrt(squares / np.array([max(1, parts[k].samples) for k in clients])[:, None])
    centre = np.median(means, axis=0)
    spread = np.median(np.sqrt(deviations**2 + (means - centre) ** 2), axis=0)
    unit = np.where(spread > 0, spread, 1e6 * np.maximum(1.0, np.abs(centre)) / FARTHEST)
    refused = {}
    for name, values in (("mean", np.abs(means - centre)), ("deviation", deviations)):
        for row, column in zip(*np.nonzero(values > FARTHEST * unit), strict=True):
            shown = (means if name == "mean" else deviations)[row, column]
            usual = (centre if name == "mean" else spread)[column]
            refused[clients[row]] = (
                f"its {name} of '{features[column]}' is {shown:.4g}, where the median client's is {usual:.4g}; is it "
                "measured in another unit?"
            )
    return refused


def pooled(parts: Collection[ClientMoments]) -> Scale:
    """Mean and deviation of all samples together, summed in this order in float64; a constant feature gets 1."""
    samples = np.array([part.samples for part in parts], np.float64)[:, None]
    means, squares = (np.array([getattr(part.moments, key) for part in parts]) for key in ("mean", "squares"))
    mean = (samples * means).sum(0) / samples.sum()
    mean = np.where((means == means[0]).all(0), means[0], mean)
    variance = (squares + samples * (means - mean) ** 2).sum(0) / samples.sum()
    return Scale(mean=tuple(mean.tolist()), std=tuple(np.where(variance > 0, np.sqrt(variance), 1.0).tolist()))


def read_scale(out: Path | None) -> Scale | None:
    """What a run in `out` uses; None if it has not begun."""
    if out is None or not (out / _FILE).exists():
        return None
    try:
        return Scale.model_validate_json((out / _FILE).read_text(encoding="utf-8"))
    except ValueError:
        raise RunFolderError(f"{out / _FILE}: damaged; start the run again in another folder") from None


def keep_scale(out: Path, scale: Scale) -> None:
    """Keep it for a server that starts again."""
    write_atomic(out / _FILE, scale.model_dump_json())
