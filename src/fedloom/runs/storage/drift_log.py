"""drift.jsonl: what the rounds of a run say about drift, one round a line. Nothing here needs torch."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from fedloom.core.errors import RunFolderError
from fedloom.core.files import json_text, open_to_append, parse_json, read_file, write_atomic
from fedloom.runs.storage.log import LARGEST

FILE = "drift.jsonl"


class DriftValue(NamedTuple):
    """One figure of a round.

    Attributes:
        name: name of the figure.
        value: the number; None where it is not defined, as a cosine of a client that did not move.
        client: id of the client that it is of.
        other: id of a second client, for figures of pairs.
        label: number of the class that it is of.
        entry: name of the class table or of the head that it is of.
    """

    name: str
    value: float | None
    client: int | None = None
    other: int | None = None
    label: int | None = None
    entry: str | None = None


@dataclass(frozen=True, slots=True)
class DriftRound:
    """The figures of one round. notes: what could not be measured, and why, each in one line."""

    round: int
    values: Sequence[DriftValue]
    notes: Sequence[str] = ()

    def rows(self) -> list[dict[str, Any]]:
        """Return the figures as dicts that a data frame takes; a value that is not defined is NaN."""
        return [
            {
                "round": self.round,
                "name": value.name,
                "client": value.client,
                "other": value.other,
                "class": value.label,
                "entry": value.entry,
                "value": math.nan if value.value is None else value.value,
            }
            for value in self.values
        ]


_Number = Annotated[float, Field(ge=-LARGEST, le=LARGEST, allow_inf_nan=False)]
_Id = Annotated[int, Field(ge=0, le=2**53)]
_Value = tuple[str, _Number | None, _Id | None, _Id | None, _Id | None, str | None]
_VALUES = TypeAdapter(list[_Value], config=ConfigDict(strict=True))
_NOTES = TypeAdapter(list[str], config=ConfigDict(strict=True))


class DriftLog:
    """The rounds' drift on disk. A line that a crash cut off is no round."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE

    def append(self, drift: DriftRound) -> None:
        """Add a round at the end, and write it to the disk."""
        line = json_text({"round": drift.round, "values": drift.values, "notes": drift.notes}) + "\n"
        with open_to_append(self.path) as stream:
            stream.write(line.encode())
            stream.flush()
            os.fsync(stream.fileno())

    def keep_until(self, round_: int) -> list[DriftRound]:
        """Delete the rounds after `round_`, which will be run again, and return the others."""
        kept = [drift for drift in self.rounds() if drift.round <= round_]
        if self.path.exists():
            lines = [json_text({"round": d.round, "values": d.values, "notes": d.notes}) + "\n" for d in kept]
            write_atomic(self.path, "".join(lines))
        return kept

    def rounds(self) -> list[DriftRound]:
        """All complete rounds; none where there is no file. Raises `RunFolderError` for a line that is no round."""
        try:
            lines = read_file(self.path).splitlines(keepends=True)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise RunFolderError(f"{self.path}: cannot be read ({error.strerror})") from None
        return [self._round(number, line) for number, line in enumerate(lines, start=1) if line.endswith(b"\n")]

    def _round(self, number: int, line: bytes) -> DriftRound:
        try:
            content = parse_json(line)
            if not isinstance(content, Mapping) or content.keys() != {"round", "values", "notes"}:
                raise ValueError
            round_ = content["round"]
            if type(round_) is not int or round_ < 1:
                raise ValueError
            values = _VALUES.validate_python([tuple(value) for value in content["values"]])
            return DriftRound(
                round_, [DriftValue(*value) for value in values], _NOTES.validate_python(content["notes"])
            )
        except (ValueError, TypeError, ValidationError):
            raise RunFolderError(f"{self.path}: line {number} is damaged; delete this file, or run again") from None


def rows_of(rounds: Iterable[DriftRound]) -> list[dict[str, Any]]:
    """Return the figures of several rounds as dicts that a data frame takes."""
    return [row for drift in rounds for row in drift.rows()]
