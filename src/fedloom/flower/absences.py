"""Nodes that do not take part: the reason, the client if known, and when each is asked again."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from fedloom.flower.status import Absence

_FIRST_PAUSE = 30.0  # seconds until a node that was left out is asked again; the pause doubles each time
_LONGEST_PAUSE = 600.0  # seconds
_MAX_NODES = 10_000  # whose reasons the server remembers
_MAX_LISTED = 50  # nodes in the status


@dataclass(slots=True)
class _AbsentNode:
    """One absent node. last_request: monotonic seconds. attempts: requests in vain."""

    reason: str
    last_request: float
    client: int | None
    attempts: int

    @property
    def pause(self) -> float:
        return min(_FIRST_PAUSE * 2.0 ** min(self.attempts - 1, 20), _LONGEST_PAUSE)


class Absences:
    """The nodes that do not take part, in the order of their first absence."""

    def __init__(self) -> None:
        self._entries: dict[int, _AbsentNode] = {}

    def add(self, node: int, reason: str, last_request: float, client: int | None) -> bool:
        """Add a node that was asked in vain; return whether the reason is new.

        Args:
            node: id of the node.
            reason: why there was no answer.
            last_request: when it was asked, in monotonic seconds.
            client: its client; None if unknown.
        """
        previous = self._entries.get(node)
        self._entries[node] = _AbsentNode(
            reason, last_request, client, 1 if previous is None else previous.attempts + 1
        )
        if len(self._entries) > _MAX_NODES:
            del self._entries[next(iter(self._entries))]
        return previous is None or previous.reason != reason

    def end(self, node: int) -> None:
        """Remove a node that takes part."""
        self._entries.pop(node, None)

    def due(self, now: float, admitted: bool, refused: Container[int | None]) -> set[int]:
        """Return the nodes to ask again.

        Args:
            now: the time in monotonic seconds.
            admitted: the administrator has changed who may join, so no node waits.
            refused: clients never asked again.
        """
        return {
            node
            for node, entry in self._entries.items()
            if entry.client not in refused and (admitted or now - entry.last_request >= entry.pause)
        }

    def patience(self, node: int, seconds: float) -> float:
        """Return the seconds that a node has to answer, doubled each time, as its data may take long to read."""
        attempts = self._entries[node].attempts if node in self._entries else 0
        return min(seconds * 2.0 ** min(attempts, 20), _LONGEST_PAUSE)

    def first_absences(self) -> list[Absence]:
        """Return the first absences, for the status."""
        first_entries = sorted(self._entries.items())[:_MAX_LISTED]
        return [Absence(node=str(node), client=entry.client, reason=entry.reason) for node, entry in first_entries]

    def by_client(self) -> dict[int, str]:
        """Return the reasons by client, for nodes whose client is known."""
        return {
            entry.client: _sentence(node, entry) for node, entry in self._entries.items() if entry.client is not None
        }

    def without_client(self) -> list[str]:
        """Return the reasons of nodes whose client is unknown."""
        return [_sentence(node, entry) for node, entry in self._entries.items() if entry.client is None]


def _sentence(node: int, entry: _AbsentNode) -> str:
    return f"node {node} is left out: {entry.reason}"
