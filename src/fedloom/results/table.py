"""Group runs that differ in the seed only, and make one row of numbers per group.

Imports neither torch nor matplotlib, because the command line prints the same rows."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from fedloom.core.text import distinct_notes, flat, listed, lists_by_key
from fedloom.results.comparability import OWN_COLUMNS, key_words, own_prefixes, setting_keys, telling
from fedloom.results.difference import STEP
from fedloom.results.group import MAIN_PROTOCOL, Group, ResultRow, mean_std
from fedloom.runs.storage.finished_runs import tuned_keys
from fedloom.runs.storage.run_data import SECONDS, Plan, RunData, has_diverged
from fedloom.runs.storage.schemas import EXECUTION


def _settings_agree(results: Sequence[RunData], keys: Sequence[Iterable[tuple[str, str]]]) -> bool:
    """Whether the settings that runs are said to be in are those of one study, or mean the same keys in all studies."""
    studies = {result.folder.parent for result in results if result.folder and result.cell}
    if len(studies) < 2:
        return True
    tuned = {
        study: tuned_keys([result for result in results if result.folder and result.folder.parent == study][:1])
        for study in studies
    }
    named = set()
    for result, pairs in zip(results, keys, strict=True):
        if result.folder and result.cell:
            own, free = own_prefixes(result.numbers["method"]), OWN_COLUMNS | tuned[result.folder.parent]
            setting = frozenset((key, value) for key, value in pairs if key not in free and not key.startswith(own))
            named.add((result.cell[0], setting))
    return len({name for name, _ in named}) == len({setting for _, setting in named}) == len(named)


def _without_settings(results: Sequence[RunData]) -> list[RunData]:
    """Return runs without the names of their settings, each once for each row that still differs."""
    distinct: dict[object, RunData] = {}
    for number, result in enumerate(results):
        cell = result.cell and ("", result.cell[1])
        place = number if result.folder is None else (result.folder, result.numbers["protocol"], cell)
        distinct.setdefault(place, replace(result, cell=cell))
    return list(distinct.values())


def _name_by_study(groups: Sequence[Group], told: bool) -> None:
    """Give groups the labels of their study instead of those made of keys.

    Rows whose labels would be equal keep those made of keys, and lose their names. told: whether labels tell the keys
    of the setting, because its name does not."""
    cells = [group.row["cell"] for group in groups]
    several = len({cell and cell[0] for cell in cells}) > 1  # whether there are several settings
    names = [_name(group, several, told) for group in groups]
    labels = [
        f"{name} ({group.row['protocol']})" if name and names.count(name) > 1 else name
        for group, name in zip(groups, names, strict=True)
    ]
    for group, label in zip(groups, labels, strict=True):
        if label and labels.count(label) == 1:
            group.row["label"] = label
        else:
            group.row["cell"] = None


def _name(group: Group, several: bool, told: bool) -> str:
    """Return the name of a group in its study, without its protocol; empty if there is none."""
    if group.row["cell"] is None:
        return ""
    name = "/".join(filter(None, group.row["cell"] if several else group.row["cell"][1:]))
    words = key_words(setting_keys(group.row)) if told else ""
    return f"{name} ({words})" if words else name


_NOT_COMPARED = {"seed", *EXECUTION}
_DEALT = "scenario.seed"
_SEVERAL = "evaluation.protocols"  # a run in several protocols compares with runs in one of them

_Key = tuple[tuple[str, str], ...]


def result_table(results: Sequence[RunData]) -> list[ResultRow]:
    """Return one row per group of runs that differ in the seed only, in the order in which they first appear."""
    return [group.row for group in grouped(results)]


def grouped(results: Sequence[RunData]) -> list[Group]:
    """Group runs that differ in the seed only. Repeated seeds are left out: they shrink the std without evidence.

    A run that was tested in several protocols is in a group of each, protocol by protocol; one that its study has in
    several rows, because their configs are equal, is in each of them."""
    results = by_protocol(results)
    run_keys = _keys(results)
    told = not _settings_agree(results, run_keys)  # whether keys have to tell settings apart
    if told:
        results = _without_settings(results)
        run_keys = _keys(results)
    runs_by_row = lists_by_key(zip(_row_keys(results, run_keys), results, strict=True))
    keys = [dict(key) for key, _ in runs_by_row]
    shared = {name for name in keys[0] if all(key.get(name) == keys[0][name] for key in keys)} if keys else set()
    groups = []
    for key, runs in zip(keys, runs_by_row.values(), strict=True):
        siblings = [sibling for sibling in keys if sibling["method"] == key["method"]]
        differing = {
            n: v for n, v in key.items() if n not in shared | OWN_COLUMNS and _belongs_in_label(n, key, siblings)
        }
        groups.append(_group(runs, _label(key, siblings, differing), _cell(runs), differing))
    _name_by_study(groups, told)
    return groups


def by_protocol(results: Sequence[RunData]) -> list[RunData]:
    """Return each run once for each protocol in which it was tested, protocol by protocol in the order of the lists."""
    names = dict.fromkeys(name for result in results for name in _listed_protocols(result))
    if all(len(result.protocols) == 1 for result in results):
        return _with_costs(results)
    return _with_costs([result.in_protocol(name) for name in names for result in results if name in result.protocols])


def _with_costs(results: Sequence[RunData]) -> list[RunData]:
    """Let the first view of each run stand for its costs where the view in its main protocol is not among them."""
    seen = {_run_of(result) for result in results if MAIN_PROTOCOL not in result.numbers}
    views = []
    for result in results:
        if MAIN_PROTOCOL in result.numbers and _run_of(result) not in seen:
            seen.add(_run_of(result))
            result = replace(result, numbers={k: v for k, v in result.numbers.items() if k != MAIN_PROTOCOL})
        views.append(result)
    return views


def _run_of(result: RunData) -> tuple[str | None, tuple[str, str] | None]:
    return result.numbers.get("fingerprint"), result.cell


def _listed_protocols(result: RunData) -> Sequence[str]:
    """The protocols of a run in the order of its config."""
    listed = result.config.get("evaluation", {}).get("protocols") or ()
    return [*(name for name in listed if name in result.protocols), *result.protocols]


def not_offered_notes(results: Sequence[RunData]) -> list[str]:
    """Return a sentence for each method that lacks a model which some protocol of its runs tests."""
    pairs = (pair for result in results for pair in result.numbers.get("not_offered", {}).items())
    protocols_by_reason = lists_by_key((reason, protocol) for protocol, reason in pairs)
    return [
        f"{reason}: not tested in {listed(dict.fromkeys(protocols))}"
        for reason, protocols in protocols_by_reason.items()
    ]


def protocols_of(groups: Sequence[Group]) -> list[str]:
    """Return the protocols of groups, each once, in their order."""
    return list(dict.fromkeys(group.row["protocol"] for group in groups))


def _cell(runs: Sequence[RunData]) -> tuple[str, str] | None:
    """Return the study cell, apart from the seed, that all runs belong to; None if there is no single one."""
    first = runs[0].cell
    return first if all(run.cell == first for run in runs) else None


def _row_keys(results: Sequence[RunData], keys: Sequence[_Key]) -> list[tuple[_Key, tuple[str, str] | None]]:
    """Return what defines each run's row: its settings, and its cell where one study shows these runs in several."""
    studies = [None if result.folder is None else result.folder.parent for result in results]
    cells: dict[tuple[_Key, Path | None], set[tuple[str, str] | None]] = {}
    for key, study, result in zip(keys, studies, results, strict=True):
        cells.setdefault((key, study), set()).add(result.cell)
    repeated = {key for (key, _), names in cells.items() if len(names - {None}) > 1}
    return [(key, result.cell if key in repeated else None) for key, result in zip(keys, results, strict=True)]


def _keys(results: Sequence[RunData]) -> list[_Key]:
    """Return the settings that define each run's group; the scenario's seed unless it follows the run's seed."""
    settings = [settings_of(result) for result in results]
    dealt = [setting.pop(_DEALT, "None") for setting in settings]
    undealt = [tuple(sorted(setting.items())) for setting in settings]
    seeds = [("None", str(result.numbers["seed"])) for result in results]
    # If each run deals its data with its own seed, runs differ in the seed only and are one group. A fixed dealing
    # seed is a setting.
    fixed = {key for key, seed, own_seeds in zip(undealt, dealt, seeds, strict=True) if seed not in own_seeds}
    dealt_seeds = [seed if key in fixed else "None" for key, seed in zip(undealt, dealt, strict=True)]
    return [tuple(sorted((*key, (_DEALT, seed)))) for key, seed in zip(undealt, dealt_seeds, strict=True)]


def settings_of(result: RunData) -> dict[str, str]:
    """Return all of a run's config except the seed, as flat key -> text."""
    config = {key: value for key, value in result.config.items() if key not in _NOT_COMPARED}
    numbers, settings = result.numbers, dict(flat(config))
    settings.pop(_SEVERAL, None)
    return settings | {
        "method": numbers["method"],
        "preset": numbers["preset"],
        "evaluation.protocol": numbers["protocol"],
        "evaluation.select": numbers["select"],
        "scenario.source": numbers["source"],
        "scenario.clients": str(numbers["clients"]),
    }


def _belongs_in_label(name: str, key: dict[str, str], siblings: Sequence[dict[str, str]]) -> bool:
    """Whether a differing key belongs in a label: a method's options do only between rows of one preset."""
    if not name.startswith(f"{key['method']}."):
        return True
    return any(sibling.get(name) != key[name] for sibling in siblings if sibling["preset"] == key["preset"])


def _label(key: dict[str, str], siblings: Sequence[dict[str, str]], differing: dict[str, str]) -> str:
    def differs(name: str) -> bool:
        return any(sibling.get(name) != key[name] for sibling in siblings)

    parts = [key[name] for name in ("preset", "evaluation.protocol", "evaluation.select") if differs(name)]
    others = [{name: sibling[name] for name in differing if name in sibling} for sibling in siblings]
    parts += [
        f"{name.rpartition('.')[2]}={value}"
        for name, value in telling(differing, [other for other in others if other != differing]).items()
    ]
    return f"{key['method']} ({', '.join(parts)})" if parts else key["method"]


def _group(runs: Sequence[RunData], label: str, cell: tuple[str, str] | None, setting: dict[str, str]) -> Group:
    by_seed = {run.numbers["seed"]: run for run in reversed(runs)}  # the first one of each seed
    seed_runs = [by_seed[seed] for seed in sorted(by_seed)]
    numbers = [run.numbers for run in seed_runs]
    accuracies = [math.nan if n["accuracy"] is None else float(n["accuracy"]) for n in numbers]
    mean, std = mean_std(accuracies)
    val = [n["best_val_accuracy"] for n in numbers]
    successes: list[Any] = [(n.get("attack") or {}).get("success") for n in numbers]
    names = sorted({name for n in numbers for name in n.get("metrics", {})})
    measured = {name: [n.get("metrics", {}).get(name) for n in numbers] for name in names}
    defined = {name: [value for value in values if value is not None] for name, values in measured.items()}
    metrics = {name: mean_std(values) for name, values in defined.items() if values}
    row = ResultRow(
        label=label,
        cell=cell,
        plan=seed_runs[0].plan if len({run.plan.study for run in seed_runs}) == 1 else Plan(family="added later"),
        method=numbers[0]["method"],
        preset=numbers[0]["preset"],
        protocol=numbers[0]["protocol"],
        select=numbers[0]["select"],
        setting=setting,
        tuned=sorted(tuned_keys(seed_runs)),
        n=len(seed_runs),
        seeds=sorted(by_seed),
        by_seed=accuracies,
        accuracy=mean,
        std=std,
        step=_step(seed_runs[0]),
        best_val=None if None in val else fmean(val),
        bytes_up=fmean(n["bytes_up"] for n in numbers),
        bytes_down=fmean(n["bytes_down"] for n in numbers),
        seconds=fmean(n["seconds"]["total"] for n in numbers),
        phases={phase: fmean(n["seconds"].get(phase, 0.0) for n in numbers) for phase in SECONDS if phase != "total"},
        peak_memory_mb=max(n["peak_memory_mb"] for n in numbers),
        figures=_largest([n.get("figures", {}) for n in numbers]),
        degenerate=distinct_notes(note.removeprefix(f"{n['method']}: ") for n in numbers for note in n["degenerate"]),
        diverged=[run.numbers["seed"] for run in seed_runs if has_diverged(run.numbers)],
        stopped=[_stopped(run) for run in seed_runs if run.numbers.get("stopped")],
        repeats=len(runs) - len(seed_runs),
        attack=attack_words(numbers[0]),
        metrics={name: value for name, (value, _) in metrics.items()},
        metrics_std={name: spread for name, (_, spread) in metrics.items()},
        metrics_n={name: len(defined[name]) for name in metrics},
        attack_success=None if None in successes else fmean(successes),
    )
    return Group(row, seed_runs)


def _step(run: RunData) -> float:
    samples = run.scenario.get("test_samples")
    return 1 / samples if samples else STEP


def attack_words(numbers: dict[str, Any]) -> str | None:
    """Return attack and share of clients, e.g. "label-flip 0.2"; None without an attack."""
    attack = numbers.get("attack")
    return f"{attack['name']} {attack['share']:g}" if attack else None


def _stopped(run: RunData) -> str:
    reason, rounds = run.numbers["stopped"], run.config.get("rounds")
    return f"seed {run.numbers['seed']} stopped after round {reason['round']} of {rounds}: {reason['reason']}"


def _largest(figures: Sequence[Mapping[str, float | None]]) -> dict[str, float]:
    """Return the largest value of each figure. A value that was not finite is None in its file, and does not count."""
    finite = [
        {name: value for name, value in finite_figures.items() if value is not None} for finite_figures in figures
    ]
    names = dict.fromkeys(name for finite_figures in finite for name in finite_figures)
    return {name: max(finite_figures[name] for finite_figures in finite if name in finite_figures) for name in names}
