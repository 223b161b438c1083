"""Checks of files: readable, closed to other users, and not a folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fedloom.core.errors import ConfigError
from fedloom.core.files import read_file
from fedloom.flower.preflight.finding import Finding, error, warning

_OPEN_TO_OTHERS = 0o077


def read_or_explain(file: Path, needed: str, advice: str) -> bytes:
    """Read a regular file. Raises `ConfigError` that says what is `needed` and what to do.

    >>> read_or_explain(Path("/"), "a certificate in PEM", "name its file")
    Traceback (most recent call last):
    fedloom.core.errors.ConfigError: / is a folder, need a certificate in PEM; name its file
    """
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
    from fedloom.core.files import refuse_unwritable

    try:
        refuse_unwritable(folder / "file")
    except NotADirectoryError as problem:
        yield error(subject, f"{folder}: {problem.filename} is a file, need a folder; name another one")
    except OSError as problem:
        yield error(subject, f"{folder} cannot be written ({problem.strerror}); name a folder of this user")
