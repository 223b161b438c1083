"""Read from a study's folder which values tuning chose. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from fedloom.core.errors import RunFolderError
from fedloom.core.files import parse_json, read_file
from fedloom.core.text import ACCURACY, Criterion, counted, percent
from fedloom.runs.storage.run_data import RunData

TRIALS = "trials"
VALIDATION = "validation_"  # before the name of the measure, in the key of a trial's score


def rule_of(criterion: Criterion) -> str:
    """Return the rule by which a trial is chosen, in words."""
    return f"{'highest' if criterion.sign > 0 else 'lowest'} validation {criterion.name}; of equal ones the first"


def tuned_notes(results: Sequence[RunData]) -> list[str]:
    """Return one sentence on tuning for each study of these runs; empty if nothing was tuned."""
    notes = []
    for folder in dict.fromkeys(result.folder.parent for result in results if result.folder is not None):
        records = [read(path) for path in sorted((folder / TRIALS).glob("choice-*.json"))]
        if not records:
            continue
        keys = ", ".join(dict.fromkeys(key for record in records for key in record["chosen"]))
        trial_count = counted(max(len(record["trials"]) for record in records), "trial")
        rules = " or ".join(dict.fromkeys(record.get("rule") or rule_of(ACCURACY) for record in records))
        chosen = "; ".join(f"{record['group']} {_chosen(record)}" for record in records)
        notes.append(f"{keys} tuned per method on validation data ({trial_count} each, {rules}): {chosen}.")
    return notes


@dataclass(frozen=True, slots=True)
class TuningChoice:
    """The values that tuning chose for one group of cells.

    score: the validation measure of the chosen values, None if their trial diverged or has none; score_text with its
    unit. trials: the values of every trial with
    its score, as words.
    """

    group: str
    chosen: dict[str, Any]
    score: float | None
    score_text: str
    rule: str
    trials: list[str]


def tuning_choices(results: Sequence[RunData]) -> list[TuningChoice]:
    """Return the choices for all groups of the studies of these runs; empty if nothing was tuned."""
    folders = dict.fromkeys(result.folder.parent for result in results if result.folder is not None)
    records = [read(path) for folder in folders for path in sorted((folder / TRIALS).glob("choice-*.json"))]
    choices = []
    for record in records:
        name, score = _score(_chosen_trial(record))
        trials = [
            f"{assignments(trial.get('values') or {})}: {_score_text(*_score(trial))}" for trial in record["trials"]
        ]
        rule = record.get("rule") or rule_of(ACCURACY)
        text = _score_text(name, score)
        choices.append(TuningChoice(record["group"], record["chosen"], score, text, rule, trials))
    return choices


def tuned_keys(results: Sequence[RunData]) -> set[str]:
    """Return the keys that were tuned for runs of one study folder; all its groups tune the same keys."""
    folders = {result.folder.parent for result in results if result.folder is not None}
    paths = [path for folder in folders for path in sorted((folder / TRIALS).glob("choice-*.json"))[:1]]
    return {key for path in paths for key in read(path)["chosen"]}


def assignments(values: Mapping[str, Any]) -> str:
    """Format values as words: "optimizer.lr=0.1"."""
    return ",".join(f"{key}={value}" for key, value in values.items())


def read(path: Path) -> dict[str, Any]:
    """Read the tried and chosen values of a group of cells. Raises `RunFolderError` if the file is damaged."""
    try:
        record = parse_json(read_file(path))
        if _is_whole(record):
            return record
        why = "it lacks its group, its choice, or a score of a trial"
    except (OSError, ValueError) as error:
        why = str(error)
    raise RunFolderError(f"{path}: damaged ({why}); delete this file, and the study chooses again from its trials")


def _is_whole(record: Any) -> TypeGuard[dict[str, Any]]:
    match record:
        case {"group": str(), "chosen": dict(), "trials": [_, *_] as trials}:
            return all(_has_score(trial) for trial in trials)
    return False


def _has_score(trial: Any) -> bool:
    if not isinstance(trial, dict):
        return False
    name, score = _score(trial)
    return bool(name) and isinstance(score, int | float | None)


def _score(trial: Mapping[str, Any]) -> tuple[str, Any]:
    """Return the measure of a trial's score, and the score; None if the trial diverged, or does not define it."""
    key = next((key for key in trial if key.startswith(VALIDATION)), "")
    return key.removeprefix(VALIDATION), trial.get(key)


def _chosen_trial(record: Mapping[str, Any]) -> Mapping[str, Any]:
    trials: list[Mapping[str, Any]] = record["trials"]
    return next((trial for trial in trials if trial.get("values") == record["chosen"]), trials[0])


def _score_text(name: str, score: float | None) -> str:
    if score is None:
        return "diverged" if name == ACCURACY.name else f"{name} not defined"
    return f"{percent(score)} %" if name == ACCURACY.name else f"{name} {score:.4g}"


def _chosen(record: Mapping[str, Any]) -> str:
    return f"{assignments(record['chosen'])} ({_score_text(*_score(_chosen_trial(record)))})"
