"""How letters get to nodes and back: what every link can do, and the one that stays in this process."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

from fedloom.flower.node import Node
from fedloom.flower.wire import MAX_FACTS, Message

SMALL_REPLY_BYTES = (
    8 * MAX_FACTS
)  # bytes of an answer without a body: four for each character of its facts, and room for Flower's


class Transport(Protocol):
    """Carries letters.

    pause: seconds between two looks for answers. limit: bytes that an answer may have; a longer one is not read.
    local: nodes are of this process, so that nobody else can join, and one that cannot join ends the run.
    """

    pause: float
    limit: int
    local: bool

    def nodes(self) -> set[int]:
        """Numbers of the nodes that are there now."""
        ...

    def key_of(self, node: int) -> str:
        """The fingerprint of the key that a node has proved to have; empty where there are no keys."""
        ...

    def send(self, node: int, letter: Message, seconds: float) -> str:
        """Hand a letter to the network, where it is worth `seconds`; the name under which its answer is asked for."""
        ...

    def take(self, names: Collection[str]) -> Iterable[tuple[str, Message | str]]:
        """Answers that have come; a word in place of a letter says why there will be none."""
        ...


class InProcessTransport:
    """Nodes of this process, each asked when its answer is taken."""

    pause, limit, local = 0.0, SMALL_REPLY_BYTES, True

    def __init__(self, nodes: Mapping[int, Node]) -> None:
        self._nodes = nodes
        self._waiting: dict[str, tuple[int, Message]] = {}
        self._names = map(str, itertools.count())

    def nodes(self) -> set[int]:
        return set(self._nodes)

    def key_of(self, node: int) -> str:
        return ""

    def send(self, node: int, letter: Message, seconds: float) -> str:
        name = next(self._names)
        self._waiting[name] = node, letter
        return name

    def take(self, names: Collection[str]) -> list[tuple[str, Message | str]]:
        for name in names:
            if name in self._waiting:
                node, letter = self._waiting.pop(name)
                return [(name, self._nodes[node].answer(letter))]
        return []
