"""Signals that end a command: Ctrl-C, the request to terminate, and the loss of the terminal.

A terminal sends Ctrl-C to every process that it shows: only the first process listens, and ends the others.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator
from multiprocessing import resource_tracker
from typing import Any

_SIGNALS = [signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]
_BURST_SECONDS = 3.0  # signals that follow each other faster count as one


@contextlib.contextmanager
def block_interrupts(*, spawn: bool = False) -> Iterator[None]:
    """Start processes in this block that never get Ctrl-C; this process gets it after the block.

    Args:
        spawn: whether they are spawned: multiprocessing starts a helper with the first one, and unblocks signals then.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    if spawn:
        resource_tracker.ensure_running()
    previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)


class Interrupts:
    """The number of the signal that came first, or None."""

    signal: int | None = None


@contextlib.contextmanager
def raise_first_interrupt() -> Iterator[Interrupts]:
    """Raise a `KeyboardInterrupt` in this block for Ctrl-C, SIGTERM and SIGHUP; for the main thread.

    Of several signals within three seconds only the first raises, so that the clean-up is not interrupted.
    A signal that is ignored on entry, as `nohup` does with SIGHUP, stays ignored.
    """
    last_time, interrupts = -_BURST_SECONDS, Interrupts()

    def handle(number: int, frame: Any) -> None:
        nonlocal last_time
        is_first, last_time = time.monotonic() - last_time > _BURST_SECONDS, time.monotonic()
        if is_first:
            interrupts.signal = number
            raise KeyboardInterrupt

    previous_handlers = {}
    for number in _SIGNALS:
        if number == signal.SIGINT or signal.getsignal(number) != signal.SIG_IGN:
            previous_handlers[number] = signal.signal(number, handle)
    try:
        yield interrupts
    finally:
        is_ending = time.monotonic() - last_time <= _BURST_SECONDS
        for number, handler in previous_handlers.items():
            signal.signal(number, signal.SIG_IGN if is_ending else handler)
