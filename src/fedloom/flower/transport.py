"""How messages get to nodes and back: the interface of a transport, Flower's `Grid`, and one inside this process."""

import itertools
import json
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from fedloom.core.errors import printable
from fedloom.flower.bindings import fingerprint_of
from fedloom.flower.message import Message, MessageError, from_content, to_content
from fedloom.flower.node import Node
from fedloom.flower.wire import MAX_FACTS, MAX_REQUEST, ErrorReply, Request, read

BYTES_PER_CHARACTER = 8  # of facts: four in UTF-8, and room for Flower's own fields
SMALL_REPLY_BYTES = BYTES_PER_CHARACTER * MAX_FACTS  # a reply without a body
_FETCH_PATHS = ("/pull-messages", "/pull-object")
_MAX_SMALL_OBJECTS = 64  # objects of a reply, without the chunks of its body
_MIN_CHUNK_BYTES = 1 << 16  # of every chunk of a body but the last
_FORGOTTEN_SECONDS = 60.0  # after which a reply that nobody asks for any more is forgotten


class Transport(Protocol):
    """Carries messages between the server and its nodes. poll_seconds: between two polls. reply_limit: bytes
    beyond which a reply is not read. in_process: nodes run in this process, so one that cannot join ends the run.
    resident: whether nodes that work answer with their progress, as those of a network do."""

    poll_seconds: float
    reply_limit: int
    in_process: bool
    resident: bool

    def nodes(self) -> set[int]:
        """Return the ids of the nodes that are connected now."""

    def key_of(self, node: int) -> str:
        """Return the fingerprint of the key that a node has proved to have; empty without keys."""

    def send(self, node: int, message: Message, seconds: float) -> str:
        """Send a `message` that expires after `seconds` to a `node`; return the id of the message."""

    def receive(self, message_ids: Collection[str]) -> Iterable[tuple[str, Message | str]]:
        """Yield the replies that have arrived, by id; text instead of a message says why there will be none."""


class InProcessTransport:
    """Calls nodes of this process, each when its reply is received."""

    poll_seconds, reply_limit, in_process, resident = 0.0, SMALL_REPLY_BYTES, True, True

    def __init__(self, nodes: Mapping[int, Node]) -> None:
        self._nodes = nodes
        self._waiting: dict[str, tuple[int, Message]] = {}
        self._message_ids = map(str, itertools.count())

    def nodes(self) -> set[int]:
        return set(self._nodes)

    def key_of(self, node: int) -> str:
        return ""

    def send(self, node: int, message: Message, seconds: float) -> str:
        message_id = next(self._message_ids)
        self._waiting[message_id] = node, message
        return message_id

    def receive(self, message_ids: Collection[str]) -> list[tuple[str, Message | str]]:
        for message_id in message_ids:
            if message_id in self._waiting:
                node, message = self._waiting.pop(message_id)
                return [(message_id, self._nodes[node].answer(message))]
        return []


_TYPES = {"join": "query", "train": "train", "test": "evaluate", "serve": "evaluate"}


class ReplyTooLarge(Exception):
    """A reply that is longer than the bound."""


class Incomplete(Exception):
    """A reply of which the SuperLink does not have all objects yet."""


@dataclass(slots=True)
class _Fetch:
    """A reply that is fetched, one object after another, as its node uploads them."""

    polled: float = 0.0  # monotonic seconds
    bytes: int = 0
    objects: int = 0
    names: list[str] = field(default_factory=list)  # of the messages
    lengths: dict[str, int] = field(default_factory=dict)  # of objects, without their headers
    chunks: list[str] = field(default_factory=list)  # of all arrays, as often as they are named
    responses: dict[str, Any] = field(default_factory=dict)  # by the object, or empty for the list of all objects


class ReplyBound:
    """Reads a reply in steps, and refuses one that is too long before its bytes are read. Flower can do neither: it
    waits for the slowest node's upload, and nobody else is served meanwhile. The length of each object is checked
    before its body is read, and that of the arrays before they are joined, as a reply can name one small chunk a
    million times. Only this class uses what is not public in Flower."""

    def __init__(self, grid: Any) -> None:
        self._grid, self._lock, self._local, self._limit = grid, threading.Lock(), threading.local(), 0
        self._fetches: dict[str, _Fetch] = {}  # by the message that is answered
        self._fetch = _Fetch()
        client: Any = getattr(grid, "_runtime_client", None)
        if client is not None:
            client._interceptors = (*client._interceptors, self)
            client._client.event_hooks["response"].append(self._check)
        self._client, self.in_network = client, client is not None

    def begin(self, name: str, limit: int) -> None:
        """Begin, or go on, with the reply to the message `name`, which may have `limit` bytes."""
        self._limit, now = limit, time.monotonic()
        self._fetch = self._fetches.setdefault(name, _Fetch())
        self._fetch.polled = now
        for forgotten in [key for key, fetch in self._fetches.items() if now - fetch.polled > _FORGOTTEN_SECONDS]:
            del self._fetches[forgotten]

    def end(self, name: str) -> None:
        """Forget a reply that is complete, or refused, or not there at all."""
        del self._fetches[name]

    def drop(self) -> None:
        """Let the SuperLink delete the rest of a refused reply."""
        from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest

        names, run, self._fetch = self._fetch.names, self._grid.run.run_id, _Fetch()
        for name in names:
            request = ConfirmMessageReceivedRequest(node=self._grid.node, run_id=run, message_object_id=name)
            self._client.ConfirmMessageReceived(request)

    def intercept(self, context: Any, call_next: Any) -> Any:
        """Wrap a request of the client, as Flower's interceptors do."""
        from flwr.proto.message_pb2 import PullObjectResponse
        from flwr.proto.runtime_pb2 import PullAppMessagesResponse

        # Flower fetches two objects at a time, each in a thread, and the other thread may end in the next reply.
        fetch = self._local.fetch = self._fetch
        name = context.message.object_id if context.rpc_method.endswith("/PullObject") else ""
        is_fetched = name or context.rpc_method.endswith("/PullMessages")
        if is_fetched and name in fetch.responses:
            return fetch.responses[name]
        response = call_next(context)
        if name:
            pulled = PullObjectResponse.FromString(response.content)
            if pulled.object_found and not pulled.object_available:
                with self._lock:
                    fetch.objects -= 1  # it is asked for again
                raise Incomplete
            self._measure(fetch, name, pulled.object_content)
        elif is_fetched:
            messages = PullAppMessagesResponse.FromString(response.content).messages_list
            fetch.names = [message.metadata.message_id for message in messages]
        elif context.rpc_method.endswith("/ConfirmMessageReceived"):  # everything is fetched, and nothing joined
            length = sum(fetch.lengths.get(chunk, 0) for chunk in fetch.chunks)
            if length > self._limit:
                raise ReplyTooLarge(f"its arrays have {length:,} bytes; {self._limit:,} at most")
        if is_fetched:
            fetch.responses[name] = response
        return response

    def _measure(self, fetch: _Fetch, name: str, content: bytes) -> None:
        from flwr.supercore.inflatable.inflatable_object import get_object_head_values_from_object_content

        if not content:
            return  # it is lost, as Flower will say
        kind, children, length = get_object_head_values_from_object_content(content)
        ids = json.loads(content[len(content) - length :])["arraychunk_ids"] if kind == "Array" else ()
        with self._lock:
            fetch.lengths[name] = length
            fetch.chunks += [children[index] for index in ids]

    def _check(self, response: Any) -> None:
        """Count a response before its body is read."""
        if not response.request.url.path.endswith(_FETCH_PATHS):
            return
        with self._lock:
            fetch = self._local.fetch
            # A response that hides its length counts as too long.
            fetch.bytes += int(response.headers.get("content-length", self._limit + 1))
            fetch.objects += 1
            if fetch.bytes > self._limit or fetch.objects > _MAX_SMALL_OBJECTS + self._limit // _MIN_CHUNK_BYTES:
                raise ReplyTooLarge(f"more than {self._limit:,} bytes, or in too many parts; it was not read")


class GridTransport:
    """Sends messages over a Flower `Grid`. keys: whether the SuperLink checks the nodes' keys."""

    in_process = False

    def __init__(self, grid: Any, poll_seconds: float = 0.2, keys: bool = True) -> None:
        self._grid, self.poll_seconds, self._keys = grid, poll_seconds, keys
        self.reply_limit = SMALL_REPLY_BYTES
        self._bound = ReplyBound(grid)
        self.resident = self._bound.in_network
        self._key_of: dict[int, str] = {}

    def nodes(self) -> set[int]:
        if not hasattr(self._grid, "get_nodes"):
            return set(self._grid.get_node_ids())
        nodes = list(self._grid.get_nodes())
        # A fingerprint is computed once for each node, because this is asked at every poll.
        new = [node for node in nodes if self._keys and node.node_id not in self._key_of]
        self._key_of |= {node.node_id: fingerprint_of(node.public_key) for node in new}
        return {node.node_id for node in nodes}

    def key_of(self, node: int) -> str:
        return self._key_of.get(node, "")

    def send(self, node: int, message: Message, seconds: float) -> str:
        from flwr.app import Message as FlowerMessage

        task = read(message, Request, MAX_REQUEST).do
        (message_id,) = self._grid.push_messages([FlowerMessage(to_content(message), node, _TYPES[task], ttl=seconds)])
        return str(message_id)

    def receive(self, message_ids: Collection[str]) -> Iterator[tuple[str, Message | str]]:
        """Fetch one reply at a time, so that a faulty one cannot spoil the others."""
        for message_id in list(message_ids):
            reply = self._read(message_id)
            if reply is not None:
                yield message_id, reply
            del reply  # large

    def _read(self, message_id: str) -> Message | str | None:
        from httpx import HTTPError

        self._bound.begin(message_id, self.reply_limit)
        try:
            replies = list(self._grid.pull_messages([message_id]))
            reply = _message_of(replies[0], self.reply_limit) if replies else None
        except Incomplete:
            return None
        except HTTPError:  # the connection to the SuperLink failed, not the reply
            raise
        except ReplyTooLarge as error:
            self._bound.drop()
            reply = unusable(str(error))
        except Exception as error:  # Flower may raise anything for the bytes of a node
            reply = unusable(f"Flower cannot read it ({type(error).__name__}: {printable(str(error)[:200])})")
        self._bound.end(message_id)
        return reply


def unusable(reason: str) -> Message:
    """Return what the server reads in place of a reply that it refuses."""
    return ErrorReply(run="", error=f"an unusable reply: {reason}").to_message()


def _message_of(reply: Any, limit: int) -> Message | str:
    if reply.has_error():
        return f"Flower: {printable(' '.join(str(reply.error.reason)[:1000].split()))[:300]}"
    try:
        message = from_content(reply.content)
    except MessageError as error:
        return ErrorReply(run="", error=str(error)).to_message()
    length = len(message.facts) + len(message.body)
    return unusable(f"{length:,} bytes; {limit:,} at most") if length > limit else message
