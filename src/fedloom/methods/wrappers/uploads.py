"""Uploads of a round, changed by a function when they are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from fedloom.core.records import Record
from fedloom.methods.contract.method import Uploads


class Changed(Mapping[int, Record]):
    """Uploads, each changed by `change(client, upload)` when it is asked for, and no sooner.

    The last one is kept: a mean asks for an upload and its weight in turn.
    """

    def __init__(self, uploads: Uploads, change: Callable[[int, Record], Record]) -> None:
        self._uploads, self._change = uploads, change
        self._last: tuple[int, Record] | None = None

    def __getitem__(self, client: int) -> Record:
        if self._last is None or self._last[0] != client:
            self._last = client, self._change(client, self._uploads[client])
        return self._last[1]

    def __iter__(self) -> Iterator[int]:
        return iter(self._uploads)

    def __len__(self) -> int:
        return len(self._uploads)
