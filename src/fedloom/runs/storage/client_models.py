"""Client models of named rounds: what each participant sent and kept, and the server's states around the round.

client_models/round-000012/: meta.json (format, version, fingerprint, round, checksums), before.safetensors and
after.safetensors (states of the server), uploads/ and states/ (of the participants, see `state_archive.py`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fedloom._version import __version__
from fedloom.core.errors import CheckpointError
from fedloom.core.files import json_digest, json_text, parse_json, read_file, write_atomic
from fedloom.core.records import Record, RecordError, from_bytes, to_bytes
from fedloom.runs.storage import state_archive
from fedloom.runs.storage.round_folders import (
    file_digest,
    finished_folders,
    round_folder,
    round_of,
    written_whole,
)

_FORMAT = 1
_SERVER_STATES, _BY_CLIENT = ("before", "after"), ("uploads", "states")


@dataclass(frozen=True, slots=True)
class KeptRound:
    """A round whose client models are kept.

    Attributes:
        round: its number, from 1 on.
        before: the server's state before the round.
        after: its state after the round.
        uploads: what the participants sent, as the server aggregated it, by client id.
        states: what those participants kept that have a state of their own, by client id.
    """

    round: int
    before: Record
    after: Record
    uploads: Mapping[int, Record]
    states: Mapping[int, Record]


def save(folder: Path, kept: KeptRound, fingerprint: str) -> int:
    """Write a round's client models, whole or not at all, and return the bytes that they take.

    Args:
        folder: the run's folder of client models.
        kept: the round.
        fingerprint: fingerprint of the run's config.

    Raises `OSError` (e.g. a full disk).
    """
    with written_whole(round_folder(folder, kept.round)) as partial:
        digests = {}
        for name in _SERVER_STATES:
            content = to_bytes(getattr(kept, name))
            write_atomic(partial / f"{name}.safetensors", content)
            digests[name] = hashlib.sha256(content).hexdigest()
        for name in _BY_CLIENT:
            (partial / name).mkdir()
            records: Mapping[int, Record] = getattr(kept, name)
            state_archive.write(partial / name, kept.round, records, changed=records, previous=None)
            digests[name] = file_digest(partial / name / state_archive.INDEX)
        meta = {"format": _FORMAT, "version": __version__, "fingerprint": fingerprint, "round": kept.round, **digests}
        write_atomic(partial / "meta.json", json_text(meta | {"meta": json_digest(meta)}, indent=1, sort_keys=True))
        return _bytes_in(partial)


def bytes_of(folder: Path, round_: int) -> int:
    """The bytes that the client models of a kept round take."""
    return _bytes_in(round_folder(folder, round_))


def _bytes_in(path: Path) -> int:
    return sum(part.stat().st_size for part in path.rglob("*") if part.is_file())


def kept_rounds(folder: Path) -> tuple[int, ...]:
    """The rounds whose client models are kept, ascending."""
    return tuple(map(round_of, finished_folders(folder)))


def load(folder: Path, round_: int, fingerprint: str) -> KeptRound:
    """Return the client models of a round, whose uploads and states are read when they are asked for.

    Args:
        folder: the run's folder of client models.
        round_: number of the round.
        fingerprint: fingerprint of the run's config.

    Raises `CheckpointError` if they are damaged, or of another config, format or version.
    """
    path = round_folder(folder, round_)
    try:
        meta = parse_json(read_file(path / "meta.json"))
        if not isinstance(meta, dict):
            raise ValueError("meta.json holds no object")
        if (meta["format"], meta["version"], meta["fingerprint"]) != (_FORMAT, __version__, fingerprint):
            raise CheckpointError(
                f"{path}: written by fedloom {meta['version']} for config {meta['fingerprint']}, this is fedloom "
                f"{__version__} and config {fingerprint}; run again with --fresh"
            )
        if meta.pop("meta") != json_digest(meta) or meta["round"] != round_:
            raise ValueError("meta.json does not match its checksum, or is of another round")
        server: dict[str, Record] = {}
        for name in _SERVER_STATES:
            content = read_file(path / f"{name}.safetensors")
            if hashlib.sha256(content).hexdigest() != meta[name]:
                raise ValueError(f"{name}.safetensors does not match its checksum")
            server[name] = from_bytes(content)
        records: dict[str, state_archive.ArchivedStates] = {}
        for name in _BY_CLIENT:
            if file_digest(path / name / state_archive.INDEX) != meta[name]:
                raise ValueError(f"{name}/{state_archive.INDEX} does not match its checksum")
            records[name] = state_archive.ArchivedStates(path / name, state_archive.read_index(path / name))
            records[name].verify()
    except (OSError, RecordError, LookupError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path}: damaged ({error}); run again with --fresh") from None
    return KeptRound(round_, server["before"], server["after"], records["uploads"], records["states"])
