"""What clients keep between rounds: in memory up to a budget, the rest on disk, bit for bit the same."""

from __future__ import annotations

import shutil
import tempfile
from collections import OrderedDict
from collections.abc import Iterator, MutableMapping
from pathlib import Path

from torch import Tensor

from fedloom.core.errors import ConfigError
from fedloom.core.records import Record, from_bytes, to_bytes
from fedloom.core.tables import ClassTable
from fedloom.core.trees import nbytes


class States(MutableMapping[int, Record]):
    """Client states by client id. Ids iterate in order.

    budget: bytes of tensors that may stay in memory, those used last; None keeps all. folder: where the others go, one
    file each; None takes a temporary folder. The folder is this mapping's own: it is emptied at the start, and `close`
    removes it. Raises `ConfigError` for a state that alone exceeds the budget.
    """

    def __init__(self, budget: int | None = None, folder: Path | None = None) -> None:
        self.budget, self._folder = budget, folder
        self._in_memory: OrderedDict[int, Record] = OrderedDict()  # least recently used first
        self._sizes: dict[int, int] = {}  # of those in memory
        self._on_disk: set[int] = set()  # whose file is up to date, in memory as well or not
        self._bytes = 0
        self.changed: set[int] = set()  # since whoever stores them elsewhere emptied this
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)

    def __getitem__(self, client: int) -> Record:
        if client in self._in_memory:
            self._in_memory.move_to_end(client)
            return self._in_memory[client]
        if client not in self._on_disk:
            raise KeyError(client)
        record = from_bytes(self._path(client).read_bytes())
        self._hold(client, record)
        return record

    def __setitem__(self, client: int, record: Record) -> None:
        self._on_disk.discard(client)
        self.changed.add(client)
        self._hold(client, record)

    def __delitem__(self, client: int) -> None:
        if client not in self:
            raise KeyError(client)
        self._on_disk.discard(client)
        self.changed.discard(client)
        if client in self._in_memory:
            del self._in_memory[client]
            self._bytes -= self._sizes.pop(client)

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._in_memory.keys() | self._on_disk))

    def __len__(self) -> int:
        return len(self._in_memory.keys() | self._on_disk)

    def __contains__(self, client: object) -> bool:
        return client in self._in_memory or client in self._on_disk

    def close(self) -> None:
        """Remove the files. What was only on disk is gone."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._on_disk.clear()

    def _hold(self, client: int, record: Record) -> None:
        size = _size(record)
        if self.budget is not None and size > self.budget:
            raise ConfigError(
                f"engine.state_budget_mb = {self.budget / 2**20:g}: the state of client {client} alone takes "
                f"{size / 2**20:.1f} MiB; raise it above one state"
            )
        self._bytes += size - self._sizes.get(client, 0)
        self._sizes[client] = size
        self._in_memory[client] = record
        self._in_memory.move_to_end(client)
        while self.budget is not None and self._bytes > self.budget:
            self._evict(*self._in_memory.popitem(last=False))

    def _evict(self, client: int, record: Record) -> None:
        self._bytes -= self._sizes.pop(client)
        if client not in self._on_disk:  # a checkpoint is what survives a crash; these files need not
            path = self._path(client)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(to_bytes(record))
            self._on_disk.add(client)

    def _path(self, client: int) -> Path:
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="fedloom-states-"))
        return self._folder / f"{client // 1000:05d}" / f"{client:08d}.safetensors"


def _size(record: Record) -> int:
    """Bytes of a record's tensors."""
    total = 0
    for value in record.values():
        if isinstance(value, ClassTable):
            total += nbytes({"values": value.values, "held": value.held})
        elif isinstance(value, dict):
            total += nbytes(value)
        elif isinstance(value, Tensor):
            total += value.numel() * value.element_size()
    return total
