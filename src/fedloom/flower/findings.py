"""Findings of the checks before a server or a node starts, and the checks of files, ports, disks and clocks."""

import shutil
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedloom.core.errors import ConfigError, FedloomError, printable
from fedloom.core.files import read_file, refuse_unwritable
from fedloom.core.records import Record, wire_size
from fedloom.core.text import bytes_text, seconds_text
from fedloom.runs.config.run_config import RunConfig

_KEPT = 3  # newest checkpoints and states that a federation keeps at least
_OPEN_TO_OTHERS = 0o077
AHEAD_SECONDS, BEHIND_SECONDS = 5.0, 300.0  # beyond which Flower refuses a node's signatures


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check, on one line with advice. An error is something that would fail."""

    subject: str
    level: Literal["ok", "warning", "error"]
    text: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", printable(self.text))


def refuse_errors(findings: Sequence[Finding], note: Callable[[str], None] = lambda text: None) -> None:
    """Raise `ConfigError` with the first error and the number of the others; without errors, `note` the warnings."""
    errors = [finding for finding in findings if finding.level == "error"]
    if errors:
        others = f" (and {len(errors) - 1} more: fedloom flower check)" if len(errors) > 1 else ""
        raise ConfigError(errors[0].text + others)
    for finding in findings:
        if finding.level == "warning":
            note(finding.text)


def read_or_explain(file: Path, needed: str, advice: str) -> bytes:
    """Read a regular `file`. Raises `ConfigError` that says what kind of file is `needed`, and gives the `advice`."""
    try:
        return read_file(file)
    except FileNotFoundError:
        raise ConfigError(f"{file} is missing; {advice}") from None
    except IsADirectoryError:
        raise ConfigError(f"{file} is a folder, need {needed}; {advice}") from None
    except OSError as problem:
        raise ConfigError(f"{file} cannot be read ({problem.strerror}), need {needed}; {advice}") from None


def mode_findings(file: Path) -> Iterator[Finding]:
    """Find a private key that other users of this machine can read."""
    mode = file.stat().st_mode & 0o777
    if mode & _OPEN_TO_OTHERS:
        text = f"{file} has the mode {mode:04o}, so others can read it; run `chmod 600 {file}`"
        yield Finding("key", "warning", text)


def finding_of(subject: str, check: Callable[[], str]) -> Finding:
    """Make one check, which returns what is fine, or raises an error that says what is not."""
    try:
        return Finding(subject, "ok", check())
    except (FedloomError, OSError) as problem:
        return Finding(subject, "error", str(problem))


def require_free(port: int, host: str = "127.0.0.1") -> str:
    """Return that a port is free. Raises `ConfigError` if it is in use."""
    with socket.socket() as sock:
        # Otherwise the port of a server that has just ended looks used while its connections are in TIME_WAIT.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host, port))
        except OSError as error:
            raise ConfigError(f"port {port} cannot be used ({error.strerror}); name another with --port") from None
    return f"{port} is free"


def require_space(folder: Path, needed: int, purpose: str) -> str:
    """Return how much space a `folder`, which may not exist yet, has for a `purpose`. Raises `ConfigError` if it cannot
    be written, or has less than the `needed` bytes."""
    try:
        refuse_unwritable(folder / "file")
    except NotADirectoryError as problem:
        raise ConfigError(f"{folder}: {problem.filename} is a file, need a folder; name another one") from None
    except OSError as problem:
        raise ConfigError(f"{folder} cannot be written ({problem.strerror}); name a folder of this user") from None
    free = shutil.disk_usage(next(path for path in (folder, *folder.absolute().parents) if path.exists())).free
    text = f"{folder} has {bytes_text(free)} free, and {purpose} need about {bytes_text(needed)}"
    if free < needed:
        raise ConfigError(f"{text}; free space, or name a folder on another disk")
    return text


def kept_checkpoints(rounds: int, keep: int) -> int:
    """Return how many checkpoints, or private states, of a run are on the disk at most; the newest `keep` are kept."""
    # About log2(rounds) older ones are kept for `rewind`, and one is being written.
    return min(rounds, keep + rounds.bit_length() - 1) + 1


def stored_bytes(config: RunConfig, record: Record) -> int:
    """Return the bytes that a state takes on the disk, together with the states of earlier rounds that are kept."""
    return kept_checkpoints(config.rounds, max(_KEPT, config.checkpoint.keep)) * wire_size(record) if record else 0


def clock_difference(node_time: float, earliest: float, latest: float) -> str:
    """Say how far a node's clock is from the server's; nothing if it may be right to five seconds.

    node_time: the node's clock, in seconds since 1970, at some moment between `earliest` and `latest` of the server's.

    >>> clock_difference(1000.0, 570.0, 580.0)[:54]
    "its node's clock is 7.00 min ahead of the server's; se"
    >>> clock_difference(1000.0, 990.0, 999.0)
    ''
    """
    ahead = node_time - latest if node_time > latest else min(0.0, node_time - earliest)
    return f"its node's clock is {_clock_advice(ahead)}" if abs(ahead) > AHEAD_SECONDS else ""


def clock_finding(ahead: float) -> Finding:
    """Report a clock that is `ahead` seconds ahead of the server's; an error if Flower will refuse signatures."""
    is_refused = not -BEHIND_SECONDS < ahead < AHEAD_SECONDS
    return Finding("clock", "error" if is_refused else "warning", f"this machine's clock is {_clock_advice(ahead)}")


def _clock_advice(ahead: float) -> str:
    direction = "ahead of" if ahead > 0 else "behind"
    return (
        f"{seconds_text(abs(ahead))} {direction} the server's; set it by NTP (e.g. `timedatectl set-ntp true`), "
        f"because Flower refuses a node that is {AHEAD_SECONDS:g} s ahead or {BEHIND_SECONDS:g} s behind"
    )
