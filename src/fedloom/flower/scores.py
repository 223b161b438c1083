"""Scores of clients, which name who is unlike the others over many rounds. They refuse nothing, as honest ones differ.

length: binary logarithm of the largest norm of an upload over its limit. cosine: of an upload's change with the mean
direction of the others. twin: minus the logarithm of one minus its cosine with the most similar upload of another one.
test: share of the server's test samples that a client's own weights classify correctly. claim: accuracy that a client
reports of its own tests."""

import math
import statistics
from collections import deque
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor

from fedloom.core.records import Record
from fedloom.core.tables import ClassTable
from fedloom.core.trees import Tree
from fedloom.data.dataset import Dataset
from fedloom.flower.checks import changes
from fedloom.flower.node_data import FEWEST
from fedloom.methods.contract.spec import Sent
from fedloom.nets.blueprint import Bundle
from fedloom.nets.net import Net

Directions = Mapping[str, Tensor]  # unit vectors [_FOLDS], by entry of an upload
_FOLDS = 251  # numbers that keep the direction of a whole tree; prime, so that rows of weights do not align
_TESTED = 256  # samples of the server on which a client's weights are tried
_KEPT = 64  # values of earlier rounds, and directions of clients, with which those of small rounds are compared
_MOST_COMPARED = 1000  # newest clients with which each upload is compared
_LARGEST = 10.0  # deviation that one round counts as
OUTLYING = 3.0  # mean deviation from which on a client stands out, in robust standard deviations
# The sign of suspicious values (0: both), the spread of honest ones at least, and rounds before a client can stand out.
_SCORES = {
    "length": (1, 0.5, 3), "cosine": (-1, 0.1, 3), "twin": (1, 0.5, 3), "test": (-1, 0.05, 3), "claim": (0, 0.05, 1),
}  # fmt: skip


class ClientScores:
    """The scores of a run's clients: the last values, and the mean deviation from those of the others."""

    def __init__(self) -> None:
        self.values: dict[int, dict[str, float]] = {}  # by client
        self._sums: dict[int, dict[str, tuple[float, int]]] = {}  # of deviations, and their number
        self._usual: dict[str, float] = {}  # medians over clients
        self._earlier = {name: deque[tuple[int, float]](maxlen=_KEPT) for name in _SCORES}
        self._directions: dict[int, Directions] = {}

    def add(self, name: str, values: Mapping[int, float]) -> None:
        """Add the values of a round, by client."""
        sign, least, _ = _SCORES[name]
        # Claims also by their standard deviation, because some personal models have not trained yet.
        usual = _median_and_spread([*values.values()], name == "claim") if len(values) > _KEPT else None
        for client, value in values.items():
            self.values.setdefault(client, {})[name] = value
            if usual is None:
                others = [values[at] for at in values if at != client]
                if len(others) < FEWEST - 1:
                    others += [earlier for at, earlier in self._earlier[name] if at != client]
                if len(others) < 2:
                    continue
            self._usual[name], spread = usual or _median_and_spread(others, name == "claim")
            difference = value - self._usual[name]
            deviation = (sign * difference if sign else abs(difference)) / (spread + least)
            total, count = self._sums.setdefault(client, {}).get(name, (0.0, 0))
            self._sums[client][name] = total + min(_LARGEST, max(-_LARGEST, deviation)), count + 1
        self._earlier[name].extend(values.items())

    def add_directions(self, directions: Mapping[int, Directions], refused: Collection[int]) -> None:
        """Add the cosines of a round's uploads, by client; those of `refused` clients are no measure of others."""
        honest = {client: vectors for client, vectors in directions.items() if client not in refused}
        if len(honest) < FEWEST:
            honest = {**dict([*self._directions.items()][-_KEPT:]), **honest}
        sums: dict[str, Tensor] = {}
        for vectors in honest.values():
            for name, vector in vectors.items():
                sums[name] = sums.get(name, torch.zeros_like(vector)) + vector
        cosines = {}
        for client, vectors in directions.items():
            summed = honest.get(client, {})
            others = {name: sums[name] - summed.get(name, 0.0) for name in vectors if name in sums}
            of_entries = [float(vectors[name] @ rest / rest.norm()) for name, rest in others.items() if rest.any()]
            if of_entries:
                cosines[client] = statistics.fmean(of_entries)
        self.add("cosine", cosines)
        self.add("twin", _likeness(directions, dict([*honest.items()][-_MOST_COMPARED:])))
        for client in honest:
            self._directions.pop(client, None)
        self._directions |= honest
        for client in [*self._directions][:-_KEPT]:
            del self._directions[client]

    def deviation(self, client: int) -> tuple[float, str]:
        """Return a client's largest mean deviation over enough rounds, and its score."""
        sums = self._sums.get(client, {}).items()
        return max(((total / n, name) for name, (total, n) in sums if n >= _SCORES[name][2]), default=(0.0, ""))

    def sentence(self, client: int) -> str:
        """Return how a client that stands out is unlike the others."""
        deviation, name = self.deviation(client)
        value, usual, rounds = self.values[client][name], self._usual[name], self._sums[client][name][1]
        texts = {
            "length": f"its uploads are long: {2**value:.3g} of their limit, others' {2**usual:.3g}",
            "cosine": f"its uploads point elsewhere: cosine {value:.2f} with the others' mean, others {usual:.2f}",
            "twin": f"its uploads repeat another client's: cosine {1 - 10**-value:.6f}, others {1 - 10**-usual:.2f}",
            "test": f"its weights classify {100 * value:.1f} % of the server's samples, others' {100 * usual:.1f} %",
            "claim": f"it reports an accuracy of {100 * value:.1f} %, others {100 * usual:.1f} %",
        }
        return f"client {client} stands out by {deviation:.1f} deviations over {rounds} rounds: {texts[name]}"


def _median_and_spread(values: list[float], is_claim: bool) -> tuple[float, float]:
    median = statistics.median(values)
    spread = 1.4826 * statistics.median(abs(value - median) for value in values)
    return median, max(spread, statistics.pstdev(values)) if is_claim else spread


def _likeness(directions: Mapping[int, Directions], others: Mapping[int, Directions]) -> dict[int, float]:
    """Return by client how like the most similar one of the `others` it is: 1 for a cosine of 0.9, 2 for 0.99."""
    ids, other_ids = torch.tensor([*directions]), torch.tensor([*others])
    cosines = torch.where(ids[:, None] == other_ids, -1.0, 1.0).double()
    for name in {name for vectors in directions.values() for name in vectors}:
        rows, columns = (
            torch.stack([vectors.get(name, torch.zeros(_FOLDS, dtype=torch.float64)) for vectors in of.values()])
            for of in (directions, others)
        )
        cosines = torch.minimum(cosines, rows @ columns.T)  # colluders are alike in all entries
    nearest = cosines.amax(1).tolist() if others else []
    return {k: -math.log10(max(1e-6, 1 - c)) for k, c in zip(directions, nearest, strict=False) if others.keys() != {k}}


def directions(upload: Record, payload: Record, sends: Mapping[str, Sent]) -> Directions:
    """Return the directions of an upload's entries: of whole trees and of rows of class tables since the payload, and
    of all else as it is."""
    folded: dict[str, Tensor] = {}
    for name, value in upload.items():
        received: object = payload.get(name) if name in sends and sends[name].form == "whole" else None
        tensors: Mapping[str, Any] = value if isinstance(value, dict) else {"": value}
        if isinstance(value, ClassTable):
            table = (
                received if isinstance(received, ClassTable) and received.values.shape == value.values.shape else None
            )
            tensors = {"": (value if table is None else value.keep_classes(table.held)).values}
            received = None if table is None else {"": table.keep_classes(value.held).values}
        folded[name] = torch.zeros(_FOLDS, dtype=torch.float64)
        for _, _, change in changes(tensors, received):
            folded[name] += _folded(change.flatten())
    return {name: vector / norm for name, vector in folded.items() if 0 < (norm := float(vector.norm())) < math.inf}


def _folded(change: Tensor) -> Tensor:
    """Return sums [_FOLDS] of a change [n] with alternating signs, which keep the angles between long vectors."""
    rows = torch.nn.functional.pad(change, (0, -len(change) % _FOLDS)).view(-1, _FOLDS)
    return rows[::2].sum(0) - rows[1::2].sum(0)


def correct_share(net: Net, init: Tree, upload: Record, sends: Mapping[str, Sent], data: Dataset) -> float | None:
    """Return the share of 256 samples of `data` that `net` classifies correctly with the tree of an `upload` whose
    entry in `sends` is whole; None if none has all of `init`."""
    trees = (tree for name, tree in upload.items() if isinstance(tree, dict) and sends[name].form == "whole")
    fits = (tree for tree in trees if all(name in tree and tree[name].shape == init[name].shape for name in init))
    weights = None if isinstance(net, Bundle) or data.multi or not len(data) else next(fits, None)
    if weights is None:
        return None
    rows = torch.linspace(0, len(data) - 1, min(_TESTED, len(data))).long()
    with torch.no_grad():
        logits = net.functional.logits(weights, data.gather(rows))
    return float((logits.argmax(1) == data.y[rows]).double().mean())
