"""The C library's handling of freed memory."""

from __future__ import annotations

import ctypes
import functools
import platform

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt(3)
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
