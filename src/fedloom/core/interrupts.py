"""Ctrl-C reaches every process that a terminal shows: only the first one listens, and ends the others."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator
from typing import Any

_AT_ONCE = 3.0  # seconds in which further ones are taken for the same


@contextlib.contextmanager
def no_interrupts() -> Iterator[None]:
    """Processes that are started within it never get Ctrl-C; this one gets it afterwards."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def one_at_a_time() -> Iterator[None]:
    """Within it, Ctrl-C that is pressed several times raises one `KeyboardInterrupt`, and what follows it is not
    interrupted: processes end, files are closed. For the main thread."""
    last = -_AT_ONCE

    def handle(number: int, frame: Any) -> None:
        nonlocal last
        first, last = time.monotonic() - last > _AT_ONCE, time.monotonic()
        if first:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        ending = time.monotonic() - last <= _AT_ONCE
        signal.signal(signal.SIGINT, signal.SIG_IGN if ending else before)
