"""Who a round waits for, said once where a client takes very long."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from fedloom.engine.jobs import Job

PATIENCE = 60.0  # seconds for one client


class Patience:
    """Watches, from a thread of its own, how long the client that has begun takes; says so once a round.

    `note` is called in that thread, which starts with the first client and ends with `close`.
    """

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note, self._over = note, threading.Event()
        self._thread: threading.Thread | None = None
        self._job: Job | None = None
        self._began = 0.0

    def begins(self, job: Job) -> None:
        """A client has begun."""
        self._began, self._job = time.monotonic(), job
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, daemon=True)
            self._thread.start()

    def rests(self) -> None:
        """The last client of a round has ended."""
        self._job = None

    def close(self) -> None:
        """Watch no more."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def _watch(self) -> None:
        left, told = PATIENCE, 0
        while not self._over.wait(left):
            job, waited = self._job, time.monotonic() - self._began
            if job is None or job.ctx.round == told:
                left = PATIENCE
            elif waited < PATIENCE:
                left = PATIENCE - waited
            else:
                left, told = PATIENCE, job.ctx.round
                self._note(
                    f"round {told} has waited {waited:.0f} s for client {job.ctx.client}; with engine: processes, "
                    "engine.client_seconds sets the longest time for one"
                )
