"""A run on disk.
.fedloom (the mark of such a folder) · config.yaml (resolved) · scenario.json · metrics.jsonl while running,
metrics.parquet at the end · checkpoint/ · client_models/ · summary.json · evaluations/ · clients.json · drift.jsonl ·
predictions.parquet · env.json · report.html · clinical.* · report.yaml. Every file is written whole or not at all;
metrics and drift are appended line by line."""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from filelock import FileLock, Timeout

from fedloom.core import files
from fedloom.core.errors import RunFolderError
from fedloom.runs.storage import folders, schemas
from fedloom.runs.storage.folders import delete_round_folders
from fedloom.runs.storage.log import MetricsLog, Row, StoredRow

if TYPE_CHECKING:
    from fedloom.runs.config.run_config import RunConfig


PREDICTIONS = "predictions.parquet"
_CHECKSUMS, _CONTENT = "checksums", "content"
_KINDS = {_CONTENT, "numbers", "metrics", "config"}
# Files of a run, its report and its diagnosis, without the checkpoints. Earlier versions wrote .metrics.parquet.
_FILES = (
    *("config.yaml", "scenario.json", "env.json", "metrics.jsonl", "metrics.parquet", "summary.json", "clients.json"),
    *("drift.jsonl", "diagnosis.json", "report.html", ".metrics.parquet", PREDICTIONS, f".{PREDICTIONS}"),
    *("clinical.html", "clinical.md"),
)
EVALUATIONS = "evaluations"  # folder of the tests after training
_LONGEST = 1 << 20  # characters of a resolved config


class _StoredEvaluation(schemas.RunSummary):
    run: str | None  # sha256 of its last checkpoint
    evaluation: dict[str, bool | int | str | list[str] | list[dict[str, str | float | None]]]
    rows: list[StoredRow]
    client_details: dict[str, dict[str, dict[str, list[int]]]]


def folder_name(config: "RunConfig") -> str:
    """Return a run folder's name: the config keys that differ most often, and the fingerprint."""
    return f"{config.method}-{config.preset}-seed{config.seed}-{config.fingerprint()[:8]}"


class RunFolder:
    """The folder of one run, locked against other processes between `open` and `close`: its metrics (`log`), and the
    folders of its checkpoints, of the client models of named rounds, and, during the run, of client states."""

    def __init__(self, path: Path) -> None:
        self.path, self.states = path, path / ".states"
        self.checkpoints, self.client_models = self._round_folders = path / "checkpoint", path / "client_models"
        self.log = MetricsLog(path / "metrics.jsonl")
        self._lock = FileLock(path / folders.LOCK, timeout=0)

    def open(self) -> None:
        """Create, lock and mark the folder. Raises `RunFolderError` if it is in use, not writable, or of others."""
        try:
            folders.check(self.path, "run")
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock.acquire()
            folders.claim(self.path, "run")
        except Timeout:
            remedy = "wait for it, or choose another folder with out=..."
            raise RunFolderError(f"{self.path} is in use by another process; {remedy}") from None
        except (OSError, RunFolderError) as error:
            self._lock.release()
            if isinstance(error, RunFolderError):
                raise
            raise RunFolderError(f"{self.path}: cannot be used as a run folder ({error.strerror})") from None

    def close(self) -> None:
        """Give the lock back; a folder in which nothing was written goes with it."""
        # Before the lock is given back, because another process may write here as soon as it is.
        folders.remove_if_empty(self.path)
        self._lock.release()

    def check_files(self) -> None:
        """Raise `RunFolderError` for a link or a folder in the way of a file of the run; it may be a link itself."""
        places = (*_FILES, EVALUATIONS)
        folders.refuse_links([*(self.path / name for name in places), *self._round_folders, self.states])
        for folder in self._round_folders:
            folders.refuse_links([*folder.glob("round-*"), *folder.glob(".round-*.partial")])
        try:
            for name in _FILES:
                files.refuse_unwritable(self.path / name)
        except OSError as error:
            problem = f"in the way of a file of the run ({error.strerror}); choose another folder with out=..."
            raise RunFolderError(f"{error.filename}: {problem}") from None

    def read_json(self, name: str) -> dict[str, Any] | None:
        """A JSON file of the folder, or None where there is none. Raises `RunFolderError` if it is damaged."""
        content, _ = self._read_json(name)
        return content

    def _read_json(self, name: str) -> tuple[dict[str, Any] | None, dict[str, Any]]:
        """The content of a JSON file, and its checksums; none in files of earlier versions."""
        try:
            content = files.parse_json(self._text(name) or "null")
        except ValueError as error:
            raise self._damaged(name, error) from None
        if content is None:
            return None, {}
        sums = content.pop(_CHECKSUMS, {}) if isinstance(content, dict) else None
        if not isinstance(sums, dict):
            raise self._damaged(name, "no object")
        sections = [value for value in content.values() if isinstance(value, dict) and value]
        if not sums.keys() <= _KINDS or any(section.keys() <= _KINDS for section in sections):
            raise self._damaged(name, "its checksums are called otherwise")
        if _CONTENT in sums and sums[_CONTENT] != files.json_digest(content):
            raise self._damaged(name, "it does not match its checksum")
        return content, sums

    def read_scenario(self) -> dict[str, Any]:
        """scenario.json, empty where there is none. Raises `RunFolderError` if it is damaged."""
        content = self.read_json("scenario.json") or {}
        if why := schemas.error_in_scenario(content):
            raise self._damaged("scenario.json", why)
        return content

    def _damaged(self, name: str, why: object, advice: str = "delete the run folder and run again") -> RunFolderError:
        advice = "delete this file, and evaluate again" if name.startswith(EVALUATIONS) else advice
        return RunFolderError(f"{self.path / name}: damaged ({why}); {advice}")

    def write_json(self, name: str, value: Mapping[str, Any], indent: int | None = 1, **sums: str) -> None:
        """Write `value` as the JSON file `name` of the folder, whole; `sums` replace the checksum of its content."""
        content = files.parse_json(files.json_text(value))  # keys are words then, as they will be read
        sums = sums or {_CONTENT: files.json_digest(content)}
        files.write_atomic(
            self.path / name, files.json_text(content | {_CHECKSUMS: sums}, indent=indent, sort_keys=True) + "\n"
        )

    def write_config(self, resolved: dict[str, Any]) -> None:
        """Write config.yaml."""
        files.write_atomic(self.path / "config.yaml", yaml.safe_dump(resolved, sort_keys=False, allow_unicode=True))

    def read_config(self) -> dict[str, Any] | None:
        """config.yaml as plain values, or None where there is none."""
        if (text := self._text("config.yaml")) is None:
            return None
        try:
            values = files.parse_yaml(text, _LONGEST)
        except yaml.YAMLError:
            values = None
        is_config = isinstance(values, dict) and all(isinstance(key, str) for key in values)
        if why := schemas.first_error(schemas.ResolvedConfig, values) if is_config else "it holds no keys with values":
            raise self._damaged("config.yaml", why)
        config: dict[str, Any] = values
        return config

    def _text(self, name: str) -> str | None:
        try:
            return files.read_file(self.path / name).decode()
        except FileNotFoundError:
            return None
        except UnicodeDecodeError as error:
            raise self._damaged(name, error) from None
        except OSError as error:
            raise RunFolderError(f"{self.path / name}: cannot be read ({error.strerror})") from None

    # -- results ---------------------------------------------------------------------------------------------
    def write_summary(self, numbers: dict[str, Any]) -> None:
        """Write summary.json, with checksums of the numbers, of the metrics that they come from, and of the config."""
        self.write_json(
            "summary.json",
            numbers,
            numbers=files.json_digest(
                files.parse_json(files.json_text(numbers))
            ),  # keys are words then, as they will be read
            metrics=self.log.flush().sha256,
            config=files.json_digest(self.read_config() or {}),
        )

    def read_summary(self) -> dict[str, Any] | None:
        """The numbers of summary.json, if any. Raises `RunFolderError` if they or files beside them were changed."""
        numbers, sums = self._read_json("summary.json")
        if numbers is None:
            return None
        config = self.read_config()
        if missing := [key for key in schemas.SUMMARY_KEYS if key not in numbers]:
            why: str | None = f"it lacks {', '.join(missing)}"
        elif sums.get("numbers", files.json_digest(numbers)) != files.json_digest(numbers):
            why = "its numbers are not those that the run wrote"
        else:
            why = schemas.first_error(schemas.RunSummary, numbers)
        if why:
            raise self._damaged("summary.json", why, "delete this file and run again")
        if sums and sums.get("metrics") != self.log.position().sha256:
            advice = "put the file back, or delete the run folder and run again"
            raise self._damaged(self.log.path.name, "rows were lost or changed after the run", advice)
        if config is not None and sums.get("config", files.json_digest(config)) != files.json_digest(config):
            raise self._damaged("config.yaml", "it is not the config of summary.json")
        return schemas.LATER_DEFAULTS | numbers

    def read_evaluation(self, digest: str, numbers: Mapping[str, Any]) -> dict[str, Any] | None:
        """The tests `digest` of the run with these `numbers` (summary.json); None without them, or if they are of an
        earlier training. Raises `RunFolderError` if they are damaged."""
        content = self.read_json(name := f"{EVALUATIONS}/{digest}.json")
        if content is None:
            return None
        if why := schemas.first_error(_StoredEvaluation, {**numbers, **content}):
            raise self._damaged(name, why)
        return content if content["run"] == numbers.get("checkpoint_sha256") else None

    def write_parquet(self, rows: list[Row]) -> None:
        """metrics.parquet from all rows: columns round, client, split, protocol, name, value."""
        import numpy as np
        import pyarrow as pa
        import pyarrow.json as pj
        import pyarrow.parquet as pq

        types = {"round": pa.int32(), "client": pa.int64(), "value": pa.float64()}
        schema = pa.schema([(key, types.get(key, pa.string())) for key in Row.__annotations__])
        lines = io.BytesIO("\n".join(map(files.json_text, rows)).encode())
        # Building a table from Python lists would import pandas, which takes half a second; reading JSON does not.
        table = pj.read_json(lines, parse_options=pj.ParseOptions(explicit_schema=schema)).combine_chunks()
        values = np.array([row["value"] for row in rows], np.float64)  # JSON has no NaN and no infinity
        column = pa.Array.from_buffers(pa.float64(), len(rows), [None, pa.py_buffer(values.tobytes())])
        content = io.BytesIO()
        pq.write_table(table.set_column(schema.get_field_index("value"), schema.field("value"), column), content)
        files.write_atomic(self.path / "metrics.parquet", content.getvalue())

    def clear(self) -> None:
        """Delete what fedloom wrote for a run; all else in the folder stays."""
        for name in _FILES:
            (self.path / name).unlink(missing_ok=True)
        for path in (self.path / EVALUATIONS).glob("*.json"):
            path.unlink()
        for folder in self._round_folders:
            delete_round_folders(folder)
