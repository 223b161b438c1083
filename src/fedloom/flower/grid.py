"""Letters as Flower's messages, the link over Flower's `Grid`, and a grid of this process for Flower's own apps.

A record travels as one `Array` of bytes: one object on the wire, exactly the bytes that are counted, and one strict
reader. Its serialisation type is not NumPy's, so that nobody reads it as an array.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from importlib.metadata import PackageNotFoundError, version
from types import SimpleNamespace
from typing import Any

from fedloom.core.errors import ConfigError, printable
from fedloom.flower.fingerprints import fingerprint_of
from fedloom.flower.reply_bound import ReplyBound, ReplyTooLarge
from fedloom.flower.transport import SMALL_REPLY_BYTES
from fedloom.flower.wire import ErrorReply, Message, MessageError, Request, read

_STYPE, _FACTS, _BODY = "fedloom.record", "facts", "record"
_TYPES = {"join": "query", "train": "train", "test": "evaluate"}
_OLDEST, _NEWEST = (1, 41), (1, 42)  # that the tests ran with


def require_flower() -> str:
    """Flower's version. Raises `ConfigError` if it is not installed, or is one that fedloom does not know."""
    try:
        found = version("flwr")
    except PackageNotFoundError:
        raise ConfigError("Flower is not installed; pip install 'fedloom[flower]'") from None
    major, minor = (int(part) for part in found.split(".")[:2])
    if not _OLDEST <= (major, minor) <= _NEWEST:
        low, high = (".".join(map(str, bound)) for bound in (_OLDEST, _NEWEST))
        raise ConfigError(f"Flower {found}: fedloom is tested with {low} to {high}; pip install 'fedloom[flower]'")
    return found


def to_content(letter: Message) -> Any:
    """A letter as a `RecordDict`."""
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

    body = Array(dtype="uint8", shape=(len(letter.body),), stype=_STYPE, data=letter.body)
    return RecordDict({_FACTS: ConfigRecord({_FACTS: letter.facts}), _BODY: ArrayRecord({_BODY: body})})


def from_content(content: Any) -> Message:
    """The letter in a `RecordDict`. Raises `MessageError` for anything else."""
    from flwr.app import ArrayRecord, ConfigRecord

    try:
        facts, body = content[_FACTS], content[_BODY]
        whole = {*content} == {_FACTS, _BODY} and {*facts} == {_FACTS} and {*body} == {_BODY}
        if not (whole and isinstance(facts, ConfigRecord) and isinstance(body, ArrayRecord)):
            raise MessageError("a message with other records than a letter's")
        text, array = facts[_FACTS], body[_BODY]
    except (KeyError, TypeError, ValueError) as error:
        raise MessageError(f"no letter: {type(error).__name__}: {printable(str(error)[:200])}") from None
    if not isinstance(text, str) or array.stype != _STYPE or not isinstance(array.data, bytes):
        raise MessageError("a letter whose parts have other types")
    return Message(text, array.data)


class GridTransport:
    """Letters over a Flower `Grid`.

    pause: seconds between two looks for answers. keys: whether the SuperLink checks the keys of nodes; without, nodes
    are known by their disks alone.
    """

    local = False

    def __init__(self, grid: Any, pause: float = 0.2, keys: bool = True) -> None:
        self._grid, self.pause, self._keys = grid, pause, keys
        self.limit = SMALL_REPLY_BYTES
        self._bound = ReplyBound(grid)
        self._key_of: dict[int, str] = {}

    def nodes(self) -> set[int]:
        if not hasattr(self._grid, "get_nodes"):
            return set(self._grid.get_node_ids())
        nodes = list(self._grid.get_nodes())
        new = [node for node in nodes if self._keys and node.node_id not in self._key_of]
        self._key_of |= {node.node_id: fingerprint_of(node.public_key) for node in new}
        return {node.node_id for node in nodes}

    def key_of(self, node: int) -> str:
        return self._key_of.get(node, "")

    def send(self, node: int, letter: Message, seconds: float) -> str:
        from flwr.app import Message as FlowerMessage

        do = read(letter, Request).do
        (name,) = self._grid.push_messages([FlowerMessage(to_content(letter), node, _TYPES[do], ttl=seconds)])
        return str(name)

    def take(self, names: Collection[str]) -> Iterator[tuple[str, Message | str]]:
        """One reply at a time: a node's message cannot say whose it is, and a bad one spoils no other."""
        for name in list(names):
            answer = self._read(name)
            if answer is not None:
                yield name, answer
            del answer  # large

    def _read(self, name: str) -> Message | str | None:
        from httpx import HTTPError

        self._bound.begin(self.limit)
        try:
            replies = list(self._grid.pull_messages([name]))
            return _letter_of(replies[0], self.limit) if replies else None
        except HTTPError:  # of the connection to the SuperLink, not of the reply
            raise
        except ReplyTooLarge as error:
            self._bound.drop()
            return _unreadable(str(error))
        except Exception as error:  # Flower reads what the node wrote, and says of it what it likes
            return _unreadable(f"Flower cannot read it ({type(error).__name__}: {printable(str(error)[:200])})")


def _unreadable(why: str) -> Message:
    return ErrorReply(run="", error=f"an answer that cannot be used: {why}").to_message()


def _letter_of(reply: Any, limit: int) -> Message | str:
    if reply.has_error():
        return f"Flower: {printable(' '.join(str(reply.error.reason)[:1000].split()))[:300]}"
    try:
        letter = from_content(reply.content)
    except MessageError as error:
        return ErrorReply(run="", error=str(error)).to_message()
    length = len(letter.facts) + len(letter.body)
    return _unreadable(f"{length:,} bytes; {limit:,} at most") if length > limit else letter


def local_grid(answer: Callable[[Any, Any], Any], nodes: Iterable[int]) -> Any:
    """A `Grid` whose nodes are calls of a `ClientApp` in this process, one context for each: for tests and debugging.

    answer: the app. nodes: the partition ids; node ids are these plus one.
    """
    from flwr.app import Context, RecordDict
    from flwr.app import Message as FlowerMessage
    from flwr.serverapp import Grid
    from flwr.supercore.task_identity import TaskIdentity  # not public: messages made here need to know their run

    TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1
    contexts = {client + 1: Context(1, client + 1, {"partition-id": client}, RecordDict(), {}) for client in nodes}

    class LocalGrid(Grid):  # type: ignore[misc]
        """Calls the app when an answer is taken."""

        def __init__(self) -> None:
            self._out: dict[str, Any] = {}

        def set_run(self, run: Any) -> None:
            raise NotImplementedError("a grid of this process has one run")

        @property
        def run(self) -> Any:
            return SimpleNamespace(run_id=1)

        def create_message(
            self, content: Any, message_type: str, dst_node_id: int, group_id: str, ttl: Any = None
        ) -> Any:
            return FlowerMessage(content, dst_node_id, message_type, group_id=group_id, ttl=ttl)

        def get_node_ids(self) -> Iterable[int]:
            return list(contexts)

        def push_messages(self, messages: Iterable[Any]) -> Iterable[str]:
            names = []
            for message in messages:
                name = f"message-{len(self._out)}"
                message.metadata.__dict__["_message_id"] = name
                self._out[name] = message
                names.append(name)
            return names

        def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Any]:
            found = [self._out[name] for name in message_ids if self._out.get(name) is not None]
            for message in found:
                self._out[message.metadata.message_id] = None
            return [answer(message, contexts[message.metadata.dst_node_id]) for message in found]

        def send_and_receive(self, messages: Iterable[Any], *, timeout: float | None = None) -> Iterable[Any]:
            return self.pull_messages(self.push_messages(messages))

    return LocalGrid()
