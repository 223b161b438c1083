"""Checkpoints: a federation between two rounds, on disk, in folders that are complete or absent.

checkpoint/round-000012/: meta.json (format, version, fingerprint, round, sha256 of every file), server.safetensors,
clients/00000007.safetensors for every client with state. Equal federations give equal bytes.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fedloom._version import __version__
from fedloom.core.errors import CheckpointError
from fedloom.core.files import write_atomic
from fedloom.core.records import Record, RecordError, from_bytes, to_bytes

_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What is needed to go on: finished rounds, the server's state and the clients' states."""

    round: int
    server: Record
    states: dict[int, Record]


def save(folder: Path, checkpoint: Checkpoint, fingerprint: str, keep: int) -> str:
    """Write a checkpoint beside the others and delete all but the newest `keep`. Returns its sha256.

    Raises `OSError` (e.g. a full disk), leaving the older checkpoints usable.
    """
    final = folder / f"round-{checkpoint.round:06d}"
    partial = folder / f".{final.name}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    try:
        (partial / "clients").mkdir(parents=True)
        files = {"server.safetensors": to_bytes(checkpoint.server)}
        for client, state in sorted(checkpoint.states.items()):
            files[f"clients/{client:08d}.safetensors"] = to_bytes(state)
        digests = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
        before, older = _previous(folder)
        for name, data in files.items():
            if older.get(name) == digests[name]:  # a client that did not take part: share the file
                os.link(before / name, partial / name)
            else:
                write_atomic(partial / name, data)
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
        shutil.rmtree(old, ignore_errors=True)
    return hashlib.sha256(text.encode()).hexdigest()


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
    records: dict[str, Record] = {}
    for name, digest in meta["files"].items():
        data = (path / name).read_bytes()
        if hashlib.sha256(data).hexdigest() != digest:
            raise ValueError(f"{name} does not match its checksum")
        records[name] = from_bytes(data)
    server = records.pop("server.safetensors")
    return Checkpoint(int(meta["round"]), server, {int(Path(n).stem): r for n, r in records.items()})


def _finished(folder: Path) -> list[Path]:
    return sorted(folder.glob("round-[0-9]*")) if folder.is_dir() else []


def _previous(folder: Path) -> tuple[Path, dict[str, str]]:
    """The newest checkpoint and the digests of its files, if it can be read: ({folder}, {}) otherwise."""
    for path in reversed(_finished(folder)):
        try:
            files: dict[str, str] = json.loads((path / "meta.json").read_text(encoding="utf-8"))["files"]
            return path, {n: d for n, d in files.items() if hashlib.sha256((path / n).read_bytes()).hexdigest() == d}
        except (OSError, ValueError, KeyError):
            continue
    return folder, {}


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
