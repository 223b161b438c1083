"""A bound on the length of a node's reply: longer replies are refused before their bytes are read.

Flower has no such setting. Its `HttpGrid` fetches a reply in objects of a few megabytes over one HTTP client. The
length of each object is known before its body is read. The length of the arrays that Flower joins from them is known
before it joins them; a reply can name one small chunk a million times. Only this file uses that client and those
objects, which are not public.
"""

from __future__ import annotations

import json
import threading
from typing import Any

_FETCH_PATHS = ("/pull-messages", "/pull-object")
_MAX_SMALL_OBJECTS = 64  # objects of a reply beside the chunks of its body
_MIN_CHUNK_BYTES = 1 << 16  # of every chunk of a body but the last


class ReplyTooLarge(Exception):
    """A reply that is longer than the bound."""


class ReplyBound:
    """Counts the bytes of one reply at a time, and ends its fetch at the bound.

    grid: Flower's. One without an HTTP client, as in a simulation, is not bounded: its replies are in this process'
    memory already.
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
        """Begin with the next reply, which may have `limit` bytes."""
        self._limit, self._bytes, self._objects = limit, 0, 0
        self._names: list[str] = []  # of the messages that are fetched
        self._lengths: dict[str, int] = {}  # of objects, without their headers
        self._chunks: list[str] = []  # of all arrays, as often as they are named

    def drop(self) -> None:
        """Let the SuperLink delete the rest of a refused reply."""
        from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest

        names, run = self._names, self._grid.run.run_id
        self.begin(self._limit)
        for name in names:
            request = ConfirmMessageReceivedRequest(node=self._grid.node, run_id=run, message_object_id=name)
            self._client.ConfirmMessageReceived(request)

    def intercept(self, context: Any, call_next: Any) -> Any:
        """Wrap a request of the client, as Flower's interceptors do. Raises `ReplyTooLarge`."""
        from flwr.proto.message_pb2 import PullObjectResponse
        from flwr.proto.runtime_pb2 import PullAppMessagesResponse

        response = call_next(context)
        if context.rpc_method.endswith("/PullMessages"):
            messages = PullAppMessagesResponse.FromString(response.content).messages_list
            self._names = [message.metadata.message_id for message in messages]
        elif context.rpc_method.endswith("/PullObject"):
            self._measure(context.message.object_id, PullObjectResponse.FromString(response.content).object_content)
        elif context.rpc_method.endswith("/ConfirmMessageReceived"):  # everything is fetched, and nothing joined
            length = sum(self._lengths.get(chunk, 0) for chunk in self._chunks)
            if length > self._limit:
                raise ReplyTooLarge(f"its arrays have {length:,} bytes; {self._limit:,} at most")
        return response

    def _measure(self, name: str, content: bytes) -> None:
        """Record the length of an object, and the chunks of an array."""
        from flwr.supercore.inflatable.inflatable_object import get_object_head_values_from_object_content

        if not content:
            return  # not there yet; Flower asks again
        kind, children, length = get_object_head_values_from_object_content(content)
        with self._lock:
            self._lengths[name] = length
        if kind == "Array":
            chunks = [children[index] for index in json.loads(content[len(content) - length :])["arraychunk_ids"]]
            with self._lock:
                self._chunks += chunks

    def _check(self, response: Any) -> None:
        """Count a response before its body is read. Raises `ReplyTooLarge`."""
        if not response.request.url.path.endswith(_FETCH_PATHS):
            return
        with self._lock:
            self._bytes += int(response.headers.get("content-length", self._limit + 1))
            self._objects += 1
            if self._bytes > self._limit or self._objects > _MAX_SMALL_OBJECTS + self._limit // _MIN_CHUNK_BYTES:
                raise ReplyTooLarge(f"more than {self._limit:,} bytes, or in too many parts; it was not read")
