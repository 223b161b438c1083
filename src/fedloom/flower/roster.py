"""Which node is which client: nodes are asked once, and those that do not fit are named and left out."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from fedloom._version import __version__
from fedloom.core.errors import FedloomError, shown
from fedloom.flower.letters import Failed, Joined, Letter, LetterError, Order, read_answer
from fedloom.flower.links import Link
from fedloom.flower.logs import Said
from fedloom.flower.moments import Scale, Told
from fedloom.flower.status import Board, Seat

_EVERY = 10.0  # seconds between two words on whom is waited for
_JOIN = 60.0  # seconds that a question to a new node is worth
_AGAIN = 30.0  # seconds after which a node that was left out is asked again


class FederationError(FedloomError):
    """A federation that cannot go on: too few clients, or two nodes that are the same one."""

    exit_code = 1


@dataclass(frozen=True, slots=True)
class RunName:
    """A run as nodes know it: its name, the fingerprint of its config, and the scale that nodes have pooled, if any."""

    name: str
    fingerprint: str
    scale: Scale | None = None

    def order(self, do: Literal["join", "train", "test"], **facts: Any) -> Order:
        """An order of this run."""
        order = Order(do=do, run=self.name, fingerprint=self.fingerprint, version=__version__, scale=self.scale)
        return order.model_copy(update=facts)


class Roster:
    """The clients that have joined. clients: how many the run has; classes: the names that all must have; measured: of
    how many features they must tell the moments; sizes: training samples of each client, where the server knows them.
    """

    def __init__(
        self,
        link: Link,
        run: RunName,
        clients: int,
        classes: Sequence[str],
        board: Board,
        note: Callable[[str], None],
        measured: int = 0,
        sizes: Sequence[int] | None = None,
    ) -> None:
        self._link, self._run, self._board, self._note = link, run, board, note
        self._clients, self._classes, self._measured, self._sizes = clients, tuple(classes), measured, sizes
        self._refused: dict[int, str] = {}  # clients that are refused for the rest of the run, and why
        self._asked: dict[str, int] = {}  # names of letters, by node
        self._seen: set[int] = set()
        self._node: dict[int, int] = {}
        self._joined: dict[int, Joined] = {}
        self._since: dict[int, float] = {}  # when a node was asked last
        self._left_out: dict[int, str] = {}  # nodes that do not fit, and why
        self._online: set[int] = set()

    def look(self) -> None:
        """Take in who has joined; ask nodes that are new, and those that may have mended their data. Never waits.

        Raises `FederationError` if two nodes are one client.
        """
        self._online = self._link.nodes()
        self._seen &= self._online  # one that comes back may have another client
        now, waiting = time.monotonic(), set(self._asked.values())
        self._seen -= {node for node in self._left_out.keys() - waiting if now - self._since[node] >= _AGAIN}
        for node in sorted(self._online - self._seen):
            self._seen.add(node)
            self._since[node] = now
            self._asked[self._link.send(node, self._run.order("join").letter_with(), _JOIN)] = node
        while self._asked and (found := self._link.take(self._asked)):
            for name, answer in found:
                self._take(self._asked.pop(name), answer)
        self._board.seats(
            [
                Seat(client=client, node=str(node), there=node in self._online, samples=self.samples(client))
                for client, node in sorted(self._node.items())
            ]
        )

    def node_of(self, client: int) -> int | None:
        """The node of a client, if it is there."""
        node = self._node.get(client)
        return node if node in self._online else None

    def has(self, client: int) -> bool:
        """Whether a client has ever joined."""
        return client in self._joined

    def samples(self, client: int) -> int:
        """Training samples that a client joined with."""
        return self._joined[client].samples

    def sizes(self) -> dict[int, int]:
        """Training samples of all clients that have ever joined."""
        return {client: told.samples for client, told in self._joined.items()}

    def moments(self) -> dict[int, Told]:
        """The moments of measured features that clients reported, in the order of their ids."""
        joined = {client: self._joined[client] for client in sorted(self._joined)}
        return {k: Told(told.samples, told.moments) for k, told in joined.items() if told.moments is not None}

    def refuse(self, client: int, why: str) -> None:
        """Leave a client out for as long as this server runs."""
        self._refused[client] = why
        self._note(Said(f"client {client} is left out: {why}", "left_out", client=client))
        self._left_out[self._node.pop(client)] = why
        del self._joined[client]

    def settle(self, scale: Scale) -> None:
        """From now on orders bring the scale, and nodes that join tell no moments."""
        self._run, self._measured = replace(self._run, scale=scale), 0

    def missing(self, clients: Sequence[int]) -> list[int]:
        """Those of some clients that are not there."""
        return [client for client in clients if self.node_of(client) is None]

    def wait(self, clients: Sequence[int], least: int, seconds: float, key: str) -> None:
        """Until all `clients` are there; after `seconds` with those that are, if they are `least`.

        Raises `FederationError` if they are fewer. key: the setting that says how long.
        """
        began = told = time.monotonic()
        while True:
            self.look()
            away = self.missing(clients)
            now = time.monotonic()
            if not away:
                self._board.waited()
                return
            self._board.waits("nodes", away, seconds - (now - began))
            if now - began >= seconds:
                there = len(clients) - len(away)
                if there < min(least, len(clients)):
                    raise FederationError(
                        f"{there} of {len(clients)} clients are there after flower.{key} = {seconds:g} s, and "
                        f"flower.min_clients = {least}: clients {listed(away)} are missing; start their nodes"
                    )
                self._board.waited()
                said = f"goes on without clients {listed(away)}: not there after {seconds:g} s"
                self._note(Said(said, "lost"))
                return
            if now - told >= _EVERY:
                told = now
                said = f"waiting for the nodes of clients {listed(away)}, {seconds - (now - began):.0f} s more"
                self._note(Said(said, "waiting"))
            time.sleep(self._link.pause)

    def _take(self, node: int, answer: Letter | str) -> None:
        try:
            if isinstance(answer, str):
                raise LetterError(answer)
            told = read_answer(answer, Joined)
            if isinstance(told, Failed):
                named = f"client {told.client}"
                raise LetterError(told.error if told.client < 0 or named in told.error else f"{named}: {told.error}")
            self._check(told)
        except LetterError as error:
            if self._left_out.get(node) != str(error):
                self._note(Said(f"node {node} is left out: {error}", "left_out"))
            self._left_out[node] = str(error)
            return
        self._left_out.pop(node, None)
        before, old = self._joined.get(told.client), self._node.get(told.client)
        if before is not None and before.token != told.token and old in self._online:
            raise FederationError(
                f"two nodes are client {told.client} (nodes {old} and {node}); give each a partition-id of its own"
            )
        if before is not None and before.samples != told.samples:
            said = f"client {told.client} comes back with {told.samples} samples; it had {before.samples}"
            self._note(Said(said, "changed", client=told.client))
        self._node[told.client], self._joined[told.client] = node, told

    def _check(self, told: Joined) -> None:
        if told.run != self._run.name:
            raise LetterError(f"it joins the run {shown(told.run)}, this is {self._run.name}")
        if told.client >= self._clients:
            raise LetterError(f"it is client {told.client}, the run has clients 0 .. {self._clients - 1}")
        if told.client in self._refused:
            raise LetterError(f"client {told.client}: {self._refused[told.client]}")
        if self._sizes is not None and told.samples != self._sizes[told.client]:
            raise LetterError(
                f"client {told.client} joins with {told.samples:,} training samples; by the config it has "
                f"{self._sizes[told.client]:,}"
            )
        if told.classes != self._classes:
            raise LetterError(
                f"client {told.client} has the classes {shown(list(told.classes))}, the server "
                f"{shown(list(self._classes))}; use the same labels on all nodes"
            )
        if self._measured:
            told_of = 0 if told.moments is None else min(len(told.moments.mean), len(told.moments.squares))
            if told_of != self._measured or not told.samples:
                raise LetterError(
                    f"client {told.client} tells moments of {told_of} features of {told.samples} samples; need "
                    f"{self._measured} features"
                )


def listed(clients: Sequence[int], most: int = 20) -> str:
    """Clients in words."""
    more = f" and {len(clients) - most} more" if len(clients) > most else ""
    return ", ".join(map(str, clients[:most])) + more
