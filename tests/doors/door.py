"""A door of data: what a small file holds, and what fedloom must read in it, say about it, or refuse."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Door:
    """One case of the table.

    write: makes the files below a folder and returns the source's keys, `source` among them (paths absolute).
    reads: facts of what is read, by name (`tests/data/test_doors.py`); empty if the data are refused. notes: for each
    note of the source, in order, words that it holds. refused: words of the one line that refuses the data; None if
    they are read.
    """

    name: str
    write: Callable[[Path], dict[str, Any]]
    reads: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[tuple[str, ...], ...] = ()
    refused: tuple[str, ...] | None = None
