"""Bounds on what a node sends: the length of a reply, and the size of an upload compared with others of its round.

An upload has several L2 norms: of the change of a tree since the payload, for body, head and batch norm separately; of
every row of a class table; of every tensor and number. The reference is the median over the round's clients, or the
largest such median of the run so far: changes become tiny when training converges, and a client that still learns must
not be refused for it. A client with more samples than the median client takes more steps, so its limit is larger.
"""

import json
import math
import statistics
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fedloom.core.records import Record
from fedloom.core.tables import ClassTable
from fedloom.core.trees import Tree
from fedloom.methods.contract.spec import Sent
from fedloom.nets.net import Role

FEWEST = 4  # uploads for a meaningful median: of three, one hostile client would be a third


@dataclass(frozen=True, slots=True)
class UploadNorm:
    """One L2 norm of an upload. key: norms with equal keys are compared. label: for messages."""

    key: str
    label: str
    norm: float


@dataclass(frozen=True, slots=True)
class Excess:
    """A norm that is too large: `ratio` to the reference, where `limit` was allowed."""

    upload_norm: UploadNorm
    ratio: float
    limit: float

    def __str__(self) -> str:
        return (
            f"{self.upload_norm.label} is {self.ratio:.3g} times as large as the median client's, and at most "
            f"{self.limit:.3g} times is allowed (flower.max_ratio)"
        )


def upload_norms(
    upload: Record, payload: Record, sends: Mapping[str, Sent], roles: Mapping[str, Role]
) -> Iterator[UploadNorm]:
    """Yield the L2 norms of an `upload` that are compared with those of other clients.

    payload: the record that the client trained from. sends: the method's declaration. roles: of the entries of trees.
    """
    for name, value in upload.items():
        if isinstance(value, dict):
            is_whole = name in sends and sends[name].form == "whole"
            yield from _tree_norms(name, value, payload.get(name) if is_whole else None, roles)
        elif isinstance(value, ClassTable):
            for label in value.held.nonzero().tolist():
                yield UploadNorm(f"{name}/rows", f"row {label[-1]} of {name}", _norm(value.values[tuple(label)]))
        elif isinstance(value, Tensor):
            if value.is_floating_point():
                yield UploadNorm(name, name, _norm(value))
        elif isinstance(value, float):
            yield UploadNorm(name, name, abs(value))


def _tree_norms(name: str, tree: Tree, payload: object, roles: Mapping[str, Role]) -> Iterator[UploadNorm]:
    received: Tree = payload if isinstance(payload, dict) else {}
    squares: dict[tuple[str, bool], float] = {}
    for entry, tensor in tree.items():
        if not tensor.is_floating_point():
            continue
        is_change = entry in received and received[entry].shape == tensor.shape
        change = tensor.double() - received[entry].double() if is_change else tensor.double()
        role = str(roles[entry].value) if entry in roles else ""
        squares[role, is_change] = squares.get((role, is_change), 0.0) + float(change.square().sum())
    for (role, is_change), square in squares.items():
        tree_label = f"the {role} of {name}" if role else name
        label = f"the change of {tree_label}" if is_change else tree_label
        yield UploadNorm(f"{name}/{role}/{'change' if is_change else 'size'}", label, math.sqrt(square))


def _norm(tensor: Tensor) -> float:
    return float(tensor.double().norm())


class NormBounds:
    """Compares the uploads of a round. references: the largest median of each norm so far; updated by `judge`."""

    def __init__(self, max_ratio: float, references: dict[str, float]) -> None:
        self._max_ratio, self.references = max_ratio, references

    def judge(
        self, norms: Mapping[int, list[UploadNorm]], samples: Mapping[int, int], sends: Mapping[str, Sent]
    ) -> dict[int, Excess]:
        """Return the worst norm of each client whose upload is too large.

        A norm that fewer than `FEWEST` clients have is compared with the largest median so far, if there is one. norms:
        of the round's uploads, by client. samples: training samples by client. sends: the method's declaration.
        """
        excesses: dict[int, Excess] = {}
        median_samples = statistics.median(samples[client] for client in norms) if norms else 1
        for key in dict.fromkeys(norm.key for client_norms in norms.values() for norm in client_norms):
            client_medians = [
                statistics.median(lengths)
                for client_norms in norms.values()
                if (lengths := [norm.norm for norm in client_norms if norm.key == key])
            ]
            if len(client_medians) >= FEWEST:
                self.references[key] = max(self.references.get(key, 0.0), statistics.median(client_medians))
            reference = self.references.get(key, 0.0)
            if not reference:  # all zero, or too few clients
                continue
            spread = sends[name].spread if (name := key.partition("/")[0]) in sends else 1.0
            for client, client_norms in norms.items():
                sample_ratio = max(1.0, samples[client] / max(1.0, median_samples))
                limit = self._max_ratio * spread * sample_ratio
                for norm in client_norms:
                    ratio = norm.norm / reference
                    worst = excesses[client].ratio / excesses[client].limit if client in excesses else 1.0
                    if norm.key == key and ratio / limit > worst:
                        excesses[client] = Excess(norm, ratio, limit)
        return excesses


_FETCH_PATHS = ("/pull-messages", "/pull-object")
_MAX_SMALL_OBJECTS = 64  # objects of a reply, without the chunks of its body
_MIN_CHUNK_BYTES = 1 << 16  # of every chunk of a body but the last


class ReplyTooLarge(Exception):
    """A reply that is longer than the bound."""


class ReplyBound:
    """Refuses a reply that is too long before its bytes are read, which Flower cannot do itself.

    Flower's `HttpGrid` fetches a reply in objects of a few megabytes, so the length of each object is checked before
    its body is read, and the length of the arrays before Flower joins them: a reply can name one small chunk a million
    times. Only this class uses the client of a `grid` and its objects, which are not public. In a simulation, a grid
    has no client, and replies are in this process' memory already.
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
        """Wrap a request of the client, as Flower's interceptors do."""
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
        """Count a response before its body is read."""
        if not response.request.url.path.endswith(_FETCH_PATHS):
            return
        with self._lock:
            self._bytes += int(response.headers.get("content-length", self._limit + 1))
            self._objects += 1
            if self._bytes > self._limit or self._objects > _MAX_SMALL_OBJECTS + self._limit // _MIN_CHUNK_BYTES:
                raise ReplyTooLarge(f"more than {self._limit:,} bytes, or in too many parts; it was not read")
