"""The content of a stored round: meta.json, the states of the server, and those of the clients in few files.
A pack is the bytes of some states (`core/records.py`), one after another. The index, a numpy file, has a row for each
client: where its state lies, and the sha256 of its bytes."""

import hashlib
import io
import os
import shutil
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedloom._version import __version__
from fedloom.core.errors import CheckpointError
from fedloom.core.files import json_digest, json_text, open_to_read, parse_json, read_file, write_atomic
from fedloom.core.records import Record, RecordError, from_bytes, to_bytes
from fedloom.runs.storage import folders

INDEX = "clients.npy"
# Little-endian on every machine, because digests are of the bytes.
_ROW = np.dtype([("client", "<i8"), ("pack", "<i8"), ("offset", "<i8"), ("size", "<i8"), ("sha256", "u1", (32,))])
Index: TypeAlias = NDArray[Any]


DAMAGE = (OSError, RecordError, LookupError, TypeError, ValueError)  # raised when a damaged round is read


def write_meta(folder: Path, content: Mapping[str, Any]) -> None:
    """Write meta.json of a stored round, with a checksum of its content."""
    write_atomic(folder / "meta.json", json_text({**content, "meta": json_digest(content)}, indent=1, sort_keys=True))


def read_meta(folder: Path, format_: int, fingerprint: str) -> dict[str, Any]:
    """Read meta.json of a round's `folder`; `CheckpointError` for another `format_`, version or `fingerprint`."""
    meta = parse_json(read_file(folder / "meta.json"))
    if not isinstance(meta, dict):
        raise ValueError("meta.json holds no object")
    if meta["format"] != format_ or meta["version"] != __version__:
        raise CheckpointError(
            f"{folder}: written by fedloom {meta['version']} (format {meta['format']}), this is {__version__} (format "
            f"{format_}); continue with that version, or delete the run folder and run again"
        )
    if meta["fingerprint"] != fingerprint:
        raise CheckpointError(
            f"{folder}: belongs to another config ({meta['fingerprint']}, this one is {fingerprint}); choose another "
            "folder with out=..., or delete the run folder and run again"
        )
    # The left side is evaluated first, so the digest is of the content without its checksum.
    if meta.pop("meta") != json_digest(meta):
        raise ValueError("meta.json does not match its checksum")
    if type(meta["round"]) is not int or meta["round"] < 0:
        raise ValueError("meta.json: need a whole number for the round")
    if folders.round_folder(folder.parent, meta["round"]) != folder:
        raise ValueError(f"meta.json is of round {meta['round']}")
    return meta


def write_record(path: Path, record: Record) -> str:
    """Write one state, such as the server's, and return its sha256."""
    content = to_bytes(record)
    write_atomic(path, content)
    return hashlib.sha256(content).hexdigest()


def read_record(path: Path, sha256: str) -> Record:
    """Read what `write_record` wrote. Raises `OSError`, `RecordError` and `ValueError` if it is damaged."""
    content = read_file(path)
    if hashlib.sha256(content).hexdigest() != sha256:
        raise ValueError(f"{path.name} does not match its checksum")
    return from_bytes(content)


def read_states(folder: Path, sha256: str) -> "ArchivedStates":
    """Return the client states in `folder`, all verified; `sha256` is that of the index. Raises as `read_record`."""
    if folders.file_digest(folder / INDEX) != sha256:
        raise ValueError(f"{INDEX} in {folder.name} does not match its checksum")
    states = ArchivedStates(folder, read_index(folder))
    states.verify()
    return states


def read_index(folder: Path) -> Index:
    """The index of a checkpoint. Raises `ValueError` or `OSError` if it is damaged or absent."""
    content = read_file(folder / INDEX)
    stream = io.BytesIO(content)
    try:
        # The header is checked before the array is read, because a damaged one may claim any shape.
        np.lib.format.read_magic(stream)
        shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
    except Exception as error:  # a header is parsed as Python, and whatever that raises comes through
        raise ValueError(f"{INDEX} is no index ({type(error).__name__})") from None
    if dtype != _ROW or len(shape) != 1 or shape[0] * dtype.itemsize != len(content) - stream.tell():
        raise ValueError(f"{INDEX} is no index")
    index: Index = np.frombuffer(content, _ROW, offset=stream.tell())
    if not np.all(np.diff(index["client"]) > 0) or np.any(index["client"] < 0):
        raise ValueError(f"{INDEX}: need each client once, in ascending order")
    if np.any(index["offset"] < 0) or np.any(index["size"] < 0):
        raise ValueError(f"{INDEX}: places in packs below 0")
    return index


def archive_name(number: int) -> str:
    """The file of the pack that was added with round `number`."""
    return f"clients-{number:06d}.pack"


def write(
    folder: Path, round_: int, states: Mapping[int, Record], changed: Collection[int], previous: Path | None
) -> Index:
    """Write client states, in the order of ids, to a new checkpoint's folder, and return its index. Packs of `previous`
    with states that have not `changed` are linked; one with no more states than are to be written, or mostly outdated
    ones, is rewritten: so packs stay few, and each state is copied a few times only."""
    clients = np.fromiter(states, np.int64, len(states))
    shared = _unchanged(previous, clients, changed)
    linked: list[int] = []
    to_write = len(clients) - len(shared)
    packs, counts = np.unique(shared["pack"], return_counts=True)
    # The smallest first, because each pack that is written again raises the limit for those that follow.
    for shared_count, pack in sorted(zip(counts.tolist(), packs.tolist(), strict=True)):
        assert previous is not None
        rows, pack_size = shared[shared["pack"] == pack], (previous / archive_name(pack)).stat().st_size
        if shared_count <= to_write or 2 * int(rows["size"].sum()) < pack_size:
            to_write += shared_count
        else:
            linked.append(pack)
            try:
                os.link(previous / archive_name(pack), folder / archive_name(pack))
            except OSError:  # a file system without hard links
                shutil.copyfile(previous / archive_name(pack), folder / archive_name(pack))
    # states of packs that are not linked are written again below
    shared = shared[np.isin(shared["pack"], linked)]
    written = _write_pack(folder, round_, states, clients[~np.isin(clients, shared["client"])])
    index: Index = np.sort(np.concatenate([shared, written]), order="client")
    with (folder / INDEX).open("wb") as stream:
        np.save(stream, index)
        _flush(stream)
    return index


def content_digest(index: Index) -> str:
    """The sha256 of all clients' states, in whatever packs they lie."""
    return hashlib.sha256(index["client"].tobytes() + index["sha256"].tobytes()).hexdigest()


class ArchivedStates(Mapping[int, Record]):
    """The client states of a checkpoint, read when they are asked for."""

    def __init__(self, folder: Path, index: Index) -> None:
        self._folder, self._index = folder, index

    def __getitem__(self, client: int) -> Record:
        row = int(np.searchsorted(self._index["client"], client))
        if row == len(self._index) or self._index["client"][row] != client:
            raise KeyError(client)
        return from_bytes(self._bytes(self._index[row]))

    def __iter__(self) -> Iterator[int]:
        return iter(self._index["client"].tolist())

    def __len__(self) -> int:
        return len(self._index)

    def verify(self) -> None:
        """Raises `ValueError` for a state that does not match its checksum, `OSError` if one cannot be read."""
        for row in self._index:
            if hashlib.sha256(self._bytes(row)).digest() != row["sha256"].tobytes():
                raise ValueError(f"the state of client {row['client']} does not match its checksum")

    def _bytes(self, row: Any) -> bytes:
        with open_to_read(self._folder / archive_name(int(row["pack"]))) as stream:
            offset, size = int(row["offset"]), int(row["size"])
            # Before `read`, which would allocate as many bytes as a damaged index asks for.
            if offset + size > os.fstat(stream.fileno()).st_size:
                problem = "its pack ends before"
                raise ValueError(f"the state of client {row['client']} does not match its checksum: {problem}")
            stream.seek(offset)
            return stream.read(size)


def _unchanged(previous: Path | None, clients: NDArray[np.int64], changed: Collection[int]) -> Index:
    """Return the rows of the previous checkpoint that are still valid; none if it cannot be read."""
    try:
        index = np.empty(0, _ROW) if previous is None else read_index(previous)
    except (OSError, ValueError):
        return np.empty(0, _ROW)
    is_changed = np.isin(index["client"], np.fromiter(changed, np.int64, len(changed)))
    packs = [pack for pack in np.unique(index["pack"]) if previous and (previous / archive_name(int(pack))).exists()]
    rows: Index = index[np.isin(index["client"], clients) & ~is_changed & np.isin(index["pack"], packs)]
    return rows


def _write_pack(folder: Path, number: int, states: Mapping[int, Record], clients: NDArray[np.int64]) -> Index:
    rows: Index = np.zeros(len(clients), _ROW)
    if not len(clients):
        return rows
    with (folder / archive_name(number)).open("wb") as stream:
        for row, client in enumerate(clients.tolist()):
            data = to_bytes(states[client])
            digest = np.frombuffer(hashlib.sha256(data).digest(), np.uint8)
            rows[row] = (client, number, stream.tell(), len(data), digest)
            stream.write(data)
        _flush(stream)
    return rows


def _flush(stream: Any) -> None:
    stream.flush()
    os.fsync(stream.fileno())
