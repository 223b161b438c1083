"""A note when a client takes very long, so that a user sees what a round waits for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from fedloom.engine.jobs import Job

PATIENCE = 60.0  # seconds for one client


class SlowClientWatch:
    """Measures in a thread of its own how long the current client takes, and reports it at most once in a round.

    The thread starts with the first client and ends with `close`.

    Args:
        note: called in that thread with one line of text.
    """

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note, self._closed = note, threading.Event()
        self._thread: threading.Thread | None = None
        self._job: Job | None = None
        self._started = 0.0

    def client_started(self, job: Job) -> None:
        """Start to measure the client of `job`."""
        self._started, self._job = time.monotonic(), job
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, daemon=True)
            self._thread.start()

    def round_ended(self) -> None:
        """Stop to measure until the next client starts."""
        self._job = None

    def close(self) -> None:
        """End the thread."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join()

    def _watch(self) -> None:
        remaining_seconds, noted_round = PATIENCE, 0
        while not self._closed.wait(remaining_seconds):
            job, waited = self._job, time.monotonic() - self._started
            if job is None or job.ctx.round == noted_round:
                remaining_seconds = PATIENCE
            elif waited < PATIENCE:
                remaining_seconds = PATIENCE - waited
            else:
                remaining_seconds, noted_round = PATIENCE, job.ctx.round
                self._note(
                    f"round {noted_round} has waited {waited:.0f} s for client {job.ctx.client}; with engine: "
                    "processes, engine.client_seconds sets the longest time for one"
                )
