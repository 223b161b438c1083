"""The requests to one node: bodies that arrive in parts, the job in progress, and its result until it is fetched."""

import contextlib
import json
import shutil
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedloom.core.errors import DataError
from fedloom.core.files import open_to_read, read_file, write_atomic
from fedloom.flower import wire
from fedloom.flower.node import Node
from fedloom.flower.wire import Message, MessageError, Parts, ProgressReply, Request


@dataclass(slots=True, eq=False)
class _Job:
    name: str
    message: Message | None  # until the work begins
    part_bytes: int
    began: float = field(default_factory=time.monotonic)
    done: threading.Event = field(default_factory=threading.Event)
    reply: Message = field(default_factory=lambda: Message(""))
    parts: Parts | None = None  # of a result that is larger than one part, and on disk


class Inbox:
    """Answers requests to a `node` from its newest job; `resident`: also with its progress, as `work` has a thread."""

    def __init__(self, node: Node, folder: Path, resident: bool = False) -> None:
        self._node, self._resident, self.idle_seconds = node, resident, node.config.flower.idle_seconds
        self._folder = folder / "parts" / f"client-{node.client:06d}"
        self._changed, self._job = threading.Condition(), _Job("", None, 0)
        self._job.done.set()
        self._running: _Job | None = None
        self._asked = time.monotonic()

    def is_idle(self, seconds: float) -> bool:
        """Return whether there is no job, and was no request for so many `seconds`."""
        return self._job.done.is_set() and time.monotonic() - self._asked > seconds

    def answer(self, message: Message) -> Message:
        """Answer a request with its result, or with the progress of its job after the time that the request allows."""
        self._asked, run = time.monotonic(), ""
        try:
            request = wire.read(message, Request, wire.MAX_REQUEST)
            run = request.run
            return self._answer(request, message)
        except OSError as error:
            why = f"client {self._node.client}: parts of messages cannot be kept in {self._folder} ({error.strerror})"
            return self._node.failure(run, DataError(f"{why}; free space, or mend the disk")).to_message()
        except Exception as error:  # also a bug, which the server must hear of
            return self._node.failure(run, error).to_message()

    def work(self) -> None:
        """Do one job after another, for ever."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._job.message is not None)
                job = self._running = self._job
            self._run(job)

    def close(self) -> None:
        """Delete all parts."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _answer(self, request: Request, message: Message) -> Message:
        if request.parts is None:
            return self._node.answer(message)
        with self._changed:
            job = self._job
            if job.name != request.job:
                needs = self._receive(request.parts, request.part, message.body)
                if needs:
                    return _progress(request.run, "downloading", 1 - len(needs) / len(request.parts), needs=needs)
                whole = Message(message.facts, self._body(request.parts, message.body))
                job = self._job = _Job(request.job, whole, request.parts.part_bytes)
                self._changed.notify()
        if not self._resident:
            self._run(job)
        elif not job.done.wait(request.wait):
            if self._running not in (job, None):
                return _progress(request.run, "waiting", None, "for the work of an earlier request")
            return _progress(request.run, *self._node.progress(), seconds=time.monotonic() - job.began)
        if job.parts is None:
            return job.reply
        with open_to_read(self._folder / "result") as stream:
            span = job.parts.span(request.fetch)
            stream.seek(span.start)
            facts = json.loads(job.reply.facts) | {"parts": job.parts.model_dump(), "part": request.fetch}
            return Message(json.dumps(facts), stream.read(span.stop - span.start))

    def _run(self, job: _Job) -> None:
        if job.message is not None:
            message, job.message = job.message, None
            job.reply = self._node.answer(message)
            if self._resident and len(job.reply.body) > job.part_bytes:
                with contextlib.suppress(OSError):  # a full disk, but the result is there
                    write_atomic(self._folder / "result", job.reply.body, private=True)
                    job.parts = Parts.of(job.reply.body, job.part_bytes)
                    job.reply = Message(job.reply.facts)
        self._running = None
        job.done.set()

    # -- parts of the request's body ----------------------------------------------------------------------------------
    def _receive(self, parts: Parts, part: int | None, data: bytes) -> tuple[int, ...]:
        """Keep a part of a body, unless it is the only one, and return the parts that are missing."""
        if len(parts) <= 1:
            return (0,) if parts.size and part is None else ()
        if self._folder.is_symlink() or self._folder.parent.is_symlink():
            raise MessageError(f"{self._folder}: it is a link, and parts of messages are not written through links")
        files = self._files(parts)
        if part is not None:
            if part >= len(parts) or len(data) != parts.size_of(part):
                raise MessageError(f"part {part} with {len(data):,} bytes does not belong to its body")
            for other in self._folder.glob("*/"):  # what an earlier body left
                if other != files[0].parent:
                    shutil.rmtree(other, ignore_errors=True)
            write_atomic(files[part], data, private=True)
        return tuple(i for i, f in enumerate(files) if not f.is_file() or f.stat().st_size != parts.size_of(i))

    def _body(self, parts: Parts, data: bytes) -> bytes:
        if len(parts) <= 1:
            return parts.checked(data)
        try:
            # The parts stay, as the test of a round often has the same body as the next round.
            return parts.checked(b"".join(map(read_file, self._files(parts))))
        except MessageError:
            self.close()
            raise

    def _files(self, parts: Parts) -> list[Path]:
        return [self._folder / parts.digest / f"{index:05d}" for index in range(len(parts))]


def _progress(run: str, phase: str, fraction: float | None, detail: str = "", **facts: Any) -> Message:
    facts |= {"run": run, "detail": detail, "work": time.process_time()}
    return ProgressReply(phase=phase, fraction=fraction, **facts).to_message()
