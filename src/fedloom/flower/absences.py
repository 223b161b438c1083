"""Nodes that do not take part: why, for which client, and when the server asks them again.

A client that does not answer in time pauses, so it does not delay every round.
"""

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass

from fedloom.core.text import seconds_text
from fedloom.flower.status import Absence

_FIRST_PAUSE, _LONGEST_PAUSE = 30.0, 600.0  # seconds until a node is asked again; the pause doubles each time
_MAX_NODES = 10_000  # whose reasons the server remembers
_MAX_LISTED = 50  # nodes in the status
_LONGEST = 64  # rounds of a client's pause
_MAX_NAMED = 20  # clients in a sentence
AHEAD_SECONDS, BEHIND_SECONDS = 5.0, 300.0  # beyond which Flower refuses a node's signatures


@dataclass(slots=True)
class _AbsentNode:
    reason: str
    last_request: float  # monotonic seconds
    client: int | None
    attempts: int  # unanswered requests


def _doubled(seconds: float, times: int) -> float:
    return min(seconds * 2.0 ** min(times, 20), _LONGEST_PAUSE)


class Absences:
    """The nodes that do not take part, in the order of their first absence."""

    def __init__(self) -> None:
        self._entries: dict[int, _AbsentNode] = {}

    def add(self, node: int, reason: str, last_request: float, client: int | None) -> bool:
        """Add a `node` of a `client` that was asked in vain at `last_request`; return whether the `reason` is new."""
        previous = self._entries.get(node)
        attempts = 1 if previous is None else previous.attempts + 1
        self._entries[node] = _AbsentNode(reason, last_request, client, attempts)
        if len(self._entries) > _MAX_NODES:
            del self._entries[next(iter(self._entries))]
        return previous is None or previous.reason != reason

    def end(self, node: int) -> None:
        """Remove a node that takes part."""
        self._entries.pop(node, None)

    def due(self, now: float, admitted: bool, refused: Container[int | None]) -> set[int]:
        """Return the nodes to ask again `now`: all if the administrator has `admitted` some, but no `refused` ones."""
        return {
            node
            for node, entry in self._entries.items()
            if entry.client not in refused
            and (admitted or now - entry.last_request >= _doubled(_FIRST_PAUSE, entry.attempts - 1))
        }

    def patience(self, node: int, seconds: float) -> float:
        """Return the seconds that a node has to answer: doubled each time, because reading its data may take long."""
        return _doubled(seconds, self._entries[node].attempts if node in self._entries else 0)

    def first_absences(self) -> list[Absence]:
        """Return the first absences, for the status."""
        first_entries = sorted(self._entries.items())[:_MAX_LISTED]
        return [Absence(node=str(node), client=entry.client, reason=entry.reason) for node, entry in first_entries]

    def by_client(self) -> dict[int | None, list[str]]:
        """Return the reasons as sentences, by client; the last one is the newest. None: the client is unknown."""
        reasons: dict[int | None, list[str]] = {}
        for node, entry in self._entries.items():
            reasons.setdefault(entry.client, []).append(f"node {node} is left out: {entry.reason}")
        return reasons


class Pauses:
    """The pauses of clients that did not answer: 1, 2, 4 ... 64 rounds; an answer ends the pause."""

    def __init__(self) -> None:
        self._pauses: dict[int, tuple[int, int]] = {}  # rounds, and the round in which the client is asked again

    def pause(self, client: int, round_: int) -> int:
        """Pause a client that has not answered in `round_`; return the round in which it is asked again."""
        rounds, until = self._pauses.get(client, (0, 0))
        if until <= round_:
            rounds = min(max(1, 2 * rounds), _LONGEST)
            self._pauses[client] = rounds, round_ + rounds
        return self._pauses[client][1]

    def late_sentence(self, clients: Sequence[int], seconds: float, round_: int) -> str:
        """Pause `clients` that have not answered within `seconds` of a round; return a sentence on them."""
        next_rounds = {client: self.pause(client, round_) for client in clients}
        paused = [f"client {client} in round {until}" for client, until in next_rounds.items() if until > round_ + 1]
        text = f"continues without clients {client_list(clients)}: no answer within {seconds:g} s"
        return f"{text}; next asked: {', '.join(paused[:_MAX_NAMED])}" if paused else text

    def end_pause(self, client: int) -> None:
        """End the pause of a client that has answered."""
        self._pauses.pop(client, None)

    def skipped_clients(self, clients: Iterable[int], round_: int, spare: int) -> list[int]:
        """Return, sorted, the `clients` to skip in a round: at most `spare`, those with the longest pauses."""
        waiting = [client for client in clients if self._pauses.get(client, (0, 0))[1] > round_]
        return sorted(sorted(waiting, key=lambda client: (-self._pauses[client][0], client))[: max(spare, 0)])


def clock_difference(node_time: float, earliest: float, latest: float) -> str:
    """Say how far a node's clock is from the server's; nothing if it may be right to five seconds.

    node_time: the node's clock, in seconds since 1970, at some moment between `earliest` and `latest` of the server's.

    >>> clock_difference(1000.0, 570.0, 580.0)[:54]
    "its node's clock is 7.00 min ahead of the server's; se"
    >>> clock_difference(1000.0, 990.0, 999.0)
    ''
    """
    ahead = node_time - latest if node_time > latest else min(0.0, node_time - earliest)
    return f"its node's clock is {clock_advice(ahead)}" if abs(ahead) > AHEAD_SECONDS else ""


def clock_advice(ahead: float) -> str:
    """Say how many seconds a clock is `ahead` of the server's (below 0: behind), and what to do."""
    direction = "ahead of" if ahead > 0 else "behind"
    return (
        f"{seconds_text(abs(ahead))} {direction} the server's; set it by NTP (e.g. `timedatectl set-ntp true`), "
        f"because Flower refuses a node that is {AHEAD_SECONDS:g} s ahead or {BEHIND_SECONDS:g} s behind"
    )


def client_list(clients: Sequence[int]) -> str:
    """Return client ids as text, at most twenty of them."""
    remainder = f" and {len(clients) - _MAX_NAMED} more" if len(clients) > _MAX_NAMED else ""
    return ", ".join(map(str, clients[:_MAX_NAMED])) + remainder
