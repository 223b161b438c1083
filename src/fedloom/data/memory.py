"""Check that data fit into memory before they are read."""

from __future__ import annotations

import os

from fedloom.core.errors import DataError


def require_memory(needed: int, origin: str) -> None:
    """Raise `DataError` if `needed` bytes are more than this machine's memory, where that is known."""
    if not hasattr(os, "sysconf"):
        return
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > total:
        raise DataError(
            f"{origin}: needs {needed / 2**30:,.1f} GiB of memory, this machine has {total / 2**30:,.1f}; "
            "take fewer samples"
        )
