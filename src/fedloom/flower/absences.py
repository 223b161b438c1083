"""Nodes that do not take part: why, for which client, and when the server asks them again.

A client that does not answer in time pauses, so it does not delay every round. A node whose clock differs too much from
the server's is named.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass

from fedloom.core.text import seconds_text
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

        reason: why there was no answer. last_request: when it was asked, in monotonic seconds.
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

        now: the time in monotonic seconds. admitted: the administrator has changed who may join, so no node waits.
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


_LONGEST = 64  # rounds
_MAX_NAMED = 20  # clients in a sentence


@dataclass(slots=True)
class _Pause:
    rounds: int
    until: int  # the round in which the client is asked again


class Pauses:
    """The pauses of clients that did not answer: 1, 2, 4 ... 64 rounds; an answer ends the pause."""

    def __init__(self) -> None:
        self._pauses: dict[int, _Pause] = {}

    def pause(self, client: int, round_: int) -> int:
        """Pause a client that has not answered in `round_`; return the round in which it is asked again."""
        pause = self._pauses.get(client)
        if pause is None or pause.until <= round_:
            rounds = 1 if pause is None else min(2 * pause.rounds, _LONGEST)
            pause = self._pauses[client] = _Pause(rounds, round_ + rounds)
        return pause.until

    def late_sentence(self, clients: Sequence[int], seconds: float, round_: int) -> str:
        """Pause clients that have not answered within `seconds` of a round; return a sentence on them."""
        next_rounds = {client: self.pause(client, round_) for client in clients}
        paused = [f"client {client} in round {until}" for client, until in next_rounds.items() if until > round_ + 1]
        text = f"goes on without clients {client_list(clients)}: no answer within {seconds:g} s"
        return f"{text}; next asked: {', '.join(paused[:_MAX_NAMED])}" if paused else text

    def end_pause(self, client: int) -> None:
        """End the pause of a client that has answered."""
        self._pauses.pop(client, None)

    def skipped_clients(self, clients: Iterable[int], round_: int, spare: int) -> list[int]:
        """Return, in order, the clients to skip in a round: at most `spare`, those with the longest pauses."""
        waiting = [client for client in clients if client in self._pauses and self._pauses[client].until > round_]
        return sorted(sorted(waiting, key=lambda client: (-self._pauses[client].rounds, client))[: max(spare, 0)])


AHEAD_SECONDS, BEHIND_SECONDS = 5.0, 300.0  # beyond which Flower refuses a node's signatures


def clock_difference(node_time: float, earliest: float, latest: float) -> str:
    """Say in one line how far a node's clock is from the server's; nothing if it may be right to five seconds.

    node_time: what the node's clock said, in seconds since 1970 as the others. earliest: a time of the server's clock
    before that. latest: a time of the server's clock after that.

    >>> clock_difference(1000.0, 570.0, 580.0)[:54]
    "its node's clock is 7.00 min ahead of the server's; se"
    >>> clock_difference(1000.0, 990.0, 999.0)
    ''
    """
    ahead = node_time - latest if node_time > latest else min(0.0, node_time - earliest)
    if abs(ahead) <= AHEAD_SECONDS:
        return ""
    return f"its node's clock is {clock_advice(ahead)}"


def clock_advice(ahead: float) -> str:
    """Say how far a clock is ahead of the server's (below 0: behind), in seconds, and what to do."""
    direction = "ahead of" if ahead > 0 else "behind"
    return (
        f"{seconds_text(abs(ahead))} {direction} the server's; set it by NTP (e.g. `timedatectl set-ntp true`), "
        f"because Flower refuses a node that is {AHEAD_SECONDS:g} s ahead or {BEHIND_SECONDS:g} s behind"
    )


def client_list(clients: Sequence[int], limit: int = 20) -> str:
    """Return client ids as text, at most `limit` of them."""
    remainder = f" and {len(clients) - limit} more" if len(clients) > limit else ""
    return ", ".join(map(str, clients[:limit])) + remainder
