"""Tuning before the cells, and how far cells and trials are. Every method tries the same values.

A trial's score is its validation accuracy, or that of the metric `evaluation.select_by`, by the rule by which the study
selects a round. Test data are not used."""

import contextlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from fedloom.core.errors import ConfigError, RunFolderError
from fedloom.core.files import json_text, write_atomic
from fedloom.core.text import Criterion
from fedloom.runs.config.kinds import overlaid
from fedloom.runs.config.run_config import RunConfig, parse
from fedloom.runs.storage.finished_runs import TRIALS, VALIDATION, assignments, read_choices, rule_of
from fedloom.runs.storage.log import curve
from fedloom.runs.storage.run_data import RunData, has_diverged
from fedloom.runs.storage.run_folder import RunFolder, folder_name
from fedloom.runs.studies.plan import Cell, StudyPlan, nested
from fedloom.runs.studies.study_folder import State, StudyFolder


@dataclass(frozen=True, slots=True)
class Trial:
    """One set of values that a group of cells (all seeds of a row) tries."""

    group: str
    tried: dict[str, Any]
    config: RunConfig = field(repr=False)

    @property
    def name(self) -> str:
        return f"{self.group}/trial/{assignments(self.tried)}"

    @property
    def folder(self) -> str:
        """The trial's run folder, below that of the study."""
        return f"{TRIALS}/{folder_name(self.config)}"


def trials_of(study: StudyPlan, cell: Cell) -> list[Trial]:
    """Return the trials of the group that `cell` belongs to, the same for all its seeds; empty without tuning.

    Raises `ConfigError` if there is no validation data to choose by, or for a value that the config refuses."""
    if not study.tried:
        return []
    first = next(candidate for candidate in study.cells if candidate.group == cell.group)
    trials = []
    for tried in study.tried:
        config = parse(overlaid(_with(first.values, tried), study.trials))
        refuse_without_validation(config, f"tune: {cell.group}")
        trials.append(Trial(cell.group, tried, config))
    return trials


Job = Cell | Trial


def jobs_of(study: StudyPlan, cells: Sequence[Cell]) -> list[Job]:
    """Return every run once, in the order of `cells`, each after its trials: early rows then finish early."""
    jobs: dict[str, Job] = {}
    for cell in cells:
        jobs |= {trial.folder: trial for trial in trials_of(study, cell)}
        jobs.setdefault(cell.folder, cell)
    return list(jobs.values())


def validation_value(result: RunData, criterion: Criterion) -> float:
    """Return a run's validation value by its selection of rounds. Raises `ConfigError` without one."""
    evaluation: Mapping[str, Any] = result.config.get("evaluation", {})
    rounds, values = curve(result.rows, criterion.name, "val")
    if not values:
        raise ConfigError(f"{result.folder}: no validation {criterion.name} to choose by")
    match evaluation.get("select", "last"):
        case "last":
            return values[-1]
        case "mean_last_k":
            return fmean(values[-int(evaluation.get("last_k", 10)) :])
        case _:
            best = criterion.best(rounds, values)
            return math.nan if best is None else dict(zip(rounds, values, strict=True))[best]


def trial_score(result: RunData, criterion: Criterion) -> float:
    """Return the validation value by which a run is chosen; NaN if it diverged: a model with non-finite outputs
    predicts the first class, and its accuracy must not win. Raises `ConfigError` without validation data."""
    value = validation_value(result, criterion)
    return math.nan if has_diverged(result.numbers) else value


class Choices:
    """Hyperparameters picked by a study's finished trials. Once recorded, a choice never changes.

    A call that runs the study passes the errors of earlier calls, by folder, because their trials run again; then new
    choices are recorded in the folder. With None they are only read."""

    def __init__(
        self, study: StudyPlan, study_folder: StudyFolder, *, earlier: Mapping[str, str] | None = None
    ) -> None:
        self._study, self._study_folder = study, study_folder
        self._records, self._earlier = earlier is not None, earlier or {}
        self._known: dict[str, dict[str, Any]] = {}

    def of(self, cell: Cell) -> tuple[Cell | None, str | None]:
        """Return the cell with the chosen values, or None while trials are missing; and the reason of a failure."""
        if not self._study.tried:
            return cell, None
        if cell.group not in self._known:
            trials = trials_of(self._study, cell)
            for trial in trials:
                if not self._study_folder.finished(trial.folder):
                    return None, self._failure(trial)
            # Groups may share a slug; the fingerprint of the first trial tells their files apart.
            slug = re.sub(r"[^\w.=-]+", "-", cell.group)
            name = f"choice-{slug}-{trials[0].config.fingerprint()[:8]}.json"
            record = self._study_folder.path / TRIALS / name
            if record.exists():
                self._known[cell.group] = read_choices(record)["chosen"]
            else:
                try:
                    results = [self._study_folder.result(trial.folder, trial.config) for trial in trials]
                    criterion = trials[0].config.evaluation.criterion()
                    scores = [trial_score(result, criterion) for result in results]
                except RunFolderError as damage:
                    return None, f"not tuned: {damage}"
                self._known[cell.group] = self._choose(record, cell.group, trials, scores)
        values = _with(cell.values, self._known[cell.group])
        return replace(cell, values=values, config=parse(values)), None

    def _failure(self, trial: Trial) -> str | None:
        """Return the error of a failed trial; None if it has not failed, or is being run again."""
        if self._study_folder.is_locked(trial.folder):  # asked first, as the holder of the lock may clear the error
            return None
        error = self._study_folder.error(trial.folder)
        if error is None or error == self._earlier.get(trial.folder):
            return None
        return f"not tuned: {trial.name}: {error.partition(chr(10))[0]}"

    def _choose(self, record: Path, group: str, trials: Sequence[Trial], scores: Sequence[float]) -> dict[str, Any]:
        criterion = trials[0].config.evaluation.criterion()
        by_trial = range(len(trials))
        # NaN loses against every number; of equal scores the first trial wins
        best = max(by_trial, key=lambda i: (scores[i] == scores[i], criterion.sign * scores[i], -i))
        if self._records:
            key, rule = f"{VALIDATION}{criterion.name}", rule_of(criterion)
            tried = [
                {"values": trial.tried, key: score, "folder": trial.folder, "seed": trial.config.seed}
                for trial, score in zip(trials, scores, strict=True)
            ]
            content = {"group": group, "rule": rule, "chosen": trials[best].tried, "trials": tried}
            write_atomic(record, json_text(content, indent=1))
        return trials[best].tried


def _with(values: Mapping[str, Any], tried: Mapping[str, Any]) -> dict[str, Any]:
    plain = dict(values)
    for key, value in tried.items():
        plain = overlaid(plain, nested(key, value))
    return plain


def refuse_without_validation(config: RunConfig, who: str) -> None:
    """Raise `ConfigError` if a config has no validation data to choose on."""
    scenario = config.scenario
    share = scenario.val if scenario.split is None else scenario.split.val
    if config.evaluation.protocol == "few-shot" or not share:
        tuned = ", in trials for the trials alone" if who.startswith("tune") else ""
        raise ConfigError(f"{who} has no validation data to choose on; set {scenario.val_key} above 0{tuned}")


def job_states(
    study: StudyPlan, study_folder: StudyFolder, cells: Sequence[Cell], jobs: Sequence[Job]
) -> tuple[dict[str, State], dict[str, State]]:
    """Return how far the trials among `jobs` are, and how far `cells` are, both by name. Nothing is written."""
    choices, states, spared = Choices(study, study_folder), dict[str, State](), study_folder.spared(study)
    for cell in cells:
        tuned, why = choices.of(cell)
        states[cell.name] = study_folder.state(tuned.folder, tuned.config) if tuned else "failed" if why else "left"
        if states[cell.name] == "left" and cell.name in spared:
            states[cell.name] = "spared"
    trials = {job.name: study_folder.state(job.folder, job.config) for job in jobs if isinstance(job, Trial)}
    return trials, states


def seconds_left(study_folder: StudyFolder, jobs: Sequence[Job]) -> float | None:
    """Forecast the seconds of `jobs` from the finished runs of the folder, by the mean seconds per round of their
    method, or of all methods while none of it has finished; None before any run has."""
    by_method: dict[str, list[float]] = {}
    for pattern in ("*/summary.json", f"{TRIALS}/*/summary.json"):
        for path in study_folder.path.glob(pattern):
            with contextlib.suppress(RunFolderError):  # a damaged run says nothing of the time
                numbers = RunFolder(path.parent).read_summary() or {}
                seconds = numbers["seconds"]["total"] / max(1, numbers["rounds"])
                by_method.setdefault(numbers["method"], []).append(seconds)
    measured = [seconds for times in by_method.values() for seconds in times]
    if not measured:
        return None
    return sum(job.config.rounds * fmean(by_method.get(job.config.method, measured)) for job in jobs)
