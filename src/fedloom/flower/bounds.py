"""How large an upload may be beside the others of its round: one rule for trees, heads, class tables and numbers.

An upload is measured item by item, each by its L2 norm: the change of a tree's entries since they were sent, body, head
and batch norm apart; every row of a class table; every tensor and number. The reference of an item is the median over
the round's clients, or the largest such median of the run so far: changes become tiny when training converges, and a
client that still learns must not be refused for it. A client with more samples than the median client makes more
steps, and may be larger in proportion.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedloom.core.records import Record
from fedloom.core.tables import ClassTable
from fedloom.core.trees import Tree
from fedloom.methods.contract.spec import Sent
from fedloom.nets.roles import Role

FEWEST = 4  # uploads without which a median says nothing: with three, one hostile client is a third of it


@dataclass(frozen=True, slots=True)
class UploadNorm:
    """One part of an upload. `label` says in words which one, `key` under what it is compared, `norm` is its length."""

    key: str
    label: str
    norm: float


@dataclass(frozen=True, slots=True)
class Excess:
    """An item that is too large: `ratio` to the reference, where `limit` was allowed."""

    item: UploadNorm
    ratio: float
    limit: float

    def __str__(self) -> str:
        return (
            f"{self.item.label} is {self.ratio:.3g} times as large as the median client's, and at most "
            f"{self.limit:.3g} times is allowed (flower.max_ratio)"
        )


def upload_norms(
    upload: Record, sent: Record, sends: Mapping[str, Sent], roles: Mapping[str, Role]
) -> Iterator[UploadNorm]:
    """The items of an upload. sent: the payload that the client trained from; sends: how the method declares what
    clients send; roles: of the entries of trees."""
    for name, value in upload.items():
        if isinstance(value, dict):
            whole = name in sends and sends[name].form == "whole"
            yield from _tree_items(name, value, sent.get(name) if whole else None, roles)
        elif isinstance(value, ClassTable):
            for label in value.held.nonzero().tolist():
                yield UploadNorm(f"{name}/rows", f"row {label[-1]} of {name}", _norm(value.values[tuple(label)]))
        elif isinstance(value, Tensor):
            if value.is_floating_point():
                yield UploadNorm(name, name, _norm(value))
        elif isinstance(value, float):
            yield UploadNorm(name, name, abs(value))


def _tree_items(name: str, tree: Tree, sent: object, roles: Mapping[str, Role]) -> Iterator[UploadNorm]:
    before: Tree = sent if isinstance(sent, dict) else {}
    squares: dict[tuple[str, bool], float] = {}
    for entry, tensor in tree.items():
        if not tensor.is_floating_point():
            continue
        compared = entry in before and before[entry].shape == tensor.shape
        change = tensor.double() - before[entry].double() if compared else tensor.double()
        part = str(roles[entry].value) if entry in roles else ""
        squares[part, compared] = squares.get((part, compared), 0.0) + float(change.square().sum())
    for (part, compared), square in squares.items():
        words = f"the {part} of {name}" if part else name
        label = f"the change of {words}" if compared else words
        yield UploadNorm(f"{name}/{part}/{'change' if compared else 'size'}", label, math.sqrt(square))


def _norm(tensor: Tensor) -> float:
    return float(tensor.double().norm())


class NormBounds:
    """Judges the uploads of a round by `max_ratio`. references: the largest median of each item so far, which grows."""

    def __init__(self, max_ratio: float, references: dict[str, float]) -> None:
        self._max_ratio, self.references = max_ratio, references

    def judge(
        self, items: Mapping[int, list[UploadNorm]], samples: Mapping[int, int], sends: Mapping[str, Sent]
    ) -> dict[int, Excess]:
        """The uploads that are too large, by client, each with its worst item.

        items: of every upload of the round; samples: training samples of every client. An item that fewer than
        `FEWEST` clients sent is compared with the largest median so far, if there is one.
        """
        excesses: dict[int, Excess] = {}
        typical_samples = statistics.median(samples[client] for client in items) if items else 1
        for key in dict.fromkeys(item.key for parts in items.values() for item in parts):
            typical = [
                statistics.median(norms)
                for parts in items.values()
                if (norms := [item.norm for item in parts if item.key == key])
            ]
            if len(typical) >= FEWEST:
                self.references[key] = max(self.references.get(key, 0.0), statistics.median(typical))
            reference = self.references.get(key, 0.0)
            if not reference:  # nothing to compare with: all zero, or too few
                continue
            spread = sends[name].spread if (name := key.partition("/")[0]) in sends else 1.0
            for client, parts in items.items():
                larger = max(1.0, samples[client] / max(1.0, typical_samples))
                limit = self._max_ratio * spread * larger
                for item in parts:
                    ratio = item.norm / reference
                    worst = excesses[client].ratio / excesses[client].limit if client in excesses else 1.0
                    if item.key == key and ratio / limit > worst:
                        excesses[client] = Excess(item, ratio, limit)
        return excesses


def finite(record: Record) -> bool:
    """Whether all floating values of a record are finite."""
    return all(bool(torch.isfinite(tensor).all()) for _, tensor in floats_of(record))


def floats_of(record: Record) -> Iterator[tuple[str, Tensor]]:
    """The floating tensors of a record with the names of their entries; numbers as tensors without shape."""
    for name, value in record.items():
        if isinstance(value, dict):
            yield from ((name, tensor) for tensor in value.values() if tensor.is_floating_point())
        elif isinstance(value, ClassTable):
            yield name, value.values[value.held]
        elif isinstance(value, Tensor) and value.is_floating_point():
            yield name, value
        elif isinstance(value, float):
            yield name, torch.tensor(value, dtype=torch.float64)
