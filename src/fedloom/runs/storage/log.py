"""metrics.jsonl and drift.jsonl, which a run appends to every round, and the curves in them. Needs no torch."""

import hashlib
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

from pydantic import BaseModel, Field

from fedloom.core.errors import RunFolderError
from fedloom.core.files import json_text, open_to_append, parse_json, read_file, write_atomic
from fedloom.core.text import ACCURACY, Criterion


class Row(TypedDict):
    """One measured value, of the whole run or of a `client`; null in the file unless it is below `LARGEST`."""

    round: int
    client: int | None
    split: str
    protocol: str | None
    name: str
    value: float


def new_row(
    round_: int, name: str, value: float, split: str = "system", protocol: str | None = None, client: int | None = None
) -> Row:
    """Return the row of a measure: its round_, name and value, the split, the protocol of a test, and the client."""
    return Row(round=round_, client=client, split=split, protocol=protocol, name=name, value=value)


CALLBACK_SPLIT = "callback"  # of the rows that hold measures of callbacks
NEWCOMERS = "newcomers"  # split of the rows of clients that never trained
LARGEST = 1e300  # of a value: sums of such values are still finite
_Number = Annotated[float, Field(gt=-LARGEST, lt=LARGEST, allow_inf_nan=False)]
_Id = Annotated[int, Field(ge=0, le=2**53)]


class StoredRow(BaseModel, extra="forbid", strict=True):
    """A row in a file."""

    round: _Id
    client: _Id | None
    split: str
    protocol: str | None
    name: str
    value: _Number | None


def with_nan(stored: Iterable[Any]) -> list[Row]:
    """Return rows as they were before JSON, which has no NaN."""
    return [row | {"value": math.nan} if row["value"] is None else row for row in stored]


class LogPosition(NamedTuple):
    """Size of a log in bytes, and the sha256 of its content."""

    size: int
    sha256: str


class MetricsLog:
    """The rows of one run on disk. A line that a crash cut off is no row."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._size, self._sha256 = 0, hashlib.sha256()

    def append(self, rows: Iterable[Row]) -> None:
        # sums over rows must stay finite; NaN is null in the file
        bounded = (row if abs(row["value"]) < LARGEST else Row(**{**row, "value": math.nan}) for row in rows)
        text = "".join(json_text(row) + "\n" for row in bounded).encode()
        with open_to_append(self.path) as stream:
            stream.write(text)
        self._size += len(text)
        self._sha256.update(text)

    def flush(self) -> LogPosition:
        """Write the log to the disk and return its size and sha256."""
        with open_to_append(self.path) as stream:
            os.fsync(stream.fileno())
        return LogPosition(self._size, self._sha256.hexdigest())

    def starts_with(self, position: LogPosition) -> bool:
        """Return whether the first bytes of the log are those of `position`."""
        return self._until(position).hexdigest() == position.sha256

    def truncate(self, position: LogPosition) -> list[Row]:
        """Delete the rows after a position, whose rounds will be run again, and return the remaining rows."""
        if self.path.exists() and self.path.lstat().st_nlink > 1:  # a copy of hard links shares the file
            write_atomic(self.path, _content(self.path))
        with open_to_append(self.path) as stream:
            stream.truncate(position.size)
        self._size, self._sha256 = position.size, self._until(position)
        return self.rows()

    def rows(self) -> list[Row]:
        """All complete rows. Raises `RunFolderError` for a line that is no row."""
        advice = "put the file back, or delete the run folder and run again"
        return with_nan(_parsed_lines(self.path, StoredRow, advice))

    def position(self) -> LogPosition:
        """Return size and sha256 of the file as it is."""
        content = _content(self.path)
        return LogPosition(len(content), hashlib.sha256(content).hexdigest())

    def _until(self, position: LogPosition) -> "hashlib._Hash":
        return hashlib.sha256(_content(self.path)[: position.size])


def _content(path: Path) -> bytes:
    try:
        return read_file(path)
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise RunFolderError(f"{path}: cannot be read ({error.strerror})") from None


def _parsed_lines(path: Path, model: type[BaseModel], advice: str) -> Iterator[Any]:
    """Yield the complete lines of a file, whose last one is not if the process ended while it wrote, as plain values.
    Raises `RunFolderError`, which ends in `advice`, for a line that is not as `model` says."""
    for number, line in enumerate(_content(path).splitlines(keepends=True), start=1):
        if line.endswith(b"\n"):
            try:
                model.model_validate_json(line)
                yield parse_json(line)
            except ValueError:
                raise RunFolderError(f"{path}: line {number} is damaged; {advice}") from None


START = LogPosition(0, hashlib.sha256().hexdigest())


RoundSelection = Literal["last", "best_val"]
At = RoundSelection | int  # or the number of a round
TESTED_SPLITS = ("test", "val")  # on which a run is tested by its protocols


def main_protocol(rows: Sequence[Row]) -> str | None:
    """The protocol of the first test, which is a run's main one; None without a test."""
    return next((r["protocol"] for r in rows if r["split"] in TESTED_SPLITS), None)


def of_protocol(rows: Sequence[Row], protocol: str | None) -> list[Row]:
    """The rows without the tests of other protocols."""
    return [r for r in rows if r["split"] not in TESTED_SPLITS or r["protocol"] == protocol]


def curve(rows: Sequence[Row], name: str, split: str) -> tuple[list[int], list[float]]:
    """Return rounds and values of the measure `name` of a run in `rows`; tests count in the main protocol only."""
    picked = [r for r in rows if r["name"] == name and r["split"] == split and r["client"] is None]
    if split in TESTED_SPLITS and picked:
        main = main_protocol(rows)
        picked = [r for r in picked if r["protocol"] == main]
    return [r["round"] for r in picked], [r["value"] for r in picked]


def accuracies(rows: Sequence[Row], last_k: int, criterion: Criterion = ACCURACY) -> dict[str, float | None]:
    """Return the test accuracy by each way of selecting a round (`last_k`, `criterion`); None if not validated."""
    validated = any(curve(rows, name, "val")[0] for name in (criterion.name, "accuracy"))
    selections = ("last", "best_val", "best_test", "mean_last_k")
    by_selection = {s: value_at_selected_round(rows, "accuracy", s, last_k, criterion) for s in selections}
    return by_selection if validated else by_selection | {"best_val": None}


def value_at_selected_round(
    rows: Sequence[Row], name: str, select: str, last_k: int, criterion: Criterion = ACCURACY
) -> float | None:
    """Return the test measure `name` in `rows` at the `selected_rounds` (select, last_k); None without."""
    return mean_over(rows, name, selected_rounds(rows, select, last_k, criterion))


def selected_rounds(rows: Sequence[Row], select: str, last_k: int, criterion: Criterion = ACCURACY) -> list[int]:
    """Return the tested rounds that count by `evaluation.select`: one, or the last `last_k`. `criterion` finds the best
    round; if it is NaN in every round, the last one counts."""
    tested = curve(rows, "accuracy", "test")[0]
    if select == "mean_last_k":
        return tested[-last_k:]
    split = {"best_test": "test", "best_val": "val"}.get(select)
    best = None if split is None else criterion.best(*curve(rows, criterion.name, split))
    return tested[-1:] if best is None else [best]


def mean_over(rows: Sequence[Row], name: str, rounds: Sequence[int]) -> float | None:
    """Return the mean of the test measure `name` over those of `rounds` that have it; None if none has."""
    by_round = dict(zip(*curve(rows, name, "test"), strict=True))
    values = [by_round[round_] for round_ in rounds if round_ in by_round]
    return fmean(values) if values else None


def best_val(rows: Sequence[Row], criterion: Criterion = ACCURACY) -> tuple[int, float] | None:
    """The round of the best validation value, the earliest of equal ones, and that; None without validation data."""
    rounds, values = curve(rows, criterion.name, "val")
    best = criterion.best(rounds, values)
    return None if best is None else (best, dict(zip(rounds, values, strict=True))[best])


def total_over_rounds(rows: Sequence[Row], name: str) -> float:
    """Sum of a measure of the run itself (split "system") over all rounds."""
    return sum(curve(rows, name, "system")[1])


FILE = "drift.jsonl"


class DriftValue(NamedTuple):
    """One value of a round (None where it is not defined), its client and, in pairs, the other one."""

    name: str
    value: float | None
    client: int | None = None
    other: int | None = None


@dataclass(frozen=True, slots=True)
class DriftRound:
    """The values of one round; `notes` say which ones could not be measured, and why, each in one line."""

    round: int
    values: Sequence[DriftValue]
    notes: Sequence[str] = ()

    def rows(self) -> list[dict[str, Any]]:
        """Return the values as dicts that a data frame takes; one that is not defined is NaN."""
        return [
            {"round": self.round, "name": name, "client": client, "other": other}
            | {"value": math.nan if value is None else value}
            for name, value, client, other in self.values
        ]

    def line(self) -> str:
        return json_text({"round": self.round, "values": self.values, "notes": self.notes}) + "\n"


class _StoredRound(BaseModel, extra="forbid", strict=True):
    round: Annotated[int, Field(ge=1)]
    # files of earlier versions also have a class and an entry
    values: list[
        tuple[str, _Number | None, _Id | None, _Id | None]
        | tuple[str, _Number | None, _Id | None, _Id | None, _Id | None, str | None]
    ]
    notes: list[str]


class DriftLog:
    """The rounds' drift on disk. A line that a crash cut off is no round."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE

    def append(self, drift: DriftRound) -> None:
        """Add a round at the end, and write it to the disk."""
        with open_to_append(self.path) as stream:
            stream.write(drift.line().encode())
            stream.flush()
            os.fsync(stream.fileno())

    def keep_until(self, round_: int) -> list[DriftRound]:
        """Delete the rounds after `round_`, which will be run again, and return the others."""
        kept = [drift for drift in self.rounds() if drift.round <= round_]
        if self.path.exists():
            write_atomic(self.path, "".join(drift.line() for drift in kept))
        return kept

    def rounds(self) -> list[DriftRound]:
        """All complete rounds; none where there is no file. Raises `RunFolderError` for a line that is no round."""
        rounds = _parsed_lines(self.path, _StoredRound, "delete this file, or run again")
        return [DriftRound(**{**line, "values": [DriftValue(*v[:4]) for v in line["values"]]}) for line in rounds]
