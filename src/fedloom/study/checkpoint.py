"""Checkpoints: a federation between two rounds, on disk, in folders that are complete or absent.

checkpoint/round-000012/: meta.json (format, version, fingerprint, round, sha256 of every file), server.safetensors,
clients/00000007.safetensors for every client with state. Equal federations give equal bytes.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from fedloom._version import __version__
from fedloom.core.errors import CheckpointError
from fedloom.core.files import write_atomic
from fedloom.core.records import Record, RecordError, from_bytes, to_bytes

_FORMAT = 1
_CLIENTS, _SERVER = "clients", "server.safetensors"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What is needed to go on: finished rounds, the server's state and the clients' states; `path` if it is on disk."""

    round: int
    server: Record
    states: Mapping[int, Record]
    path: Path | None = None


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint on disk: its folder, and the sha256 of its meta.json, which holds those of all files."""

    path: Path
    sha256: str


def save(
    folder: Path,
    checkpoint: Checkpoint,
    fingerprint: str,
    keep: int,
    *,
    last: Path | None = None,
    changed: Collection[int] = (),
    spare: int | None = None,
) -> Saved:
    """Write a checkpoint beside the others and delete all but the newest `keep`, and that of the round `spare`.

    last: the checkpoint of this run that was saved or loaded before; files of clients that are not among those
    `changed` since are shared with it. Raises `OSError` (e.g. a full disk), leaving the older checkpoints usable.
    """
    final = _folder_of(folder, checkpoint.round)
    partial = folder / f".{final.name}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    try:
        (partial / _CLIENTS).mkdir(parents=True)
        before = _digests(last)
        digests = {_SERVER: _write(partial / _SERVER, checkpoint.server)}
        for client in sorted(checkpoint.states):
            name = f"{_CLIENTS}/{client:08d}.safetensors"
            if last is not None and client not in changed and name in before and (last / name).exists():
                os.link(last / name, partial / name)
                digests[name] = before[name]
            else:
                digests[name] = _write(partial / name, checkpoint.states[client])
        meta = {
            "format": _FORMAT,
            "version": __version__,
            "fingerprint": fingerprint,
            "round": checkpoint.round,
            "files": digests,
        }
        text = json.dumps(meta, indent=1, sort_keys=True)
        write_atomic(partial / "meta.json", text)
        shutil.rmtree(final, ignore_errors=True)
        partial.rename(final)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    _sync_folder(folder)
    for old in _finished(folder)[:-keep]:
        if spare is None or old != _folder_of(folder, spare):
            shutil.rmtree(old, ignore_errors=True)
    return Saved(final, hashlib.sha256(text.encode()).hexdigest())


def _write(path: Path, record: Record) -> str:
    """Write one file; its sha256. One at a time: the states of all clients may not fit into memory."""
    data = to_bytes(record)
    write_atomic(path, data)
    return hashlib.sha256(data).hexdigest()


def _digests(path: Path | None) -> dict[str, str]:
    """The digests that a checkpoint lists of its files; none if it cannot be read."""
    try:
        listed: dict[str, str] = {} if path is None else json.loads((path / "meta.json").read_text("utf-8"))["files"]
    except (OSError, ValueError, KeyError):
        return {}
    return listed


class _Stored(Mapping[int, Record]):
    """The client states of a checkpoint, read when they are asked for."""

    def __init__(self, folder: Path, clients: Iterable[int]) -> None:
        self._folder, self._clients = folder, sorted(clients)

    def __getitem__(self, client: int) -> Record:
        return from_bytes((self._folder / f"{client:08d}.safetensors").read_bytes())

    def __iter__(self) -> Iterator[int]:
        return iter(self._clients)

    def __len__(self) -> int:
        return len(self._clients)


def load_latest(folder: Path, fingerprint: str, warn: Callable[[str], None]) -> Checkpoint | None:
    """The newest sound checkpoint, or None if there is none at all. A damaged one is reported through `warn` and the
    one before it is taken.

    Raises `CheckpointError` for a checkpoint of another config, format or version, and if all are damaged.
    """
    finished = _finished(folder)
    for path in reversed(finished):
        try:
            return _load(path, fingerprint)
        except (OSError, RecordError, KeyError, TypeError, ValueError) as error:
            warn(f"checkpoint {path.name} is damaged ({error}); falling back to the one before it")
    if finished:
        raise CheckpointError(f"{folder}: all {len(finished)} checkpoints are damaged; run again with --fresh")
    return None


def load_round(folder: Path, round_: int, fingerprint: str) -> Checkpoint | None:
    """The checkpoint of one round, or None if there is none.

    Raises `CheckpointError` if it is damaged, or of another config, format or version.
    """
    path = _folder_of(folder, round_)
    if not path.is_dir():
        return None
    try:
        return _load(path, fingerprint)
    except (OSError, RecordError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path}: damaged ({error}); run again with --fresh") from None


def _load(path: Path, fingerprint: str) -> Checkpoint:
    meta = json.loads((path / "meta.json").read_text(encoding="utf-8"))
    if meta["format"] != _FORMAT or meta["version"] != __version__:
        raise CheckpointError(
            f"{path}: written by fedloom {meta['version']} (format {meta['format']}), this is {__version__} (format "
            f"{_FORMAT}); go on with that version, or run again with --fresh"
        )
    if meta["fingerprint"] != fingerprint:
        raise CheckpointError(
            f"{path}: belongs to another config ({meta['fingerprint']}, this one is {fingerprint}); choose another "
            "folder with --out, or run again with --fresh"
        )
    for name, digest in meta["files"].items():
        if hashlib.sha256((path / name).read_bytes()).hexdigest() != digest:
            raise ValueError(f"{name} does not match its checksum")
    server = from_bytes((path / _SERVER).read_bytes())
    clients = [int(Path(name).stem) for name in meta["files"] if name.startswith(f"{_CLIENTS}/")]
    return Checkpoint(int(meta["round"]), server, _Stored(path / _CLIENTS, clients), path)


def _folder_of(folder: Path, round_: int) -> Path:
    return folder / f"round-{round_:06d}"


def _finished(folder: Path) -> list[Path]:
    return sorted(folder.glob("round-[0-9]*")) if folder.is_dir() else []


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
