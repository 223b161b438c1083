"""Which node is which client: nodes are asked once, and those that do not fit are named and left out."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from fedloom._version import __version__
from fedloom.core.errors import FedloomError, printable, short_repr
from fedloom.flower.absences import Absences
from fedloom.flower.bindings import NodeBindings, WrongClientError
from fedloom.flower.logs import LogRecord
from fedloom.flower.moments import ClientMoments, Scale
from fedloom.flower.status import NodeStatus, StatusWriter
from fedloom.flower.transport import Transport
from fedloom.flower.wire import ErrorReply, JoinReply, Message, MessageError, Request, read_reply

_EVERY = 10.0  # seconds between two words on whom is waited for
_JOIN = 60.0  # seconds that a question to a new node is worth
_AT_A_TIME = 100  # nodes that are asked at one look: rounds go on while thousands come


class FederationError(FedloomError):
    """A federation that cannot go on: too few clients, or a node of this process that cannot join."""

    exit_code = 1


@dataclass(frozen=True, slots=True)
class RunIdentity:
    """A run as nodes know it: its name, the fingerprint of its config, and the scale that nodes have pooled, if any."""

    name: str
    fingerprint: str
    scale: Scale | None = None

    def order(self, do: Literal["join", "train", "test"], **facts: Any) -> Request:
        """An order of this run."""
        order = Request(do=do, run=self.name, fingerprint=self.fingerprint, version=__version__, scale=self.scale)
        return order.model_copy(update=facts)


@dataclass(frozen=True, slots=True)
class _JoinRequest:
    """What a node was asked: whether it joins. asked: when (monotonic seconds); patience: seconds that it has."""

    node: int
    asked: float
    patience: float


class NodeRegistry:
    """The clients that have joined. clients: how many the run has; classes: the names that all must have; measured: of
    how many features they must tell the moments; sizes: training samples of each client, where the server knows them;
    seats: which key and which disk each client is bound to."""

    def __init__(
        self,
        link: Transport,
        run: RunIdentity,
        clients: int,
        classes: Sequence[str],
        board: StatusWriter,
        note: Callable[[str], None],
        measured: int = 0,
        sizes: Sequence[int] | None = None,
        seats: NodeBindings | None = None,
    ) -> None:
        self._link, self._run, self._board, self._note = link, run, board, note
        self._clients, self._classes, self._measured, self._sizes = clients, tuple(classes), measured, sizes
        self._refused: dict[int, str] = {}  # clients that are refused for the rest of the run, and why
        self._seats = seats or NodeBindings(None)
        self._asked: dict[str, _JoinRequest] = {}  # by the names of letters
        self._seen: set[int] = set()
        self._node: dict[int, int] = {}
        self._joined: dict[int, JoinReply] = {}
        self._absences = Absences()
        self._online: set[int] = set()
        self._members: set[int] = set()  # nodes that have joined and were there ever since

    def look(self) -> None:
        """Take in who has joined; ask nodes that are new, and those that may have mended their data. Never waits.

        Raises `FederationError` if a node of this process cannot join.
        """
        self._online = self._link.nodes()
        self._seen &= self._online  # one that comes back may have another client, or another disk
        self._members &= self._online
        self._take_answers()
        self._give_up(time.monotonic())
        self._ask(time.monotonic())
        self._take_answers()
        self._seats.keep()
        seats = [
            NodeStatus(client=client, node=str(node), there=node in self._members, samples=self.samples(client))
            for client, node in sorted(self._node.items())
        ]
        self._board.seats(seats, self._absences.listed())

    def _ask(self, now: float) -> None:
        """Ask some of those who have not been asked, the nodes of clients that were there before first."""
        admitted = self._seats.refresh()
        waiting = {question.node for question in self._asked.values()}
        again = self._absences.due(now, admitted, self._refused)
        before = set(self._node.values())
        new = (self._online - self._seen) | (again & self._online - waiting)
        for node in sorted(new, key=lambda node: (node not in before, node in again, node))[:_AT_A_TIME]:
            self._seen.add(node)
            patience = self._absences.patience(node, _JOIN)
            name = self._link.send(node, self._run.order("join").to_message(), patience)
            self._asked[name] = _JoinRequest(node, now, patience)

    def _take_answers(self) -> None:
        while self._asked and (answers := list(self._link.take(self._asked))):
            for name, answer in answers:
                if name in self._asked:  # one that comes twice counts once
                    self._take(self._asked.pop(name), answer)

    def _give_up(self, now: float) -> None:
        """Forget questions to nodes that are gone, and name those that have not answered in time."""
        for name, question in [*self._asked.items()]:
            there = question.node in self._online
            if not there or now - question.asked >= question.patience:
                del self._asked[name]
                if there:
                    reason = f"it did not answer within {question.patience:g} s when it was asked to join"
                    self._leave_out(question, reason)

    def never_joined(self) -> dict[int, str]:
        """Clients that have not taken part, and why, as far as it is known."""
        reasons = self._absences.by_client()
        missing = [client for client in range(self._clients) if client not in self._joined]
        return {client: reasons.get(client, "no node joined as this client") for client in missing}

    def node_of(self, client: int) -> int | None:
        """The node of a client, if it is there."""
        node = self._node.get(client)
        return node if node in self._members else None

    def has(self, client: int) -> bool:
        """Whether a client has ever joined."""
        return client in self._joined

    def samples(self, client: int) -> int:
        """Training samples that a client joined with."""
        return self._joined[client].samples

    def sizes(self) -> dict[int, int]:
        """Training samples of all clients that have ever joined."""
        return {client: told.samples for client, told in self._joined.items()}

    def moments(self) -> dict[int, ClientMoments]:
        """The moments of measured features that clients reported, in the order of their ids."""
        joined = {client: self._joined[client] for client in sorted(self._joined)}
        return {k: ClientMoments(told.samples, told.moments) for k, told in joined.items() if told.moments is not None}

    def refuse(self, client: int, why: str) -> None:
        """Leave a client out for as long as this server runs."""
        self._refused[client] = why
        self._note(LogRecord(f"client {client} is left out: {why}", "left_out", client=client))
        node = self._node.pop(client)
        self._members.discard(node)
        self._absences.add(node, printable(why), time.monotonic(), client)
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
                        f"flower.min_clients = {least}: clients {listed(away)} are missing; {self._why(away)}"
                    )
                self._board.waited()
                said = f"goes on without clients {listed(away)}: not there after {seconds:g} s"
                self._note(LogRecord(said, "lost"))
                return
            if now - told >= _EVERY:
                told = now
                said = f"waiting for the nodes of clients {listed(away)}, {seconds - (now - began):.0f} s more"
                self._note(LogRecord(said, "waiting"))
            time.sleep(self._link.pause)

    def _why(self, clients: Sequence[int]) -> str:
        """What is known of clients that are missing, in a few words, or what to do."""
        reasons = self.never_joined()
        known = [reasons[client] for client in clients if reasons.get(client, "").startswith("node ")]
        return "; ".join([*known, *self._absences.nameless()][:3]) or "start their nodes"

    def _take(self, question: _JoinRequest, answer: Message | str) -> None:
        """Take in an answer to the question whether a node joins. Raises `FederationError` if one of this process says
        that it cannot: nobody will mend it while the run waits."""
        client, node = None, question.node
        try:
            if isinstance(answer, str):
                raise MessageError(answer)
            told = read_reply(answer, JoinReply)
            client = told.client if 0 <= told.client < self._clients else None
            if isinstance(told, ErrorReply):
                named = f"client {told.client}"
                reason = told.error if told.client < 0 or named in told.error else f"{named}: {told.error}"
                if self._link.local:
                    raise FederationError(printable(reason))
                raise MessageError(reason)
            seat = told.client, self._link.key_of(node), told.token
            if client is not None and not self._link.local:
                self._seats.check(*seat)
            self._check(told)
            if not self._link.local:
                self._seats.claim(*seat)
        except MessageError as error:
            self._leave_out(question, str(error), error.client if isinstance(error, WrongClientError) else client)
            return
        self._absences.end(node)
        self._members.add(node)
        before = self._joined.get(told.client)
        if before is not None and before.samples != told.samples:
            said = f"client {told.client} comes back with {told.samples} samples; it had {before.samples}"
            self._note(LogRecord(said, "changed", client=told.client))
        for client in [client for client, other in self._node.items() if other == node]:
            del self._node[client]  # a node that was another client before
        self._node[told.client], self._joined[told.client] = node, told

    def _leave_out(self, question: _JoinRequest, reason: str, client: int | None = None) -> None:
        """Name a node that does not take part, once for each reason."""
        reason, node = printable(reason), question.node
        self._members.discard(node)
        if self._absences.add(node, reason, question.asked, client):
            self._note(LogRecord(f"node {node} is left out: {reason}", "left_out", client=client))

    def _check(self, told: JoinReply) -> None:
        if told.run != self._run.name:
            raise MessageError(f"it joins the run {short_repr(told.run)}, this is {self._run.name}")
        if told.client >= self._clients:
            raise MessageError(f"it is client {told.client}, the run has clients 0 .. {self._clients - 1}")
        if told.client in self._refused:
            raise MessageError(f"client {told.client}: {self._refused[told.client]}")
        if self._sizes is not None and told.samples != self._sizes[told.client]:
            raise MessageError(
                f"client {told.client} joins with {told.samples:,} training samples; by the config it has "
                f"{self._sizes[told.client]:,}"
            )
        if told.classes != self._classes:
            raise MessageError(
                f"client {told.client} has the classes {short_repr(list(told.classes))}, the server "
                f"{short_repr(list(self._classes))}; use the same labels on all nodes"
            )
        if self._measured:
            told_of = 0 if told.moments is None else min(len(told.moments.mean), len(told.moments.squares))
            if told_of != self._measured or not told.samples:
                raise MessageError(
                    f"client {told.client} tells moments of {told_of} features of {told.samples} samples; need "
                    f"{self._measured} features"
                )


def listed(clients: Sequence[int], most: int = 20) -> str:
    """Clients in words."""
    more = f" and {len(clients) - most} more" if len(clients) > most else ""
    return ", ".join(map(str, clients[:most])) + more
