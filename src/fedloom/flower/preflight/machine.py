"""Checks of this machine: ports, and space on the disk."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from fedloom.core.errors import ConfigError
from fedloom.core.records import Record, wire_size
from fedloom.core.text import bytes_text
from fedloom.flower.preflight.finding import Finding, error, ok
from fedloom.flower.preflight.readable import writable_findings
from fedloom.flower.processes import require_free
from fedloom.runs.config.run_config import RunConfig

_KEPT = 3  # newest checkpoints and states that a federation keeps at least
_SPARE = 1  # a checkpoint that is being written


def port_finding(host: str, port: int) -> Finding:
    """Check that a port is free."""
    try:
        require_free(port, host)
    except ConfigError as problem:
        return error("port", str(problem))
    return ok("port", f"{port} is free")


def disk_findings(folder: Path, needed: int, purpose: str) -> Iterator[Finding]:
    """Check that a folder, which need not be there yet, can be written and has `needed` free bytes."""
    unwritable = list(writable_findings("disk", folder))
    yield from unwritable
    if unwritable:
        return
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(existing).free
    text = f"{folder} has {bytes_text(free)} free, and {purpose} need about {bytes_text(needed)}"
    yield ok("disk", text) if free >= needed else error("disk", f"{text}; free space, or name a folder on another disk")


def require_disk(folder: Path, needed: int, purpose: str) -> None:
    """Raise `ConfigError` for a folder that cannot be written, or has too little space.

    Args:
        folder: the folder.
        needed: free space in bytes.
        purpose: what will be written there, for the message.
    """
    for finding in disk_findings(folder, needed, purpose):
        if finding.level == "error":
            raise ConfigError(finding.text)


def kept_checkpoints(rounds: int, keep: int) -> int:
    """Return how many checkpoints, or private states, of a run lie on the disk at most.

    Args:
        rounds: rounds of the run.
        keep: the newest ones that are kept.

    >>> kept_checkpoints(2, 3), kept_checkpoints(1000, 3)
    (3, 13)
    """
    return min(rounds, keep + rounds.bit_length() - 1) + _SPARE  # about log2(rounds) older ones stay for `rewind`


def stored_bytes(config: RunConfig, record: Record) -> int:
    """Return the bytes of a state on the disk, with those of earlier rounds that are kept."""
    return kept_checkpoints(config.rounds, max(_KEPT, config.checkpoint.keep)) * wire_size(record) if record else 0
