"""Errors that a person can act on.

Every `FedloomError` states the value, why it is wrong and what would be right, in one line. Doors (the command
line, notebooks) show that line alone and exit with `exit_code`; anything else is a bug and keeps its traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


class FedloomError(Exception):
    """Base of all expected failures: the message is one line for a person."""

    exit_code = 2


class ConfigError(FedloomError):
    """A setting that cannot be used: unknown, out of range, or contradicting another."""


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


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint for an unknown `name`: "did you mean 'x'?", or the list of what is known."""
    choices = sorted(known)
    match = difflib.get_close_matches(name.lower(), choices, n=1, cutoff=0.5)
    if match:
        return f"did you mean '{match[0]}'?"
    return "known: " + (", ".join(choices) if choices else "none")
