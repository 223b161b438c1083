"""Client states between rounds: in memory up to a budget, the others on disk with the same bits."""

import shutil
import tempfile
from collections import OrderedDict
from collections.abc import Iterator, MutableMapping
from pathlib import Path

from fedloom.core.errors import ConfigError
from fedloom.core.records import Record, from_bytes, to_bytes
from fedloom.core.tables import ClassTable
from fedloom.core.trees import nbytes


class ClientStates(MutableMapping[int, Record]):
    """Client states by client id, iterated in the order of ids. Least recently used states go to disk first.

    Args:
        budget: bytes of tensors that may stay in memory; None keeps all. `ConfigError` for a larger single state.
        folder: folder of one file for each state on disk, emptied at the start and removed by `close`; None takes a
            temporary folder.
    """

    def __init__(self, budget: int | None = None, folder: Path | None = None) -> None:
        self.budget, self._folder = budget, folder
        self._in_memory: OrderedDict[int, Record] = OrderedDict()  # least recently used first
        self._sizes: dict[int, int] = {}  # bytes of the states in memory
        self._on_disk: set[int] = set()  # clients whose file is up to date; they may be in memory too
        self._bytes_in_memory = 0
        self.changed: set[int] = set()  # since the last checkpoint; whoever stores checkpoints empties it
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)

    def __getitem__(self, client: int) -> Record:
        if client in self._in_memory:
            self._in_memory.move_to_end(client)
            return self._in_memory[client]
        if client not in self._on_disk:
            raise KeyError(client)
        record = from_bytes(self._path(client).read_bytes())
        self._put_in_memory(client, record)
        return record

    def __setitem__(self, client: int, record: Record) -> None:
        # The file of the old state is outdated.
        self._on_disk.discard(client)
        self.changed.add(client)
        self._put_in_memory(client, record)

    def __delitem__(self, client: int) -> None:
        if client not in self:
            raise KeyError(client)
        self._on_disk.discard(client)
        self.changed.discard(client)
        if client in self._in_memory:
            del self._in_memory[client]
            self._bytes_in_memory -= self._sizes.pop(client)

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._in_memory.keys() | self._on_disk))

    def __len__(self) -> int:
        return len(self._in_memory.keys() | self._on_disk)

    def __contains__(self, client: object) -> bool:
        return client in self._in_memory or client in self._on_disk

    def close(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._on_disk.clear()

    def _put_in_memory(self, client: int, record: Record) -> None:
        size = 0
        for value in record.values():
            if isinstance(value, ClassTable):
                size += value.values.nbytes + value.held.nbytes
            else:
                size += nbytes(value) if isinstance(value, dict) else getattr(value, "nbytes", 0)
        if self.budget is not None and size > self.budget:
            problem = f"the state of client {client} alone takes {size / 2**20:.1f} MiB; raise it above one state"
            raise ConfigError(f"engine.state_budget_mb = {self.budget / 2**20:g}: {problem}")
        self._bytes_in_memory += size - self._sizes.get(client, 0)
        self._sizes[client] = size
        self._in_memory[client] = record
        # The most recently used state is last, and the first one leaves memory.
        self._in_memory.move_to_end(client)
        while self.budget is not None and self._bytes_in_memory > self.budget:
            self._move_to_disk(*self._in_memory.popitem(last=False))

    def _move_to_disk(self, client: int, record: Record) -> None:
        self._bytes_in_memory -= self._sizes.pop(client)
        if client not in self._on_disk:
            # not written atomically: after a crash, a run resumes from a checkpoint and not from these files
            path = self._path(client)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(to_bytes(record))
            self._on_disk.add(client)

    def _path(self, client: int) -> Path:
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="fedloom-states-"))
        # At most a thousand files in a folder, because large folders are slow on many file systems.
        return self._folder / f"{client // 1000:05d}" / f"{client:08d}.safetensors"
