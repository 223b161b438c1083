"""The handling of freed memory: by the C library, and by Python's garbage collector."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import platform
import threading
from collections.abc import Iterator

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4  # of mallopt(3)
_DEFAULT_MMAP_MAX = 65_536
_MMAP_BYTES, _TRIM_BYTES = 32 << 20, 1 << 30


@functools.cache
def keep_freed_memory() -> None:
    """Make glibc keep freed memory in this process, because each training step allocates what the last one freed.

    By default it returns large blocks to the kernel and gets them back page by page, which costs small nets a quarter
    of their time. Does nothing with another C library.
    """
    if platform.libc_ver()[0] == "glibc":
        library = ctypes.CDLL(None)
        library.mallopt(_MMAP_THRESHOLD, _MMAP_BYTES)
        library.mallopt(_TRIM_THRESHOLD, _TRIM_BYTES)


@contextlib.contextmanager
def large_blocks_kept() -> Iterator[None]:
    """Keep freed blocks above 32 MiB too, which glibc else returns to the kernel whatever its threshold is.

    Steps of a net with 50 million weights take a third less time. A run leaves it out, because such blocks stay with
    the process. Does nothing with another C library.
    """
    if platform.libc_ver()[0] != "glibc":
        yield
        return
    keep_freed_memory()
    library = ctypes.CDLL(None)
    library.mallopt(_MMAP_MAX, 0)
    try:
        yield
    finally:
        library.mallopt(_MMAP_MAX, _DEFAULT_MMAP_MAX)


class HeldHeap:
    """Leaves what exists when a run starts out of garbage collections until the run ends.

    A full collection visits half a million objects of imported packages. That takes 0.1 seconds, as much as several
    rounds of small nets, and finds nothing. Objects of the run itself are collected as always. If somebody else has
    called `gc.freeze`, nothing is done.
    """

    _lock, _holders, _froze = threading.Lock(), 0, False

    def __init__(self) -> None:
        self._holds = False

    def hold(self) -> None:
        """Leave present objects out, if that has not been done."""
        with HeldHeap._lock:
            if self._holds:
                return
            self._holds = True
            HeldHeap._holders += 1
            if HeldHeap._holders == 1 and not gc.get_freeze_count():
                gc.freeze()
                HeldHeap._froze = True

    def release(self) -> None:
        """Let them be collected again, once no other run holds them."""
        with HeldHeap._lock:
            if not self._holds:
                return
            self._holds = False
            HeldHeap._holders -= 1
            if not HeldHeap._holders and HeldHeap._froze:
                gc.unfreeze()
                HeldHeap._froze = False
