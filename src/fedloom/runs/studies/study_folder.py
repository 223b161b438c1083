"""A study on disk, shared by processes and machines.

.fedloom (the mark) · study.yaml (the whole study) · families.json (which rows are compared together, as planned before
the first run) · looks.json (the words at each number of seeds, where seeds are added) · a run folder for each cell ·
NAME.error.txt for each cell that failed · trials/ (run folders of the tuning, and its choices) · .locks/."""

import contextlib
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import yaml
from filelock import FileLock, Timeout
from pydantic import TypeAdapter

from fedloom.core.errors import ConfigError, RunFolderError
from fedloom.core.files import json_digest, json_text, parse_json, parse_yaml, write_atomic
from fedloom.core.text import ALPHA, MARGIN, lists_by_key
from fedloom.runs.config.run_config import RunConfig
from fedloom.runs.storage import folders
from fedloom.runs.storage.finished_runs import TRIALS, version_of
from fedloom.runs.storage.run_data import LookedAt, Plan, RunData
from fedloom.runs.storage.schemas import difference
from fedloom.runs.studies.plan import StudyPlan, parse_study, relevant

STUDY = "study.yaml"
FAMILIES, LOOKS = "families.json", "looks.json"
_LOOKS = TypeAdapter(list[LookedAt])
LOCKS = ".locks"
COPIES = ".copies"  # unfinished copies of killed processes; the next copy of the same cell clears it
State = Literal["done", "failed", "under way", "begun", "left", "spared"]
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
            raise RunFolderError(f"{self.path} holds another study ({how}); choose another folder with out=...")
        for key, planned in _fixed(existing or study).items():
            if (value := _fixed(study)[key]) != planned:
                why = f"{self.path} was planned with {planned}, before it ran; choose another out=..."
                raise RunFolderError(f"{key} = {value}: {why}")

    def claim(self, study: StudyPlan) -> None:
        """Create and mark the folder for this study, or for more cells of the study there. Raises as `check`."""
        with folders.creating(self.path, "study"):
            folders.refuse_links(self.path / name for name in (LOCKS, TRIALS, COPIES))
            with self.locked():
                self.check(study)
                folders.claim(self.path, "study")
                existing = read(self.path)
                folders_of = [{cell.folder for cell in plan.cells} for plan in (existing, study) if plan]
                renamed = existing and folders_of[0] == folders_of[1] and {*existing.families} == {*self.plans()}
                if renamed or not (self.path / FAMILIES).exists():
                    planned = existing if existing and not renamed else study
                    write_atomic(self.path / FAMILIES, json_text(_record(planned)))
                if existing is None or (existing.values != study.values and study.holds(existing)):  # grown, or renamed
                    write_atomic(self.path / STUDY, yaml.safe_dump(study.values, sort_keys=False, allow_unicode=True))

    def plans(self) -> Mapping[str, Plan]:
        """The planned comparisons of each row, by its name, with the last looks at it. Other names are "added later";
        without a record, nothing was planned."""
        path, looks = self.path / FAMILIES, self.looks()
        try:
            record = parse_json(path.read_text(encoding="utf-8"))
            added = Plan(record["sha256"], "added later", record.get("margin", MARGIN))
            plans = defaultdict(lambda: added)
            for family in record["families"]:
                planned = replace(added, family=family["name"], seeds=record["seeds"], sequential="looks" in record)
                for row in family["members"]:
                    plans[row] = replace(planned, looks={look.protocol: look for look in looks if look.row == row})
            return plans
        except FileNotFoundError:
            return defaultdict(Plan)
        except (ValueError, KeyError, TypeError) as error:
            raise RunFolderError(f"{path}: damaged ({error!r}); restore it from a copy of the folder") from None

    def looks(self) -> list[LookedAt]:
        """The looks at rows of a study that adds seeds until they are decided, in their order."""
        path = self.path / LOOKS
        try:
            return _LOOKS.validate_json(path.read_bytes())
        except FileNotFoundError:
            return []
        except ValueError as error:
            why = " ".join(str(error).split())
            raise RunFolderError(f"{path}: damaged ({why}); restore it from a copy of the folder") from None

    def record_looks(self, looks: Sequence[LookedAt]) -> None:
        """Record looks, unless another process has done so."""
        with self.locked():
            recorded = self.looks()
            recorded_keys = {(look.row, look.protocol, *look.seeds) for look in recorded}
            recorded += [look for look in looks if (look.row, look.protocol, *look.seeds) not in recorded_keys]
            write_atomic(self.path / LOOKS, _LOOKS.dump_json(recorded, indent=1).decode())

    def spared(self, study: StudyPlan) -> set[str]:
        """The cells whose row stopped with fewer seeds, because it is decided in all its protocols, or diverged."""
        last: dict[str, dict[str, LookedAt]] = {}
        for look in self.looks() if study.looks else ():
            last.setdefault(look.row, {})[look.protocol] = look
        stops = {
            row: max(len(look.seeds) for look in of.values())
            for row, of in last.items()
            if not {look.word for look in of.values()} & {"undecided", "baseline"}
        }
        numbers = study.numbered()
        return {cell.name for cell in study.cells if numbers[cell.name] >= stops.get(cell.group, math.inf)}

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


def _fixed(study: StudyPlan) -> dict[str, Any]:
    """Return what a study fixes about its comparisons before it runs; a number of seeds may grow."""
    seeds = study.values["seeds"] if study.looks else "a number or a list"
    return {"primary": study.values.get("primary", []), "margin": study.values.get("margin", MARGIN), "seeds": seeds}


def _record(study: StudyPlan) -> dict[str, Any]:
    """Return the plan of a study's comparisons: families with members and alpha, margin, seeds, and a hash of it."""
    members = lists_by_key((name, group) for group, name in study.families.items())
    families = [{"name": name, "alpha": ALPHA, "members": groups} for name, groups in members.items()]
    seeds = sorted({cell.config.seed for cell in study.cells})
    record = {"families": families, "margin": _fixed(study)["margin"], "seeds": seeds}
    record |= {"looks": study.looks} if study.looks else {}
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
