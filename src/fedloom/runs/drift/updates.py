"""How the clients' updates of a round differ: lengths, angles, gradient diversity."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from fedloom.core.records import Record, Value
from fedloom.core.trees import Tree
from fedloom.engine.observed_round import ObservedRound
from fedloom.methods.contract.contexts import Task
from fedloom.methods.contract.spec import Spec
from fedloom.runs.drift.vectors import Move, evenly, geometry, ratio, weight_names
from fedloom.runs.storage.drift_log import DriftValue

MOST_COMPARED = 20  # clients that are compared in pairs


@dataclass(frozen=True, slots=True)
class ClientUpdates:
    """The changes of weights in the clients' uploads.

    Attributes:
        entry: name of the upload's entry.
        clients: ids of the participants, in order.
        moves: their weights after and before the round.
    """

    entry: str
    clients: Sequence[int]
    moves: Sequence[Move]


def client_updates(observed: ObservedRound) -> ClientUpdates | str:
    """Find the weights, or changes of weights, in a round's uploads; or say in one line why there are none."""
    name, spec = observed.method.name(), observed.method.spec
    clients = list(observed.uploads)
    uploads = [observed.uploads[client] for client in clients]
    entry = _entry(spec, uploads[0])
    if entry is None:
        sent = ", ".join(spec.sends) or "nothing"
        return f"{name} uploads no weights that can be compared ({sent}): no figures of updates"
    trees = [_tree(upload[entry]) for upload in uploads]
    if any(_shapes(tree) != _shapes(trees[0]) for tree in trees):
        return f"the clients' {entry} have different shapes: no figures of updates"
    if spec.sends[entry].form == "change":
        return ClientUpdates(entry, clients, [(tree, None) for tree in trees])
    before = [
        _received(observed.payloads.get(client, {}), entry, tree) for client, tree in zip(clients, trees, strict=True)
    ]
    if any(tree is None for tree in before):
        return f"{name} sends clients no {entry} in this round: no figures of updates"
    return ClientUpdates(entry, clients, list(zip(trees, before, strict=True)))


def update_figures(updates: ClientUpdates, task: Task, samples: Mapping[int, int]) -> list[DriftValue]:
    """Return the figures of the clients' updates.

    Args:
        updates: the updates.
        task: has the roles of the entries.
        samples: training samples by client, by which the mean weighs.
    """
    clients = updates.clients
    sizes = torch.tensor([float(samples[client]) for client in clients], dtype=torch.float64)
    weights = sizes / sizes.sum()
    compared = evenly(range(len(clients)), MOST_COMPARED)
    names = weight_names(updates.moves[0][0], task)
    moves = geometry(updates.moves, names, weights, compared)
    mean_norm = math.sqrt(moves.mean_squared)
    values = [
        DriftValue("mean_update_norm", mean_norm),
        DriftValue("diversity", ratio(float(weights @ moves.squared), moves.mean_squared)),
    ]
    norms = moves.squared.sqrt().tolist()
    for k, client in enumerate(clients):
        values += [
            DriftValue("update_norm", norms[k], client),
            DriftValue("distance_to_mean", math.sqrt(float(moves.squared_distances[k])), client),
            DriftValue("cosine_to_mean", _cosine(float(moves.to_mean[k]), norms[k], mean_norm), client),
        ]
    for i, first in enumerate(compared):
        for j, second in enumerate(compared[:i]):
            cosine = _cosine(float(moves.products[i, j]), norms[first], norms[second])
            values.append(DriftValue("cosine", cosine, clients[second], clients[first]))
    return values


def _entry(spec: Spec, upload: Record) -> str | None:
    """The entry of an upload that holds weights or their change: "model", or else the first."""
    names = [
        name
        for name, sent in spec.sends.items()
        if sent.form in ("whole", "change") and isinstance(upload.get(name), dict)
    ]
    return "model" if "model" in names else next(iter(names), None)


def _tree(value: Value) -> Tree:
    assert isinstance(value, dict)
    return value


def _shapes(tree: Tree) -> dict[str, torch.Size]:
    return {name: value.shape for name, value in tree.items()}


def _received(payload: Record, entry: str, tree: Tree) -> Tree | None:
    """The weights that a client was sent, with at least the entries of `tree`: those of the same name come first."""
    shapes = _shapes(tree)
    for value in (payload.get(entry), *payload.values()):
        if isinstance(value, dict) and shapes.items() <= _shapes(value).items():
            return value
    return None


def _cosine(product: float, first: float, second: float) -> float | None:
    value = ratio(product, first * second)
    return None if value is None or math.isnan(value) else max(-1.0, min(1.0, value))
