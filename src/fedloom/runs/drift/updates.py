"""How the clients' updates of a round differ (lengths, angles, gradient diversity)."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from fedloom.core.records import Record, get_tree
from fedloom.core.trees import Tree
from fedloom.engine.round_report import ObservedRound
from fedloom.methods.contract.contexts import Task
from fedloom.methods.contract.spec import Spec
from fedloom.nets.net import Role
from fedloom.runs.storage.log import DriftValue

_BLOCK = 1 << 22  # float64 numbers of a block
_NO_WEIGHTS = frozenset({Role.BN_STAT, Role.COUNTER, Role.BUFFER})
Move = tuple[Tree, Tree | None]  # weights after and before; None where the first tree is a difference already


def weight_names(tree: Tree, task: Task, without: Collection[str] = ()) -> list[str]:
    """Name the entries of `tree`, except `without`, that are trained weights of the `task`, unlike statistics."""
    numbers = (name for name, value in tree.items() if value.is_floating_point() and name not in without)
    return [name for name in numbers if task.roles.get(name) not in _NO_WEIGHTS]


def flat(tree: Tree, names: Sequence[str]) -> Tensor:
    """Return the entries `names` one after another [P], float64."""
    parts = [tree[name].detach().reshape(-1).to("cpu", torch.float64) for name in names]
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)


def evenly(items: Sequence[int], most: int) -> list[int]:
    """Return the items, or `most` evenly spaced ones of them."""
    if len(items) <= most:
        return list(items)
    return [items[round(k * (len(items) - 1) / (most - 1))] for k in range(most)]


def _blocks(moves: Sequence[Move], names: Sequence[str]) -> Iterator[Tensor]:
    """Yield the updates [m, columns] in float64, some columns at a time, because all may not fit into memory."""
    width = max(1, _BLOCK // max(1, len(moves)))
    for name in names:
        for start in range(0, moves[0][0][name].numel(), width):
            columns = slice(start, start + width)
            parts = [
                [tree[name].detach().reshape(-1)[columns].to("cpu", torch.float64) for tree in move if tree is not None]
                for move in moves
            ]
            yield torch.stack([values[0] if len(values) == 1 else values[0] - values[1] for values in parts])


def ratio(top: float, bottom: float) -> float | None:
    """Return top / bottom; None where that is not defined."""
    return top / bottom if bottom > 0 else None


MOST_COMPARED = 20  # clients that are compared in pairs


def client_updates(observed: ObservedRound) -> Mapping[int, Move] | str:
    """Find the participants' weights after and before a round, or their changes, in its uploads; or say in one line why
    there are none."""
    name, spec = observed.method.name(), observed.method.spec
    clients = list(observed.uploads)
    uploads = [observed.uploads[client] for client in clients]
    entry = _entry(spec, uploads[0])
    if entry is None:
        sent = ", ".join(spec.sends) or "nothing"
        return f"{name} uploads no weights that can be compared ({sent}): no figures of updates"
    trees = [get_tree(upload, entry) for upload in uploads]
    if any(_shapes(tree) != _shapes(trees[0]) for tree in trees):
        return f"the clients' {entry} have different shapes: no figures of updates"
    if spec.sends[entry].form == "change":
        return {client: (tree, None) for client, tree in zip(clients, trees, strict=True)}
    payloads = [observed.payloads.get(client, {}) for client in clients]
    before = [_received(payload, entry, tree) for payload, tree in zip(payloads, trees, strict=True)]
    if any(tree is None for tree in before):
        return f"{name} sends clients no {entry} in this round: no figures of updates"
    return dict(zip(clients, zip(trees, before, strict=True), strict=True))


def update_figures(updates: Mapping[int, Move], task: Task, samples: Mapping[int, int]) -> list[DriftValue]:
    """Return lengths and angles of the clients' updates, whose mean weighs by training samples (by client); up to
    `MOST_COMPARED` clients are compared in pairs. `task` knows the roles."""
    clients, moves, count = list(updates), list(updates.values()), len(updates)
    sizes = torch.tensor([float(samples[client]) for client in clients], dtype=torch.float64)
    weights = sizes / sizes.sum()
    compared = evenly(range(count), MOST_COMPARED)
    squared, to_mean, squared_distances = (torch.zeros(count, dtype=torch.float64) for _ in range(3))
    mean_squared, products = 0.0, torch.zeros(len(compared), len(compared), dtype=torch.float64)
    for rows in _blocks(moves, weight_names(moves[0][0], task)):
        mean = weights @ rows
        squared += rows.square().sum(1)
        to_mean += rows @ mean
        squared_distances += (rows - mean).square().sum(1)
        mean_squared += float(mean @ mean)
        part = rows[compared]
        products += part @ part.T
    mean_norm, norms = math.sqrt(mean_squared), squared.sqrt().tolist()
    values = [
        DriftValue("mean_update_norm", mean_norm),
        DriftValue("diversity", ratio(float(weights @ squared), mean_squared)),
    ]
    for k, client in enumerate(clients):
        values += [
            DriftValue("update_norm", norms[k], client),
            DriftValue("distance_to_mean", math.sqrt(float(squared_distances[k])), client),
            DriftValue("cosine_to_mean", _cosine(float(to_mean[k]), norms[k], mean_norm), client),
        ]
    for i, first in enumerate(compared):
        for j, second in enumerate(compared[:i]):
            cosine = _cosine(float(products[i, j]), norms[first], norms[second])
            values.append(DriftValue("cosine", cosine, clients[second], clients[first]))
    return values


def _entry(spec: Spec, upload: Record) -> str | None:
    """The entry of an upload that holds weights or their change: "model", or else the first."""
    sent = [name for name, sent in spec.sends.items() if sent.form in ("whole", "change")]
    names = [name for name in sent if isinstance(upload.get(name), dict)]
    return "model" if "model" in names else next(iter(names), None)


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
    # Rounding may leave a cosine just outside its range.
    return None if value is None or math.isnan(value) else max(-1.0, min(1.0, value))
