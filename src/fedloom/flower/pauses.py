"""Clients that do not answer in time: each costs a round once, and not every later round."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fedloom.flower.node_registry import listed

_LONGEST = 64  # rounds
_NAMED = 20  # clients in a sentence


@dataclass(slots=True)
class _Pause:
    rounds: int
    until: int  # the round in which the client is asked again


class Pauses:
    """When clients that did not answer are asked again: after 1, 2, 4 ... 64 rounds; an answer ends the pause."""

    def __init__(self) -> None:
        self._pauses: dict[int, _Pause] = {}

    def late(self, client: int, round_: int) -> int:
        """A client has not answered in a round; the round in which it is asked again. Twice in a round counts once."""
        pause = self._pauses.get(client)
        if pause is None or pause.until <= round_:
            rounds = 1 if pause is None else min(2 * pause.rounds, _LONGEST)
            pause = self._pauses[client] = _Pause(rounds, round_ + rounds)
        return pause.until

    def late_sentence(self, clients: Sequence[int], seconds: float, round_: int) -> str:
        """Note that clients have not answered within `seconds` of a round, and say so."""
        later = {client: self.late(client, round_) for client in clients}
        paused = [f"client {client} in round {then}" for client, then in later.items() if then > round_ + 1]
        text = f"goes on without clients {listed(clients)}: no answer within {seconds:g} s"
        return f"{text}; next asked: {', '.join(paused[:_NAMED])}" if paused else text

    def answered(self, client: int) -> None:
        """A client has answered: it is asked like any other."""
        self._pauses.pop(client, None)

    def paused(self, clients: Iterable[int], round_: int, spare: int) -> list[int]:
        """Those of some clients that are not asked in a round, in their order: at most `spare`, the longest paused."""
        waiting = [client for client in clients if client in self._pauses and self._pauses[client].until > round_]
        return sorted(sorted(waiting, key=lambda client: (-self._pauses[client].rounds, client))[: max(spare, 0)])
