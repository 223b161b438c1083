"""Pauses for clients that do not answer in time, so that each of them does not delay every round."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fedloom.flower.node_registry import client_list

_LONGEST = 64  # rounds
_MAX_LISTED = 20  # clients in a sentence


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
        return f"{text}; next asked: {', '.join(paused[:_MAX_LISTED])}" if paused else text

    def end_pause(self, client: int) -> None:
        """End the pause of a client that has answered."""
        self._pauses.pop(client, None)

    def skipped_clients(self, clients: Iterable[int], round_: int, spare: int) -> list[int]:
        """Return, in order, the clients to skip in a round: at most `spare`, those with the longest pauses."""
        waiting = [client for client in clients if client in self._pauses and self._pauses[client].until > round_]
        return sorted(sorted(waiting, key=lambda client: (-self._pauses[client].rounds, client))[: max(spare, 0)])
