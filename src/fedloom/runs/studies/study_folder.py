"""A study on disk, shared by processes and machines.

.fedloom (the mark) · study.yaml (the whole study) · families.json (which rows are compared together, as planned before
the first run) · a run folder for each cell · NAME.error.txt for each cell that failed · trials/ (run folders of the
tuning, and its choices) · .locks/."""

import contextlib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import yaml
from filelock import FileLock, Timeout

from fedloom.core.errors import ConfigError, RunFolderError
from fedloom.core.files import json_digest, json_text, parse_json, parse_yaml, write_atomic
from fedloom.core.text import ALPHA
from fedloom.runs.config.run_config import RunConfig
from fedloom.runs.storage import folders
from fedloom.runs.storage.finished_runs import TRIALS, version_of
from fedloom.runs.storage.run_data import RunData
from fedloom.runs.storage.schemas import difference
from fedloom.runs.studies.plan import StudyPlan, parse_study, relevant

STUDY = "study.yaml"
FAMILIES = "families.json"
LOCKS = ".locks"
COPIES = ".copies"  # unfinished copies of killed processes; the next copy of the same cell clears it
State = Literal["done", "failed", "under way", "begun", "left"]
_ERROR = ".error.txt"
_LONGEST = 1 << 20  # characters of a study with all its configs
_WAIT = 30.0  # seconds until another process has marked the folder


class StudyFolder:
    """The folder of a study."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def check(self, study: StudyPlan) -> None:
        """Raise `RunFolderError` unless the folder is empty, or its study's cells include this one's or vice versa."""
        folders.check(self.path, "study")
        existing = read(self.path)
        if existing is not None and not (existing.holds(study) or study.holds(existing)):
            how = difference(relevant(existing.values), relevant(study.values)) or "made by another version of fedloom"
            raise RunFolderError(f"{self.path} holds another study ({how}); choose another folder with --out")
        primary, planned = (plan and plan.values.get("primary", []) for plan in (study, existing))
        if planned is not None and primary != planned:
            raise RunFolderError(
                f"primary = {primary}: {self.path} was planned with {planned}, before it ran; choose another --out"
            )

    def claim(self, study: StudyPlan) -> None:
        """Create and mark the folder for this study, or for more cells of the study there. Raises as `check`."""
        with folders.creating(self.path, "study"):
            folders.refuse_links(self.path / name for name in (LOCKS, TRIALS, COPIES))
            with self.locked():
                self.check(study)
                folders.claim(self.path, "study")
                existing = read(self.path)
                folders_of = [{cell.folder for cell in plan.cells} for plan in (existing, study) if plan]
                renamed = existing and folders_of[0] == folders_of[1] and {*existing.families} == {*self.families()}
                if renamed or not (self.path / FAMILIES).exists():
                    planned = existing if existing and not renamed else study
                    write_atomic(self.path / FAMILIES, json_text(_record(planned)))
                if existing is None or (existing.values != study.values and study.holds(existing)):  # grown, or renamed
                    write_atomic(self.path / STUDY, yaml.safe_dump(study.values, sort_keys=False, allow_unicode=True))

    def families(self) -> Mapping[str, str]:
        """The planned family of each row, by its name; "added later" for other names, and empty without a record."""
        path = self.path / FAMILIES
        try:
            record = parse_json(path.read_text(encoding="utf-8"))
            by_row = {member: family["name"] for family in record["families"] for member in family["members"]}
            return defaultdict(lambda: "added later", by_row)
        except FileNotFoundError:
            return defaultdict(str)
        except (ValueError, KeyError, TypeError) as error:
            raise RunFolderError(f"{path}: damaged ({error!r}); restore it from a copy of the folder") from None

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder's own lock, for files that all processes write. Raises `RunFolderError` after a timeout."""
        try:
            lock = FileLock(self.path / folders.LOCK, timeout=_WAIT).acquire()
        except Timeout:
            raise RunFolderError(f"{self.path} is locked by another process; wait for it") from None
        with lock:
            yield

    def cell(self, folder: str) -> Path:
        """Return the path of a run folder by its name, which may be below `trials/`."""
        return self.path / folder

    def finished(self, folder: str) -> bool:
        """Whether the run of this folder has finished."""
        return (self.cell(folder) / "summary.json").exists()

    def result(self, folder: str, config: RunConfig) -> RunData:
        """Return the result of a finished run. Raises `RunFolderError` for damaged files and another config."""
        try:
            result = RunData.read(self.cell(folder))
            version_of(self.cell(folder))  # raises for a damaged env.json, which is needed to join results
        except RunFolderError as damage:
            raise RunFolderError(f"{damage}; the run folder is {self.cell(folder)}") from None
        if result is None:
            raise RunFolderError(
                f"{self.cell(folder)}: its config.yaml or summary.json is missing; delete this folder and run again"
            )
        if result.numbers.get("fingerprint") != config.fingerprint():
            how = difference(result.config, config.resolved()) or "made by another version of fedloom"
            raise RunFolderError(
                f"{self.cell(folder)} holds a run of another config ({how}); delete this folder, and the same command "
                "runs it again"
            )
        return result

    def state(self, folder: str, config: RunConfig) -> State:
        """Return the state of a cell, without writing; a finished cell that gives no `result` has failed."""
        if self.finished(folder):
            try:
                self.result(folder, config)
            except RunFolderError:
                return "failed"
            return "done"
        if self.is_locked(folder):
            return "under way"
        if self.error(folder) is not None:
            return "failed"
        return "begun" if (self.cell(folder) / "checkpoint").exists() else "left"

    def is_locked(self, folder: str) -> bool:
        """Whether another process holds a cell's lock. Nothing is written."""
        if not self._lock(folder).exists():
            return False
        with self.cell_lock(folder) as locked:
            return not locked

    @contextlib.contextmanager
    def cell_lock(self, folder: str) -> Iterator[bool]:
        """Hold a cell's lock; gives False if another process holds it. The system frees the lock with its process."""
        self._lock(folder).parent.mkdir(exist_ok=True)
        try:
            lock = FileLock(self._lock(folder), timeout=0).acquire()
        except Timeout:
            yield False
            return
        with lock:
            yield True

    def errors(self) -> dict[str, str]:
        """Return the errors of the last attempts of all cells and trials, by folder."""
        error_files = [*self.path.glob(f"*{_ERROR}"), *self.path.glob(f"{TRIALS}/*{_ERROR}")]
        names = [str(path.relative_to(self.path)).removesuffix(_ERROR) for path in error_files]
        errors = ((name, self.error(name)) for name in names)
        return {name: text for name, text in errors if text is not None}  # another process may clear one meanwhile

    def error(self, folder: str) -> str | None:
        """Return the error of a cell's last attempt; None if it did not fail."""
        try:
            return self._error(folder).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None

    def write_error(self, folder: str, text: str) -> None:
        """Write the error of a cell, with its message in the first line."""
        write_atomic(self._error(folder), text)

    def clear_error(self, folder: str) -> None:
        """Delete the error of a cell that has finished."""
        self._error(folder).unlink(missing_ok=True)

    def _lock(self, folder: str) -> Path:
        return self.path / LOCKS / f"{folder.replace('/', '-')}.lock"

    def _error(self, folder: str) -> Path:
        cell = self.cell(folder)
        return cell.with_name(f"{cell.name}{_ERROR}")


def _record(study: StudyPlan) -> dict[str, Any]:
    """Return the planned families of a study: members, alpha, seeds, and a hash of it all."""
    members: dict[str, list[str]] = {}
    for group, name in study.families.items():
        members.setdefault(name, []).append(group)
    families = [{"name": name, "alpha": ALPHA, "members": groups} for name, groups in members.items()]
    record = {"families": families, "seeds": sorted({cell.config.seed for cell in study.cells})}
    return record | {"sha256": json_digest(record)}


def read(path: Path) -> StudyPlan | None:
    """Return the study of a folder, as the present code understands it; None if there is none.

    Raises `RunFolderError` if its file is damaged or has content that this version does not know."""
    try:
        values: Any = parse_yaml((path / STUDY).read_text(encoding="utf-8"), _LONGEST)
        return parse_study(values)
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, AttributeError, yaml.YAMLError, OSError, ConfigError) as error:
        why = " ".join(str(error).split())
        raise RunFolderError(f"{path / STUDY}: not a study that this version can read ({why})") from None
