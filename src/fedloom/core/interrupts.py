"""Signals that end a command: Ctrl-C, the request to terminate, and the loss of the terminal.

Ctrl-C reaches every process that a terminal shows: only the first one listens, and ends the others.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator
from typing import Any

_SIGNALS = [signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]
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


class Interrupts:
    """Which signal came first, if any has come."""

    signal: int | None = None


@contextlib.contextmanager
def one_at_a_time() -> Iterator[Interrupts]:
    """Within it, Ctrl-C, SIGTERM and SIGHUP raise a `KeyboardInterrupt`. Of several that come at once only the first
    does, so that what follows it is not interrupted: processes end, files are closed. For the main thread.

    A signal that is ignored on entry, as `nohup` does with SIGHUP, stays ignored.
    """
    last, interrupts = -_AT_ONCE, Interrupts()

    def handle(number: int, frame: Any) -> None:
        nonlocal last
        first, last = time.monotonic() - last > _AT_ONCE, time.monotonic()
        if first:
            interrupts.signal = number
            raise KeyboardInterrupt

    before = {}
    for number in _SIGNALS:
        if number == signal.SIGINT or signal.getsignal(number) != signal.SIG_IGN:
            before[number] = signal.signal(number, handle)
    try:
        yield interrupts
    finally:
        ending = time.monotonic() - last <= _AT_ONCE
        for number, handler in before.items():
            signal.signal(number, signal.SIG_IGN if ending else handler)
