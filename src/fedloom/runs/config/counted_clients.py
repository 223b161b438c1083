"""The number of clients that the data decide, read once for all configs of a study."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any

from fedloom.data.partitions.partition import Partition
from fedloom.data.sources.source import Source

_counted: dict[Hashable, int | None] = {}


def count_clients(source: Source, partition: Partition) -> int | None:
    """Return the number of clients that the data decide; None if the config does.

    A source is read once, and anew if one of the files that it names has changed. Raises what reading it raises.
    """
    key = tuple((type(part), part.model_dump_json(), *_stamps(part)) for part in (source, partition))
    if key not in _counted:
        _counted[key] = partition.count_clients(lambda: source.load().train)
    return _counted[key]


def _stamps(part: Any) -> list[tuple[int, int] | None]:
    """Time of change and size of each file that a source or a partition names; None for one that is not there."""
    paths = [value for _, value in part if isinstance(value, Path)]
    stats = [path.stat() if path.exists() else None for path in paths]
    return [None if stat is None else (stat.st_mtime_ns, stat.st_size) for stat in stats]
