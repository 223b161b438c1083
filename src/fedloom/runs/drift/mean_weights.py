"""The weights with which a method's aggregation averages the uploads, noted while it does so."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fedloom.core.records import get_number
from fedloom.core.trees import Tree
from fedloom.data.statistics import total_variation
from fedloom.methods.contract.method import Method, Uploads, Weights
from fedloom.runs.storage.drift_log import DriftValue


class MeanWeights:
    """Notes the weights of `Method.mean`, call by call."""

    def __init__(self) -> None:
        self._calls: dict[str, list[dict[int, float]]] = {}
        self._replaced = False

    def noting(self, method: Method) -> Method:
        """Return a copy of a method that computes the same, and whose means are noted here. Earlier notes are lost."""
        self._calls, recorder, plain = {}, copy.copy(method), method.mean
        self._replaced = type(method).reduce is not Method.reduce

        def mean(uploads: Uploads, key: str = "model", weights: Weights = "samples", within: Tree | None = None) -> Any:
            if (numbers := _numbers(uploads, weights)) is not None:
                self._calls.setdefault(key, []).append(numbers)
            return plain(uploads, key, weights, within)

        recorder.mean = mean  # type: ignore[method-assign]
        return recorder

    def figures(self, entry: str, clients: Sequence[int], samples: dict[int, int]) -> list[DriftValue] | str:
        """Return the weight of each client and how far they are from others; or say in one line why there are none.

        Args:
            entry: the upload's entry that is averaged.
            clients: ids of the participants.
            samples: training samples by client.
        """
        if self._replaced:
            return f"a wrapper replaces the mean of {entry}: no aggregation weights"
        calls = [call for call in self._calls.get(entry, []) if list(call) == list(clients) and sum(call.values()) > 0]
        if not calls:
            return f"the server takes no weighted mean of all clients' {entry}: no aggregation weights"
        if any(call != calls[0] for call in calls):
            return f"the server averages {entry} several times, with different weights: no aggregation weights"
        shares = _shares([calls[0][client] for client in clients])
        sizes = _shares([float(samples[client]) for client in clients])
        uniform = [1 / len(clients)] * len(clients)
        return [
            DriftValue("weights_from_uniform", float(total_variation(shares, uniform))),
            DriftValue("weights_from_samples", float(total_variation(shares, sizes))),
            *(DriftValue("weight", share, client) for client, share in zip(clients, shares, strict=True)),
        ]


def _numbers(uploads: Uploads, weights: Weights) -> dict[int, float] | None:
    """The weights as one number for each client; None where they differ by class or by number."""
    if weights == "uniform":
        return dict.fromkeys(uploads, 1.0)
    if isinstance(weights, str):
        return {client: get_number(upload, "samples") for client, upload in uploads.items()}
    if isinstance(weights, Tensor):
        weights = weights.tolist() if weights.dim() == 1 else []
    numbers = [float(weight) for weight in weights if isinstance(weight, int | float | torch.Tensor)]
    return dict(zip(uploads, numbers, strict=True)) if len(numbers) == len(uploads) else None


def _shares(values: Sequence[float]) -> list[float]:
    total = sum(values)
    return [value / total for value in values]
