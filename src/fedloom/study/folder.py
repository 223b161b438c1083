"""A run on disk.

config.yaml (resolved) · scenario.json · metrics.jsonl while running, metrics.parquet at the end · checkpoint/ ·
summary.json · env.json · report.html. Every file is written whole or not at all; metrics are appended line by line.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypedDict

import yaml
from filelock import FileLock, Timeout

from fedloom.core.errors import RunFolderError
from fedloom.core.files import write_atomic


class Row(TypedDict):
    """One measured value. `client` is None for values of the whole run; `protocol` None for those without one."""

    round: int
    client: int | None
    split: str
    protocol: str | None
    name: str
    value: float


class RunFolder:
    """The folder of one run, locked against other processes between `open` and `close`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = FileLock(path / ".lock", timeout=0)

    def open(self) -> None:
        """Create the folder and take its lock. Raises `RunFolderError` if it is in use or cannot be written."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock.acquire()
        except Timeout:
            raise RunFolderError(
                f"{self.path} is in use by another process; wait for it, or choose another folder with --out"
            ) from None
        except OSError as error:
            raise RunFolderError(f"{self.path}: cannot be used as a run folder ({error.strerror})") from None

    def close(self) -> None:
        """Give the lock back; a folder in which nothing was written goes with it."""
        if [entry.name for entry in self.path.iterdir()] == [".lock"]:
            (self.path / ".lock").unlink()
            self.path.rmdir()
        self._lock.release()

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints."""
        return self.path / "checkpoint"

    def read_json(self, name: str) -> dict[str, Any] | None:
        """A JSON file of the folder, or None where there is none. Raises `RunFolderError` if it is damaged."""
        try:
            content: dict[str, Any] = json.loads((self.path / name).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise RunFolderError(
                f"{self.path / name}: damaged ({error}); delete the run folder and run again"
            ) from None
        return content

    def write_json(self, name: str, value: Any) -> None:
        """Write a JSON file of the folder, whole."""
        write_atomic(self.path / name, json.dumps(value, indent=1, sort_keys=True) + "\n")

    def write_config(self, resolved: dict[str, Any]) -> None:
        """Write config.yaml."""
        write_atomic(self.path / "config.yaml", yaml.safe_dump(resolved, sort_keys=False, allow_unicode=True))

    def read_config(self) -> dict[str, Any] | None:
        """config.yaml as plain values, or None where there is none."""
        file = self.path / "config.yaml"
        try:
            values = yaml.safe_load(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (UnicodeDecodeError, yaml.YAMLError):
            values = None
        if not isinstance(values, dict):
            raise RunFolderError(f"{file}: damaged; delete the run folder and run again")
        return values

    # -- metrics ---------------------------------------------------------------------------------------------
    @property
    def _log(self) -> Path:
        return self.path / "metrics.jsonl"

    def append(self, rows: Iterable[Row]) -> None:
        """Add rows to metrics.jsonl. A line cut off by a crash is dropped by `rows`."""
        text = "".join(json.dumps(row) + "\n" for row in rows)
        with self._log.open("a", encoding="utf-8") as stream:
            stream.write(text)

    def rows(self) -> list[Row]:
        """All complete rows so far."""
        if not self._log.exists():
            return []
        rows: list[Row] = []
        for line in self._log.read_text(encoding="utf-8").splitlines(keepends=True):
            if line.endswith("\n"):
                rows.append(json.loads(line))
        return rows

    def truncate(self, last_round: int) -> list[Row]:
        """Forget rows of rounds after `last_round` (they will be run again); the rows that stay."""
        kept = [row for row in self.rows() if row["round"] <= last_round]
        write_atomic(self._log, "".join(json.dumps(row) + "\n" for row in kept))
        return kept

    def write_parquet(self, rows: list[Row]) -> None:
        """metrics.parquet from all rows: columns round, client, split, protocol, name, value."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        schema = pa.schema(
            [
                ("round", pa.int32()),
                ("client", pa.int64()),
                ("split", pa.string()),
                ("protocol", pa.string()),
                ("name", pa.string()),
                ("value", pa.float64()),
            ]
        )
        temporary = self.path / ".metrics.parquet"
        pq.write_table(pa.Table.from_pylist(list(rows), schema=schema), temporary)
        temporary.replace(self.path / "metrics.parquet")

    def clear(self) -> None:
        """Delete everything of a run from the folder, the lock excepted."""
        for name in ("config.yaml", "scenario.json", "env.json", "metrics.jsonl", "metrics.parquet"):
            (self.path / name).unlink(missing_ok=True)
        for name in ("summary.json", "report.html", ".metrics.parquet"):
            (self.path / name).unlink(missing_ok=True)
        shutil.rmtree(self.checkpoints, ignore_errors=True)
