"""Nodes that came and do not take part: why, as which client, and when each is asked again."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from fedloom.flower.status import Absence

_AGAIN = 30.0  # seconds after which a node that was left out is asked again; they double each time
_SELDOM = 600.0  # the longest such pause
_MOST = 10_000  # nodes of which the server keeps why they do not take part
_LISTED = 50  # nodes of which the status says so


@dataclass(slots=True)
class _Entry:
    """asked: when last (monotonic seconds). times: how often in vain."""

    reason: str
    asked: float
    client: int | None
    times: int

    @property
    def pause(self) -> float:
        return min(_AGAIN * 2.0 ** min(self.times - 1, 20), _SELDOM)


class Absences:
    """The nodes that do not take part, the oldest first."""

    def __init__(self) -> None:
        self._entries: dict[int, _Entry] = {}

    def add(self, node: int, reason: str, asked: float, client: int | None) -> bool:
        """A node was asked in vain, at `asked` (monotonic seconds); whether the reason is new.

        client: which one it is, if that is known.
        """
        before = self._entries.get(node)
        self._entries[node] = _Entry(reason, asked, client, 1 if before is None else before.times + 1)
        if len(self._entries) > _MOST:
            del self._entries[next(iter(self._entries))]
        return before is None or before.reason != reason

    def end(self, node: int) -> None:
        """A node takes part."""
        self._entries.pop(node, None)

    def due(self, now: float, admitted: bool, refused: Container[int | None]) -> set[int]:
        """Nodes to be asked again at `now`. admitted: the administrator has changed who may join, so that none waits.
        refused: clients that are never asked again."""
        return {
            node
            for node, entry in self._entries.items()
            if entry.client not in refused and (admitted or now - entry.asked >= entry.pause)
        }

    def patience(self, node: int, seconds: float) -> float:
        """How long a node may take to answer: `seconds`, doubled each time, for its data may take long to read."""
        times = self._entries[node].times if node in self._entries else 0
        return min(seconds * 2.0 ** min(times, 20), _SELDOM)

    def listed(self) -> list[Absence]:
        """For the status: the first ones, and not all of thousands."""
        some = sorted(self._entries.items())[:_LISTED]
        return [Absence(node=str(node), client=entry.client, reason=entry.reason) for node, entry in some]

    def by_client(self) -> dict[int, str]:
        """Why clients are missing, where a node was known to be that client."""
        return {
            entry.client: _sentence(node, entry) for node, entry in self._entries.items() if entry.client is not None
        }

    def nameless(self) -> list[str]:
        """The same for nodes of which it is not known which client they are."""
        return [_sentence(node, entry) for node, entry in self._entries.items() if entry.client is None]


def _sentence(node: int, entry: _Entry) -> str:
    return f"node {node} is left out: {entry.reason}"
