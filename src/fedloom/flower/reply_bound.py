"""A bound on what a ServerApp reads of a node's reply: longer ones are turned away before their bytes are read.

Flower has no such setting. Its `HttpGrid` fetches a reply in objects of a few megabytes over one HTTP client. The
length of each is known before its body is read. How long the arrays will be that Flower joins from them is known before
it does: one small chunk can be named a million times. This file alone touches that client and those objects, which are
not public.
"""

from __future__ import annotations

import json
import threading
from typing import Any

_FETCHES = ("/pull-messages", "/pull-object")  # what is fetched of a reply
_SMALL_OBJECTS = 64  # objects of a reply beside those of its body
_LEAST_CHUNK = 1 << 16  # bytes of a body's objects, all but the last


class ReplyTooLarge(Exception):
    """A reply that is longer than the bound."""


class ReplyBound:
    """Counts what is fetched of one reply at a time, and ends the fetch at the bound.

    grid: Flower's; one that has no HTTP client, as in a simulation, is not bounded here. The replies of such a grid are
    in this process' memory before they are asked for.
    """

    def __init__(self, grid: Any) -> None:
        self._grid, self._lock = grid, threading.Lock()
        self.begin(0)
        client: Any = getattr(grid, "_runtime_client", None)
        if client is not None:
            client._interceptors = (*client._interceptors, self)
            client._client.event_hooks["response"].append(self._check)
        self._client = client

    def begin(self, limit: int) -> None:
        """The next reply is fetched; it may have `limit` bytes."""
        self._limit, self._bytes, self._objects = limit, 0, 0
        self._names: list[str] = []  # of the message that is fetched
        self._lengths: dict[str, int] = {}  # of objects, without their heads
        self._parts: list[str] = []  # of all arrays, as often as they are named

    def drop(self) -> None:
        """Let the SuperLink delete what is left of the reply that was turned away."""
        from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest

        names, run = self._names, self._grid.run.run_id
        self.begin(self._limit)
        for name in names:
            request = ConfirmMessageReceivedRequest(node=self._grid.node, run_id=run, message_object_id=name)
            self._client.ConfirmMessageReceived(request)

    def intercept(self, context: Any, call_next: Any) -> Any:
        """Flower calls this around every request of the client. Raises `ReplyTooLarge`."""
        from flwr.proto.message_pb2 import PullObjectResponse
        from flwr.proto.runtime_pb2 import PullAppMessagesResponse

        response = call_next(context)
        if context.rpc_method.endswith("/PullMessages"):
            messages = PullAppMessagesResponse.FromString(response.content).messages_list
            self._names = [message.metadata.message_id for message in messages]
        elif context.rpc_method.endswith("/PullObject"):
            self._measure(context.message.object_id, PullObjectResponse.FromString(response.content).object_content)
        elif context.rpc_method.endswith("/ConfirmMessageReceived"):  # all is fetched, and nothing joined
            length = sum(self._lengths.get(part, 0) for part in self._parts)
            if length > self._limit:
                raise ReplyTooLarge(f"its arrays have {length:,} bytes; {self._limit:,} at most")
        return response

    def _measure(self, name: str, content: bytes) -> None:
        """Note how long an object is, and of which parts an array is joined."""
        from flwr.supercore.inflatable.inflatable_object import get_object_head_values_from_object_content

        if not content:
            return  # it is not there yet, and is asked for again
        kind, children, length = get_object_head_values_from_object_content(content)
        with self._lock:
            self._lengths[name] = length
        if kind == "Array":
            parts = [children[index] for index in json.loads(content[len(content) - length :])["arraychunk_ids"]]
            with self._lock:
                self._parts += parts

    def _check(self, response: Any) -> None:
        """Before a response's body is read. Raises `ReplyTooLarge`."""
        if not response.request.url.path.endswith(_FETCHES):
            return
        with self._lock:
            self._bytes += int(response.headers.get("content-length", self._limit + 1))
            self._objects += 1
            if self._bytes > self._limit or self._objects > _SMALL_OBJECTS + self._limit // _LEAST_CHUNK:
                raise ReplyTooLarge(f"more than {self._limit:,} bytes, or in too many parts; it was not read")
