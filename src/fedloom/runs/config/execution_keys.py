"""The one list of config keys that cannot change a number. Nothing here needs torch."""

from __future__ import annotations

EXECUTION = frozenset({"engine", "checkpoint", "flower"})
"""Sections of a config that say how a run is executed or kept: no key of theirs changes a number."""


def changes_numbers(key: str) -> bool:
    """Whether a key of a config can change a result.

    >>> changes_numbers("optimizer.lr"), changes_numbers("engine.workers")
    (True, False)
    """
    return key.partition(".")[0] not in EXECUTION
