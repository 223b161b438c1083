"""Finds finished runs in folders, their versions, and the values that tuning chose for them. Needs no torch."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

from fedloom._version import __version__
from fedloom.core.errors import ConfigError, RunFolderError, short_repr
from fedloom.core.files import parse_json, read_file
from fedloom.core.text import ACCURACY, Criterion, counted, listed, percent
from fedloom.runs.storage.data_record import KEY, refuse_mixed_data
from fedloom.runs.storage.run_data import RunData
from fedloom.runs.storage.run_folder import RunFolder


def version_of(run: Path) -> str | None:
    """Return the version that made a run or last resumed it; None if env.json, which may be damaged, does not say."""
    versions = (RunFolder(run).read_json("env.json") or {}).get("versions", {})
    if not isinstance(versions, dict):
        remedy = "delete the run folder and run again"
        raise RunFolderError(f"{run / 'env.json'}: damaged (versions = {short_repr(versions)}); {remedy}")
    version = versions.get("fedloom")
    return str(version) if version else None


def refuse_mixed_results(results: Iterable[RunData]) -> None:
    """Raise `ConfigError` for runs of different versions, and `RunFolderError` for runs of one source on other data."""
    in_folders = {result.folder: result for result in results if result.folder is not None}
    refuse_mixed({str(folder): version_of(folder) for folder in in_folders})
    refuse_mixed_data((str(folder), result.scenario.get(KEY)) for folder, result in in_folders.items())


def refuse_mixed(versions: Mapping[str, str | None], more: bool = False) -> None:
    """Raise `ConfigError` for runs of different versions."""
    recorded = {run: version for run, version in versions.items() if version is not None}
    counts = Counter(recorded.values())
    # `more` says that this version is about to add runs.
    if len(counts.keys() | ({__version__} if more else set())) < 2:
        return
    counted_versions = listed(f"{counted(n, 'run')} of {version}" for version, n in sorted(counts.items()))
    foreign_run = next(run for run, version in recorded.items() if version != __version__)
    raise ConfigError(
        f"runs of different versions of fedloom: {counted_versions}; {foreign_run} is of {recorded[foreign_run]}, "
        f"this is {__version__}: keep each version in a separate folder, or join them with --allow-mixed"
    )


_OF_A_RUN = ("config.yaml", "summary.json")

STUDY_FILE = "study.yaml"
_OTHER = "no run in it"


@dataclass(slots=True)
class CollectedRuns:
    """Finished runs, and the folders that are left out, each with the reason."""

    results: list[RunData] = field(default_factory=list)
    left_out: list[tuple[Path, str]] = field(default_factory=list)


def search_runs(folders: Sequence[Path]) -> CollectedRuns:
    """Return all finished runs in and below `folders`, each once, in the order of their paths, without damaged ones and
    trials of tuning; links are not followed. Raises `ConfigError` for paths that are no folders."""
    collected, visited = CollectedRuns(), set[Path]()
    for folder in folders:
        if not folder.is_dir():
            raise ConfigError(f"{folder}: no such folder; give run folders such as runs/{'{name}'}")
        if not _search(folder, collected, visited):
            collected.left_out.append((folder, _OTHER))
    return collected


def is_run(folder: Path) -> bool:
    """Whether a folder is that of one run, finished or not."""
    return any((folder / name).exists() for name in _OF_A_RUN)


def unfinished(path: Path) -> str:
    """Return why the run in a folder gives no result."""
    folder = RunFolder(path)
    config = folder.read_config()
    if config is None:
        return "damaged: config.yaml is missing"
    if "scenario" not in config:
        return "its config.yaml is not of a run"
    last = max((row["round"] for row in folder.log.rows()), default=0)
    return f"unfinished, {last} of {config.get('rounds')} rounds"


def refuse_none(collected: CollectedRuns) -> None:
    """Raise `ConfigError`, with the reasons, if no finished run was found."""
    if collected.results:
        return
    why = "; ".join(f"{path}: {reason}" for path, reason in collected.left_out[:3])
    remainder = f"; and {len(collected.left_out) - 3} more" if len(collected.left_out) > 3 else ""
    raise ConfigError(f"no finished run there: {why}{remainder}")


def _search(folder: Path, collected: CollectedRuns, visited: set[Path]) -> bool:
    """Search a folder and those below it, once; return whether there is any run, finished or not."""
    # True: a folder that is given twice, or lies below another one, is reported where it is found first.
    if folder.resolve() in visited:
        return True
    visited.add(folder.resolve())
    holds_run = is_run(folder)
    try:
        left_out = "checkpoint" if holds_run else TRIALS if (folder / STUDY_FILE).exists() else ""
        folders = (path for path in folder.iterdir() if path.is_dir() and not path.is_symlink())
        inner = sorted(path for path in folders if path.name != left_out and not path.name.startswith("."))
    except OSError as error:
        collected.left_out.append((folder, f"cannot be read ({error.strerror})"))
        return True
    if holds_run:
        _read(folder, collected)
    without = [path for path in inner if not _search(path, collected, visited)]
    anything = holds_run or len(without) < len(inner)
    if anything and not holds_run:
        collected.left_out += [(path, _OTHER) for path in without]
    return anything


def _read(folder: Path, collected: CollectedRuns) -> None:
    try:
        result = RunData.read(folder)
        if result is not None:
            version_of(folder)  # raises for a damaged env.json, which is needed to join results
            collected.results.append(result)
        else:
            collected.left_out.append((folder, unfinished(folder)))
    except RunFolderError as error:
        collected.left_out.append((folder, f"damaged: {error}"))


# -- values that tuning chose ------------------------------------------------------------------------------------------
TRIALS = "trials"
VALIDATION = "validation_"  # before the name of the measure, in the key of a trial's score


def rule_of(criterion: Criterion) -> str:
    """Return the rule by which a trial is chosen, in words."""
    return f"{'highest' if criterion.sign > 0 else 'lowest'} validation {criterion.name}; of equal ones the first"


def tuned_notes(results: Sequence[RunData]) -> list[str]:
    """Return one sentence on tuning for each study of these runs; empty if nothing was tuned."""
    notes = []
    for records in _choices_by_study(results):
        choices = [_choice(record) for record in records]
        keys = ", ".join(dict.fromkeys(key for choice in choices for key in choice.chosen))
        trial_count = counted(max(len(choice.trials) for choice in choices), "trial")
        rules = " or ".join(dict.fromkeys(choice.rule for choice in choices))
        chosen = "; ".join(f"{c.group} {assignments(c.chosen)} ({c.score_text})" for c in choices)
        notes.append(f"{keys} tuned per method on validation data ({trial_count} each, {rules}): {chosen}.")
    return notes


@dataclass(frozen=True, slots=True)
class TuningChoice:
    """The values chosen for a group of cells, their validation score (None without one), and a text for each trial."""

    group: str
    chosen: dict[str, Any]
    score: float | None
    score_text: str
    rule: str
    trials: list[str]


def tuning_choices(results: Sequence[RunData]) -> list[TuningChoice]:
    """Return the choices for all groups of the studies of these runs; empty if nothing was tuned."""
    return [_choice(record) for records in _choices_by_study(results) for record in records]


def _choice(record: Mapping[str, Any]) -> TuningChoice:
    trials = [(trial.get("values") or {}, *_score(trial)) for trial in record["trials"]]
    chosen = record["chosen"]
    _, name, score = next((trial for trial in trials if trial[0] == chosen), trials[0])
    texts = [f"{assignments(values)}: {_score_text(*rest)}" for values, *rest in trials]
    # Choices of versions without `select_by` lack the rule, and were made by accuracy.
    rule = record.get("rule") or rule_of(ACCURACY)
    return TuningChoice(record["group"], chosen, score, _score_text(name, score), rule, texts)


def tuned_keys(results: Sequence[RunData]) -> set[str]:
    """Return the keys that were tuned for runs of one study folder; all its groups tune the same keys."""
    return {key for records in _choices_by_study(results) for key in records[0]["chosen"]}


def _choices_by_study(results: Sequence[RunData]) -> list[list[dict[str, Any]]]:
    folders = dict.fromkeys(result.folder.parent for result in results if result.folder is not None)
    paths = (sorted((folder / TRIALS).glob("choice-*.json")) for folder in folders)
    return [[read_choices(path) for path in of_study] for of_study in paths if of_study]


def assignments(values: Mapping[str, Any]) -> str:
    """Format values as words: "optimizer.lr=0.1"."""
    return ",".join(f"{key}={value}" for key, value in values.items())


def read_choices(path: Path) -> dict[str, Any]:
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
            scores = [_score(trial) if isinstance(trial, dict) else ("", None) for trial in trials]
            return all(name and isinstance(score, int | float | None) for name, score in scores)
    return False


def _score(trial: Mapping[str, Any]) -> tuple[str, Any]:
    """Return the measure of a trial's score, and the score; None if the trial diverged, or does not define it."""
    key = next((key for key in trial if key.startswith(VALIDATION)), "")
    return key.removeprefix(VALIDATION), trial.get(key)


def _score_text(name: str, score: float | None) -> str:
    if score is None:
        return "diverged" if name == ACCURACY.name else f"{name} not defined"
    return f"{percent(score)} %" if name == ACCURACY.name else f"{name} {score:.4g}"
