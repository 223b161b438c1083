"""How large an upload may be, compared with the others of its round: one rule for trees, class tables and numbers.

An upload has several L2 norms: of the change of a tree since the payload, for body, head and batch norm separately; of
every row of a class table; of every tensor and number. The reference is the median over the round's clients, or the
largest such median of the run so far: changes become tiny when training converges, and a client that still learns must
not be refused for it. A client with more samples than the median client takes more steps, and its limit is larger in
proportion.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch import Tensor

from fedloom.core.records import Record
from fedloom.core.tables import ClassTable
from fedloom.core.trees import Tree
from fedloom.methods.contract.spec import Sent
from fedloom.nets.net import Role

FEWEST = 4  # uploads for a meaningful median: of three, one hostile client would be a third


@dataclass(frozen=True, slots=True)
class UploadNorm:
    """One L2 norm of an upload. key: norms with the same key are compared. label: for messages."""

    key: str
    label: str
    norm: float


@dataclass(frozen=True, slots=True)
class Excess:
    """A norm that is too large: `ratio` to the reference, where `limit` was allowed."""

    upload_norm: UploadNorm
    ratio: float
    limit: float

    def __str__(self) -> str:
        return (
            f"{self.upload_norm.label} is {self.ratio:.3g} times as large as the median client's, and at most "
            f"{self.limit:.3g} times is allowed (flower.max_ratio)"
        )


def upload_norms(
    upload: Record, payload: Record, sends: Mapping[str, Sent], roles: Mapping[str, Role]
) -> Iterator[UploadNorm]:
    """Yield the L2 norms of an upload that are compared with those of other clients.

    Args:
        upload: the client's upload.
        payload: the record that the client trained from.
        sends: the method's declaration of uploads.
        roles: roles of the entries of trees.
    """
    for name, value in upload.items():
        if isinstance(value, dict):
            is_whole = name in sends and sends[name].form == "whole"
            yield from _tree_norms(name, value, payload.get(name) if is_whole else None, roles)
        elif isinstance(value, ClassTable):
            for label in value.held.nonzero().tolist():
                yield UploadNorm(f"{name}/rows", f"row {label[-1]} of {name}", _norm(value.values[tuple(label)]))
        elif isinstance(value, Tensor):
            if value.is_floating_point():
                yield UploadNorm(name, name, _norm(value))
        elif isinstance(value, float):
            yield UploadNorm(name, name, abs(value))


def _tree_norms(name: str, tree: Tree, payload: object, roles: Mapping[str, Role]) -> Iterator[UploadNorm]:
    received: Tree = payload if isinstance(payload, dict) else {}
    squares: dict[tuple[str, bool], float] = {}
    for entry, tensor in tree.items():
        if not tensor.is_floating_point():
            continue
        is_change = entry in received and received[entry].shape == tensor.shape
        change = tensor.double() - received[entry].double() if is_change else tensor.double()
        role = str(roles[entry].value) if entry in roles else ""
        squares[role, is_change] = squares.get((role, is_change), 0.0) + float(change.square().sum())
    for (role, is_change), square in squares.items():
        tree_label = f"the {role} of {name}" if role else name
        label = f"the change of {tree_label}" if is_change else tree_label
        yield UploadNorm(f"{name}/{role}/{'change' if is_change else 'size'}", label, math.sqrt(square))


def _norm(tensor: Tensor) -> float:
    return float(tensor.double().norm())


class NormBounds:
    """Compares the uploads of a round. references: the largest median of each norm so far; updated by `judge`."""

    def __init__(self, max_ratio: float, references: dict[str, float]) -> None:
        self._max_ratio, self.references = max_ratio, references

    def judge(
        self, norms: Mapping[int, list[UploadNorm]], samples: Mapping[int, int], sends: Mapping[str, Sent]
    ) -> dict[int, Excess]:
        """Return the worst norm of each client whose upload is too large.

        A norm that fewer than `FEWEST` clients have is compared with the largest median so far, if there is one.

        Args:
            norms: norms of every upload of the round, by client.
            samples: training samples of every client.
            sends: the method's declaration of uploads.
        """
        excesses: dict[int, Excess] = {}
        median_samples = statistics.median(samples[client] for client in norms) if norms else 1
        for key in dict.fromkeys(norm.key for client_norms in norms.values() for norm in client_norms):
            client_medians = [
                statistics.median(lengths)
                for client_norms in norms.values()
                if (lengths := [norm.norm for norm in client_norms if norm.key == key])
            ]
            if len(client_medians) >= FEWEST:
                self.references[key] = max(self.references.get(key, 0.0), statistics.median(client_medians))
            reference = self.references.get(key, 0.0)
            if not reference:  # all zero, or too few clients
                continue
            spread = sends[name].spread if (name := key.partition("/")[0]) in sends else 1.0
            for client, client_norms in norms.items():
                sample_ratio = max(1.0, samples[client] / max(1.0, median_samples))
                limit = self._max_ratio * spread * sample_ratio
                for norm in client_norms:
                    ratio = norm.norm / reference
                    worst = excesses[client].ratio / excesses[client].limit if client in excesses else 1.0
                    if norm.key == key and ratio / limit > worst:
                        excesses[client] = Excess(norm, ratio, limit)
        return excesses
