"""Errors that a person can act on.

Every `FedloomError` states the value, why it is wrong and what would be right, in one line. Doors (the command
line, notebooks) show that line alone and exit with `exit_code`; anything else is a bug and keeps its traceback.
"""

from __future__ import annotations

import copy
import difflib
import pickle
import traceback
from collections.abc import Iterable
from typing import Any

_SPACES = "\u00a0\u2007\u2009\u202f\u3000"  # spaces of typography: no control
_JOINERS = "\u200c\u200d"  # Persian and Indic words need them, and some emoji
_LONGEST = 100  # characters of a name that are compared with known ones
_LISTED = 30  # known names in a message


class FedloomError(Exception):
    """Base of all expected failures: the message is one line for a person."""

    exit_code = 2


class ConfigError(FedloomError):
    """A setting that cannot be used: unknown, out of range, or contradicting another."""


class UnknownKeyError(ConfigError):
    """A key that its section does not have: `section` as it stands in messages ("scenario", "" for the top)."""

    def __init__(self, section: str, key: str, known: Iterable[str], of: str = "") -> None:
        self.section, self.key, self.known, self.of = section, key, sorted(known), of
        super().__init__(self.saying(nearest(key, self.known)))

    def saying(self, hint: str) -> str:
        """The message with another hint."""
        place = f"{self.section}.{self.key}" if self.section else self.key
        return f"unknown key {shown(place)}{self.of}: {hint}"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.section, self.key, self.known, self.of)


class DataError(FedloomError):
    """Data that is missing, damaged, or does not fit the scenario."""


class CheckpointError(FedloomError):
    """A checkpoint that cannot be continued: damaged, of another config, or of another version."""


class RunFolderError(FedloomError):
    """A run folder that cannot be used: in use, unfinished, unwritable, or of another config."""


class ClientError(FedloomError):
    """An exception inside one client's work. Carries where it happened; the cause holds the traceback.

    Attributes: `client` (id), `round` (1-based), `stage` ("begin", "phase 0", "end", ...).
    """

    exit_code = 1

    def __init__(self, client: int, round_: int, stage: str, cause: BaseException) -> None:
        self.client, self.round, self.stage = client, round_, stage
        self._cause = self.__cause__ = cause  # also where no `raise from` says so: in another process than it happened
        super().__init__(f"client {client} failed in round {round_} ({stage}): {type(cause).__name__}: {cause}")

    def __reduce__(self) -> tuple[Any, ...]:
        """Crosses process borders whole, notes included."""
        notes = {"__notes__": self.__notes__} if hasattr(self, "__notes__") else {}
        return type(self), (self.client, self.round, self.stage, self._cause), notes


def portable(error: Exception) -> Exception:
    """The error as it may cross to another process: with its traceback as a note, because tracebacks do not cross.

    In place of one that cannot be sent, or not be read there, comes one that says what it was.
    """
    text = "".join(traceback.format_exception(error))
    try:
        pickle.dumps(error)
        copy.deepcopy(error)  # is made as `pickle.loads` would make it, its cause too
    except Exception:  # whatever the error's class raises
        if isinstance(error, ClientError):
            error = ClientError(error.client, error.round, error.stage, RuntimeError(repr(error.__cause__)))
        else:
            error = RuntimeError(f"{type(error).__name__}: {error}")
    error.add_note(text)
    return error


def shown(value: object, most: int = 80) -> str:
    """A value as messages show it: its `repr`, cut in the middle where it is long."""
    text = repr(value)
    return text if len(text) <= most else f"{text[: most // 2]}...{text[-most // 4 :]}"


def printable(text: str, *, lines: bool = False) -> str:
    """Text of others as terminals, logs and pages may show it: signs that act instead of showing are escaped.

    These are control characters (a terminal obeys them), signs that turn the direction of writing, invisible signs and
    line breaks (they forge lines of a log). lines: keep line breaks and tabs, for a traceback.
    """
    if text.isprintable():
        return text
    if lines:
        return "\n".join(map(_escaped, text.split("\n")))
    return "".join(sign if _shows(sign) else ascii(sign)[1:-1] for sign in text)


def _escaped(line: str) -> str:
    """A line with its tabs."""
    return "\t".join(map(printable, line.split("\t")))


def _shows(sign: str) -> bool:
    return sign.isprintable() or sign in _SPACES or sign in _JOINERS


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint for an unknown `name`: "did you mean 'x'?", or the list of what is known."""
    choices = sorted(known)
    match = difflib.get_close_matches(name[:_LONGEST].lower(), choices, n=1, cutoff=0.5)
    if match:
        return f"did you mean '{match[0]}'?"
    more = f" and {len(choices) - _LISTED} more" if len(choices) > _LISTED else ""
    return "known: " + (", ".join(choices[:_LISTED]) + more if choices else "none")
