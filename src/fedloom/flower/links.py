"""Requests over bad links: large bodies travel in parts, a node that works is asked again until its result is there,
and a node that stands still is asked once more and then given up."""

import io
import math
import secrets
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from fedloom.core.errors import printable
from fedloom.flower import wire
from fedloom.flower.status import StatusWriter
from fedloom.flower.transport import SMALL_REPLY_BYTES, Transport, unusable
from fedloom.flower.wire import Message, MessageError, Parts, ProgressReply, Request
from fedloom.runs.config.sections import FlowerConfig

_GRACE_SECONDS = 30.0  # that a message outlives its round: one that expired just before would look lost
_LONGEST_SECONDS = 43_200.0  # for which Flower keeps a message
_IN_FLIGHT = 2  # messages with parts, so that one travels while a node starts to read the other


class Stalled(str):
    """Why a request was given up, although its message may still arrive."""


class WorkLost(str):
    """Why the work on a request came to nothing at its node, where another attempt may end like this one."""


class _Sent(NamedTuple):
    """A message of a request. part: of the request's body. fetch: the part of the result that it asks for."""

    part: int | None
    fetch: int | None
    time: float  # monotonic seconds


@dataclass(slots=True, eq=False)
class _Request:
    node: int
    request: Request
    body: bytes
    parts: Parts
    stall: float  # seconds without movement after which it is sent once more
    patience: float  # seconds without movement after which it is given up
    ends: float  # monotonic seconds
    retried: bool = False  # since the node last moved
    moved: float = field(default_factory=time.monotonic)  # when the node last moved
    due: float = math.inf  # when it is asked again, or given up
    in_flight: dict[str, _Sent] = field(default_factory=dict)  # by the message's id
    superseded: set[str] = field(default_factory=set)  # messages that were sent again
    position: str = ""  # of the node's work
    last: ProgressReply | None = None
    lacking: float = math.inf  # parts that the node lacks
    result: io.BytesIO | None = None
    result_parts: Parts | None = None
    fetched: set[int] = field(default_factory=set)
    received: int = 0  # bytes of the result
    resumed: bool = False  # parts of the result are those of an earlier attempt
    closed: bool = False


class Links:
    """Sends requests over a transport, and returns their results."""

    def __init__(self, transport: Transport, config: FlowerConfig, status: StatusWriter) -> None:
        self.transport, self.config, self.status = transport, config, status
        self._requests: dict[str, _Request] = {}
        self._lost: dict[int, _Request] = {}  # by client, until the same is requested again
        self._body, self._parts = b"", Parts.of(b"", config.part_bytes)  # the last ones
        self._upload_limit = 0

    def allow(self, upload_limit: int) -> None:
        """Set the bytes that a result may have in addition to small facts."""
        self._upload_limit, self.transport.reply_limit = upload_limit, SMALL_REPLY_BYTES + upload_limit
        self._lost.clear()  # large

    def send(
        self, node: int, request: Request, body: bytes = b"", seconds: float = math.inf, patience: float = math.inf
    ) -> str:
        """Send a request, worth nothing after some `seconds`, and return its name. It is sent once more if it does not
        move for the config's stall_seconds, and given up after `patience` seconds (by default twice as many). A request
        that was lost goes on where it was: the node may have its result, and the server parts of it."""
        if body is not self._body:
            # A node of this process takes whole bodies.
            part_bytes = max(1, len(body)) if self.transport.in_process else self.config.part_bytes
            self._body, self._parts = body, Parts.of(body, part_bytes)
        name, stall = secrets.token_hex(8), patience
        if self.transport.resident:
            stall = min(self.config.stall_seconds, patience / 2)
            patience = 2 * stall if patience == math.inf else patience
        new = _Request(node, request, body, self._parts, stall, patience, time.monotonic() + seconds)
        facts = {"wait": self.config.heartbeat, "parts": self._parts}
        lost = self._lost.pop(request.client, None)
        if lost is not None and lost.request == request.model_copy(update={**facts, "job": lost.request.job}):
            name, new.resumed, new.received = lost.request.job, True, lost.received
            new.result, new.result_parts, new.fetched = lost.result, lost.result_parts, lost.fetched
        new.request = request.model_copy(update={**facts, "job": name})
        self._requests[name] = new
        new.due = new.moved + stall
        self._post(new, 0 if body else None)
        return name

    def receive(self, names: Collection[str]) -> Iterator[tuple[str, Message | str]]:
        """Yield the results that are there, one at a time; text instead of a message says why there will be none."""
        name_of = {message_id: name for name in names for message_id in self._requests[name].in_flight}
        for message_id, reply in self.transport.receive(name_of):
            name = name_of.get(message_id, "")
            request = self._requests.get(name)
            if request is None or message_id not in request.in_flight:
                continue  # a reply that comes twice counts once
            del request.in_flight[message_id]
            if message_id in request.superseded and isinstance(reply, str) and request.in_flight:
                continue  # the message that replaces it may arrive
            request.superseded.discard(message_id)
            result = self._advance(request, reply)
            del reply  # large: release it before the next one
            if result is not None:
                self.forget(name, isinstance(result, str))
                yield name, result
            del result
        for name in names:
            request, now = self._requests.get(name), time.monotonic()
            if request is None:
                continue
            if now >= request.due and (text := self._stalled(request)) is not None:
                self.forget(name, is_lost=True)
                yield name, text
            elif not request.closed:  # one part may be lost while others move
                self._send_again(request, now - request.stall)

    def forget(self, name: str, is_lost: bool = False) -> None:
        """Drop a request; one that `is_lost` goes on where it was if it is sent again."""
        request = self._requests.pop(name)
        if (client := request.request.client) >= 0:
            self.status.clear_progress(client)
            if is_lost and not request.closed:
                self._lost[client] = request

    def close(self, name: str) -> None:
        """Ask no more about a request; its result counts only if it is on its way."""
        self._requests[name].closed, self._requests[name].body = True, b""

    def _post(self, request: _Request, part: int | None, fetch: int | None = None) -> None:
        update = {"part": part, "fetch": fetch or 0}
        body = b"" if part is None else request.body[request.parts.span(part)]
        # A message that nobody has answered by then was sent again, or its request was given up.
        seconds = min(max(request.ends - time.monotonic(), 0.0), request.patience) + _GRACE_SECONDS
        message = request.request.model_copy(update=update).to_message(body)
        message_id = self.transport.send(request.node, message, min(seconds, _LONGEST_SECONDS))
        request.in_flight[message_id] = _Sent(part, fetch, time.monotonic())

    def _post_parts(self, request: _Request, missing: Collection[int], *, fetch: bool) -> None:
        """Send, or fetch, parts that are not on their way, a few at a time."""
        messages = [sent for name, sent in request.in_flight.items() if name not in request.superseded]
        under_way = [sent.fetch if fetch else sent.part for sent in messages]
        waiting = [part for part in missing if part not in under_way]
        most = _IN_FLIGHT if self.transport.resident else 1
        for part in waiting[: max(0, most - len(under_way))]:
            self._post(request, None if fetch else part, part if fetch else None)

    def _moved(self, request: _Request, phase: str, fraction: float | None, detail: str = "") -> None:
        request.moved, request.retried = time.monotonic(), False
        request.due = request.moved + request.stall
        phase, detail = printable(phase), printable(detail)
        percentage = "" if fraction is None else f" {100 * fraction:.0f} %"
        request.position = f"{phase}{percentage}{detail and ', '}{detail}"
        if request.request.client >= 0:
            size, parts = request.parts.size, len(request.parts)
            sent = size - int(size * min(request.lacking, parts) / max(parts, 1))
            self.status.set_progress(request.request.client, phase, fraction, detail, request.received, sent)

    def _advance(self, request: _Request, reply: Message | str) -> Message | str | None:
        """Take a reply into account; return the result of the request, or None if it goes on."""
        if isinstance(reply, str):
            return reply
        try:
            head = wire.read(reply, wire.AnyReply, len(reply.facts))
            if head.kind == "progress":
                return self._progressed(request, wire.read(reply, ProgressReply))
            if head.kind == "failed" and (error := wire.read(reply, wire.ErrorReply)).lost:
                return WorkLost(printable(error.error))
            if head.parts is None or head.part is None or request.closed:
                request.received, request.lacking = len(reply.body), 0
                self._moved(request, "uploading", 1.0)
                return reply
            return self._collected(request, reply, head.parts, head.part)
        except MessageError as error:
            return unusable(str(error)) if request.result else reply  # whose reader says what is wrong with it

    def _progressed(self, request: _Request, progress: ProgressReply) -> str | None:
        last, needs = request.last, [part for part in progress.needs if part < len(request.parts)]
        if request.closed:
            return Stalled()
        if last is not None and progress.seconds < last.seconds:
            how = "as when its process is killed or the memory is full"
            return WorkLost(f"its work ({request.position}) was lost, {how}")
        request.last = progress
        has_moved = last is None or progress.model_copy(update={"seconds": last.seconds}) != last
        if len(needs) < request.lacking if needs else has_moved:
            request.lacking = len(needs)
            self._moved(request, progress.phase, progress.fraction, progress.detail)
        if needs:
            self._post_parts(request, needs, fetch=False)
        elif not request.in_flight.keys() - request.superseded:
            self._post(request, None)
        return None

    def _collected(self, request: _Request, reply: Message, parts: Parts, part: int) -> Message | None:
        if parts.size > self._upload_limit or len(parts) > wire.MAX_PARTS:
            return unusable(f"more than {self._upload_limit:,} bytes, or in too many parts; it was not read")
        if request.result is None or (request.resumed and parts != request.result_parts):
            request.result, request.result_parts, request.fetched = io.BytesIO(), parts, set()
            request.received, request.resumed = 0, False
        if parts != request.result_parts or part >= len(parts) or len(reply.body) != parts.size_of(part):
            return unusable("a part of another body than the one that was announced")
        if part not in request.fetched:
            request.fetched.add(part)
            request.result.seek(parts.span(part).start)
            request.result.write(reply.body)
            request.received += len(reply.body)
            self._moved(request, "uploading", len(request.fetched) / len(parts))
        missing = [index for index in range(len(parts)) if index not in request.fetched]
        if missing:
            self._post_parts(request, missing, fetch=True)
            return None
        return Message(reply.facts, parts.checked(request.result.getvalue()))

    def _send_again(self, request: _Request, before: float) -> None:
        """Send the messages again that were sent `before` a time and have no answer."""
        for message_id, sent in [*request.in_flight.items()]:
            if sent.time < before and message_id not in request.superseded:
                request.superseded.add(message_id)
                self._post(request, sent.part, sent.fetch)

    def _stalled(self, request: _Request) -> str | None:
        """Ask a node that stands still once more; return why it is given up after that."""
        if request.stall < request.patience and not (request.retried or request.closed):
            request.retried, request.due = True, request.moved + request.patience
            self._send_again(request, math.inf)
            return None
        seconds = time.monotonic() - request.moved
        if not request.position:
            return Stalled(f"it did not answer within {seconds:.1f} s")
        return Stalled(f"it has not moved for {seconds:.0f} s ({request.position})")
