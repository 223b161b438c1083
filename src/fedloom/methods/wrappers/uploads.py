"""Uploads of a round, changed by a function when they are read, or those of some clients alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

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


class Selected(Mapping[int, Record]):
    """The uploads of some clients, each read when it is asked for.

    Args:
        uploads: the uploads of all.
        clients: ids of those that stay, in their order.
    """

    def __init__(self, uploads: Uploads, clients: Sequence[int]) -> None:
        self._uploads, self._clients = uploads, dict.fromkeys(clients)

    def __getitem__(self, client: int) -> Record:
        if client not in self._clients:
            raise KeyError(client)
        return self._uploads[client]

    def __iter__(self) -> Iterator[int]:
        return iter(self._clients)

    def __len__(self) -> int:
        return len(self._clients)
