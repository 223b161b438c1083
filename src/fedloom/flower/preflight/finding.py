"""Findings of checks, one line each with what to do, and the checks of files that several sides share."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fedloom.core.errors import ConfigError, printable
from fedloom.core.files import read_file, refuse_unwritable


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    subject: what was checked, in one or two words. level: an error is something that would fail. text: one line.
    """

    subject: str
    level: Literal["ok", "warning", "error"]
    text: str

    def facts(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        return dataclasses.asdict(self)


def ok(subject: str, text: str) -> Finding:
    """Return a finding of something that is as it should be."""
    return Finding(subject, "ok", printable(text))


def warning(subject: str, text: str) -> Finding:
    """Return a finding of something that works now, but should be changed."""
    return Finding(subject, "warning", printable(text))


def error(subject: str, text: str) -> Finding:
    """Return a finding of something that would fail."""
    return Finding(subject, "error", printable(text))


def has_error(findings: Iterable[Finding]) -> bool:
    """Whether one of the findings is an error."""
    return any(finding.level == "error" for finding in findings)


def refuse_errors(findings: Sequence[Finding], note: Callable[[str], None]) -> None:
    """Raise `ConfigError` with the first error, which says how many others there are; else `note` the warnings."""
    errors = [finding for finding in findings if finding.level == "error"]
    if errors:
        others = f" (and {len(errors) - 1} more: fedloom flower check)" if len(errors) > 1 else ""
        raise ConfigError(errors[0].text + others)
    for finding in findings:
        if finding.level == "warning":
            note(finding.text)


_OPEN_TO_OTHERS = 0o077


def read_or_explain(file: Path, needed: str, advice: str) -> bytes:
    """Read a regular file. Raises `ConfigError` that says which kind of file is `needed`, with the `advice`."""
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
        yield warning("key", f"{file} has the mode {mode:04o}, so others can read it; run `chmod 600 {file}`")


def writable_findings(subject: str, folder: Path) -> Iterator[Finding]:
    """Find a folder in which nothing can be written."""
    try:
        refuse_unwritable(folder / "file")
    except NotADirectoryError as problem:
        yield error(subject, f"{folder}: {problem.filename} is a file, need a folder; name another one")
    except OSError as problem:
        yield error(subject, f"{folder} cannot be written ({problem.strerror}); name a folder of this user")
