"""Which node is which client: each new node is asked to join; one that does not fit is reported and asked again."""

import time
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass

from fedloom.core.errors import FedloomError, printable, short_repr
from fedloom.core.text import lists_by_key
from fedloom.data import Scenario
from fedloom.flower.bindings import NodeBindings, WrongClientError
from fedloom.flower.findings import clock_difference
from fedloom.flower.links import Links, Stalled
from fedloom.flower.node_data import ChannelMoments, ClientMoments, Ranges, Scale
from fedloom.flower.status import Absence, LogRecord, NodeStatus, client_list
from fedloom.flower.wire import ErrorReply, JoinReply, JoinRequest, Message, MessageError, read_reply

_FIRST_PAUSE, _LONGEST_PAUSE = 30.0, 600.0  # seconds until a node is asked again; the pause doubles each time
_MAX_NODES = 10_000  # whose reasons the server remembers
_MAX_LISTED = 50  # nodes in the status
REPORT_SECONDS = 8.0  # between two reports on a wait, so that ten seconds never pass without one
_MAX_NEW_NODES = 100  # asked per poll, so that rounds continue while thousands of nodes come online


@dataclass(slots=True)
class _AbsentNode:
    reason: str
    last_request: float  # monotonic seconds
    client: int | None
    attempts: int  # unanswered requests


def _doubled(seconds: float, times: int) -> float:
    # The exponent is bounded, because a float overflows at 2^1024.
    return min(seconds * 2.0 ** min(times, 20), max(seconds, _LONGEST_PAUSE))


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
            # The oldest entry is dropped, so that a flood of nodes cannot fill the memory.
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
        """Return the seconds for which a node may stand still: doubled each time it was asked in vain."""
        return _doubled(seconds, self._entries[node].attempts if node in self._entries else 0)

    def first_absences(self) -> list[Absence]:
        """Return the first absences, for the status."""
        first_entries = sorted(self._entries.items())[:_MAX_LISTED]
        return [Absence(node=str(node), client=entry.client, reason=entry.reason) for node, entry in first_entries]

    def by_client(self) -> dict[int | None, list[str]]:
        """Return the reasons as sentences, by client; the last one is the newest. None: the client is unknown."""
        entries = self._entries.items()
        return lists_by_key((entry.client, f"node {node} is left out: {entry.reason}") for node, entry in entries)


class FederationError(FedloomError):
    """A federation that cannot continue: too few clients, or a node of this process that cannot join."""

    exit_code = 1


class NodeRegistry:
    """The clients that have joined, and their nodes. identity: what all requests say of the run. scenario: its clients
    train, and the ids of its newcomers come after theirs. measured: features whose moments clients that train report.
    joined: the replies of all clients that have ever joined."""

    def __init__(
        self,
        links: Links,
        identity: JoinRequest,
        scenario: Scenario,
        note: Callable[[str], None],
        bindings: NodeBindings,
        measured: int = 0,
    ) -> None:
        self.links, self.identity, self.note, self._bindings = links, identity, note, bindings
        self._training_clients, self._classes, self._measured = scenario.clients, scenario.class_names, measured
        parts = [scenario] if scenario.newcomers is None else [scenario, scenario.newcomers]
        self._clients = sum(part.clients for part in parts)
        self._sizes = None if scenario.remote else [size for part in parts for size in part.train.sizes.tolist()]
        self._refused: dict[int, str] = {}  # clients that are refused for the rest of the run, and why
        self._join_requests: dict[str, tuple[int, float]] = {}  # by name: the node, and when it was asked
        self._contacted: set[int] = set()  # nodes that were asked to join since they came online
        self._node: dict[int, int] = {}  # by client
        self.joined: dict[int, JoinReply] = {}
        self._absences = Absences()
        self._odd_clocks: set[int] = set()  # clients whose wrong clocks were reported
        self._online: set[int] = set()
        self._members: set[int] = set()  # nodes that have joined and stayed online since

    def poll(self) -> None:
        """Read replies, and ask new nodes, and nodes that are due again, to join. Does not wait."""
        self._online = self.links.transport.nodes()
        self._contacted &= self._online  # a node that returns may have another client, or another disk
        self._members &= self._online
        self._receive_replies()
        for name, (node, _) in [*self._join_requests.items()]:
            if node not in self._online:
                del self._join_requests[name]
                self.links.forget(name)
        self._send_join_requests(time.monotonic())
        self._receive_replies()
        self._bindings.flush()
        nodes = [
            NodeStatus(client=client, node=str(node), online=node in self._members, samples=self.joined[client].samples)
            for client, node in sorted(self._node.items())
        ]
        self.links.status.set_nodes(nodes, self._absences.first_absences())

    def _send_join_requests(self, now: float) -> None:
        """Ask a limited number of nodes, starting with those of clients that had joined before."""
        admitted = self._bindings.refresh()
        pending = {node for node, _ in self._join_requests.values()}
        due = self._absences.due(now, admitted, self._refused)
        former = set(self._node.values())
        candidates = (self._online - self._contacted) | (due & self._online - pending)
        for node in sorted(candidates, key=lambda node: (node not in former, node in due, node))[:_MAX_NEW_NODES]:
            self._contacted.add(node)
            patience = self._absences.patience(node, self.links.config.node_timeout)
            self._join_requests[self.links.send(node, self.identity, patience=patience)] = node, now

    def _receive_replies(self) -> None:
        while self._join_requests and (replies := list(self.links.receive(self._join_requests))):
            for name, reply in replies:
                self._register(*self._join_requests.pop(name), reply)

    def absence_reasons(self) -> dict[int, str]:
        """Return the clients that have never joined, with the reason as far as it is known."""
        reasons = self._absences.by_client()
        missing = [client for client in range(self._clients) if client not in self.joined]
        return {client: reasons.get(client, ["no node joined as this client"])[-1] for client in missing}

    def node_of(self, client: int) -> int | None:
        """Return the node of a client, or None if it is not online."""
        node = self._node.get(client)
        return node if node in self._members else None

    def training_replies(self) -> dict[int, JoinReply]:
        """Return what the clients that train joined with, in the order of their ids."""
        return {client: reply for client, reply in sorted(self.joined.items()) if client < self._training_clients}

    def moments(self) -> dict[int, ClientMoments]:
        """Return the moments of numeric features that training clients reported, in the order of their ids."""
        replies = self.training_replies().items()
        return {client: ClientMoments(reply.samples, of) for client, reply in replies if (of := reply.moments)}

    def refuse(self, client: int, reason: str) -> None:
        """Leave a client out for as long as this server runs."""
        self._refused[client] = reason
        self.note(LogRecord(f"client {client} is left out: {reason}", "left_out", client=client))
        node = self._node.pop(client)
        self._members.discard(node)
        self._absences.add(node, printable(reason), time.monotonic(), client)
        del self.joined[client]

    def count_cells(self, ranges: Ranges, minimum: int, seconds: float) -> list[ClientMoments]:
        """Let all that joined join again, with counts of cells in `ranges`. minimum, seconds: as for `wait`."""
        clients, self.identity = [*self.moments()], self.identity.model_copy(update={"ranges": ranges})
        self._contacted, self._members, self._node, self.joined = set(), set(), {}, {}
        self.wait(clients, minimum, seconds)
        return [*self.moments().values()]

    def set_scale(self, scale: Scale) -> None:
        """Send the scale with every further request; nodes that join no longer report moments."""
        self.identity, self._measured = self.identity.model_copy(update={"scale": scale, "ranges": {}}), 0

    def wait(self, clients: Sequence[int], minimum: int, seconds: float) -> None:
        """Wait for all `clients`; raise `FederationError` if fewer than `minimum` are online after `seconds`."""
        began = last_report = time.monotonic()
        while True:
            self.poll()
            missing = [client for client in clients if self.node_of(client) is None]
            now = time.monotonic()
            remaining = seconds - (now - began)
            if missing:
                self.links.status.set_wait("nodes", missing, remaining)
            if missing and remaining <= 0 and (online := len(clients) - len(missing)) < min(minimum, len(clients)):
                raise FederationError(
                    f"{online} of {len(clients)} clients are online after flower.join_timeout = {seconds:g} s, and "
                    f"flower.min_clients = {minimum}: clients {client_list(missing)} are missing; "
                    f"{self._explain(missing)}"
                )
            if not missing or remaining <= 0:
                self.links.status.clear_wait()
                if missing:
                    text = f"continues without clients {client_list(missing)}: not online after {seconds:g} s"
                    self.note(LogRecord(text, "lost"))
                return
            if now - last_report >= REPORT_SECONDS:
                last_report = now
                text = f"waiting for the nodes of clients {client_list(missing)}, {remaining:.0f} s more"
                self.note(LogRecord(text, "waiting"))
            time.sleep(self.links.transport.poll_seconds)

    def _explain(self, clients: Sequence[int]) -> str:
        reasons = self._absences.by_client()
        known = [reasons[client][-1] for client in clients if client in reasons and client not in self.joined]
        return "; ".join([*known, *reasons.get(None, [])][:3]) or "start their nodes"

    def _register(self, node: int, sent: float, message: Message | str) -> None:
        client = None
        try:
            if isinstance(message, Stalled):
                raise MessageError(f"{message} when asked to join (flower.node_timeout)")
            if isinstance(message, str):
                raise MessageError(message)
            reply = read_reply(message, JoinReply)
            client = reply.client if 0 <= reply.client < self._clients else None
            if isinstance(reply, ErrorReply):
                name = f"client {reply.client}"
                reason = reply.error if reply.client < 0 or name in reply.error else f"{name}: {reply.error}"
                if self.links.transport.in_process:  # it cannot be repaired while the run waits
                    raise FederationError(printable(reason))
                raise MessageError(reason)
            binding = reply.client, self.links.transport.key_of(node), reply.token
            if client is not None and not self.links.transport.in_process:
                self._bindings.check(*binding)
            self._check(reply)
            if not self.links.transport.in_process:
                self._bindings.claim(*binding)
        except MessageError as error:
            client, reason = error.client if isinstance(error, WrongClientError) else client, printable(str(error))
            self._members.discard(node)
            if self._absences.add(node, reason, sent, client):  # once for each reason
                self.note(LogRecord(f"node {node} is left out: {reason}", "left_out", client=client))
            return
        if reply.clock is not None and reply.client not in self._odd_clocks:  # Flower's signatures need right clocks
            now = time.time()
            if text := clock_difference(reply.clock, now - (time.monotonic() - sent), now):
                self._odd_clocks.add(reply.client)
                self.note(LogRecord(f"client {reply.client}: {text}", "clock", client=reply.client))
        if reply.unreadable and reply.client not in self.joined:
            text = f"client {reply.client} left out {reply.unreadable:,} unreadable samples, which its log names"
            self.note(LogRecord(text, "unreadable", client=reply.client))
        self._absences.end(node)
        self._members.add(node)
        before = self.joined.get(reply.client)
        if before is not None and before.samples != reply.samples:
            text = f"client {reply.client} comes back with {reply.samples} samples; it had {before.samples}"
            self.note(LogRecord(text, "changed", client=reply.client))
        self._node = {other: other_node for other, other_node in self._node.items() if other_node != node}
        self._node[reply.client], self.joined[reply.client] = node, reply

    def _check(self, reply: JoinReply) -> None:
        client = reply.client
        if reply.run != self.identity.run:
            raise MessageError(f"it joins the run {short_repr(reply.run)}, this is {self.identity.run}")
        if client >= self._clients:
            raise MessageError(f"it is client {client}, the run has clients 0 .. {self._clients - 1}")
        if client in self._refused:
            raise MessageError(f"client {client}: {self._refused[client]}")
        if self._sizes is not None and reply.samples != self._sizes[client]:
            known = f"by the config it has {self._sizes[client]:,}"
            raise MessageError(f"client {client} joins with {reply.samples:,} training samples; {known}")
        if reply.classes != self._classes:
            own, known = short_repr(list(reply.classes)), short_repr(list(self._classes))
            remedy = "use the same labels on all nodes"
            raise MessageError(f"client {client} has the classes {own}, the server {known}; {remedy}")
        if self._measured and client < self._training_clients:
            moments = reply.moments or ChannelMoments(mean=(), squares=())
            observed = (reply.samples,) * self._measured if moments.observed is None else moments.observed
            features = min(map(len, (moments.mean, moments.squares, observed)))
            totals = {sum(counts) for of_feature in moments.bins.values() for counts in of_feature}
            if moments.bins.keys() != self.identity.ranges.keys() or max(totals, default=0) > reply.samples:
                raise MessageError(f"client {client} reports counts of other cells than it was asked for")
            if features != self._measured or not reply.samples or max(observed) > reply.samples:
                reported = f"moments of {features} features of {reply.samples} samples"
                raise MessageError(f"client {client} reports {reported}; need {self._measured} features")
