"""What the C library does with memory that is freed."""

from __future__ import annotations

import ctypes
import functools
import platform

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt(3)
_LARGEST, _KEPT = 32 << 20, 1 << 30


@functools.cache
def keep_freed() -> None:
    """Keep freed memory in this process: a training step allocates what the step before has freed.

    glibc gives large blocks back to the kernel at once and gets them again page by page, which costs small nets a
    quarter of their time. Does nothing with another C library.
    """
    if platform.libc_ver()[0] == "glibc":
        library = ctypes.CDLL(None)
        library.mallopt(_MMAP_THRESHOLD, _LARGEST)
        library.mallopt(_TRIM_THRESHOLD, _KEPT)
