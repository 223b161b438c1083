"""How messages get to nodes and back: the interface of every transport, and the one inside this process."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

from fedloom.flower.node import Node
from fedloom.flower.wire import MAX_FACTS, Message

BYTES_PER_CHARACTER = 8  # of facts: four in UTF-8, and room for Flower's own fields
SMALL_REPLY_BYTES = BYTES_PER_CHARACTER * MAX_FACTS  # a reply without a body


class Transport(Protocol):
    """Carries messages between the server and its nodes.

    poll_seconds: pause between two looks for replies. reply_limit: bytes that a reply may have; a longer one is not
    read. in_process: nodes run in this process, so nobody else can join, and one that cannot join ends the run.
    """

    poll_seconds: float
    reply_limit: int
    in_process: bool

    def nodes(self) -> set[int]:
        """Return the ids of the nodes that are connected now."""
        ...

    def key_of(self, node: int) -> str:
        """Return the fingerprint of the key that a node has proved to have; empty where there are no keys."""
        ...

    def send(self, node: int, message: Message, seconds: float) -> str:
        """Send a message that expires after `seconds`; return the id under which `receive` looks for its reply.

        Args:
            node: id of the receiver.
            message: the job, evaluation job or question.
            seconds: time until the message expires.
        """
        ...

    def receive(self, message_ids: Collection[str]) -> Iterable[tuple[str, Message | str]]:
        """Yield the replies that have arrived; text instead of a message says why there will be none."""
        ...


class InProcessTransport:
    """Calls nodes of this process, each when its reply is received."""

    poll_seconds, reply_limit, in_process = 0.0, SMALL_REPLY_BYTES, True

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
