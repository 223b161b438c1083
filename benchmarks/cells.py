"""The finished cells of a study as plain numbers, one block for each setting and method: what results/studies holds."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from math import isfinite
from pathlib import Path
from statistics import fmean
from typing import Any

from fedloom.core.criterion import ACCURACY
from fedloom.core.files import write_atomic
from fedloom.methods.catalogue.descriptions import entries
from fedloom.results import table
from fedloom.results.clients import client_accuracies, worst_of_group
from fedloom.results.difference import Difference, compare_family, paired_differences
from fedloom.results.result import Result
from fedloom.results.statistics import mean_std
from fedloom.runs.storage.environment import describe_environment
from fedloom.runs.studies.outcome import done_of, outcome
from fedloom.runs.studies.plan import StudyPlan
from fedloom.runs.studies.study_folder import StudyFolder, read
from fedloom.runs.studies.tuning import validation_value

FIVE = ("fedskc", "feddw", "fedsc", "fedco2", "fedssa")
BESIDE = {"fedavg": "FedAvg", "local": "Local, own models"}
FOLDER = Path(__file__).parent / "results" / "studies"
Measured = tuple[Sequence[int], Sequence[float]]  # seeds, and one accuracy for each
_NUMBERS = re.compile(r"\[\s+([-\d.eE,\s]|null)+\]")


def keep(out: Path) -> Path:
    """Write what has been measured in a study's folder to results/studies/NAME.json, NAME being the folder's name.

    Blocks of earlier runs stay until their method is measured again, so a study may be run in parts; each says on what
    machine. Ends the program where there is no study.
    """
    study = read(out)
    if study is None:
        raise SystemExit(f"{out}: no study there")
    path = FOLDER / f"{out.resolve().name}.json"
    earlier = json.loads(path.read_text(encoding="utf-8"))["cells"] if path.exists() else {}
    machine = describe_environment()
    cells = earlier | {
        name: block | {"environment": machine} for name, block in measured(study, StudyFolder(out)).items()
    }
    names = dict.fromkeys(f"{cell.setting}/{cell.method}" for cell in study.cells)
    text = {"cells": {name: cells[name] for name in names if name in cells}}
    lines = _NUMBERS.sub(lambda numbers: " ".join(numbers[0].split()), json.dumps(text, indent=1))
    write_atomic(path, f"{lines}\n".encode())
    return path


DIVERGED = "diverged"  # in the place of a difference


def has_diverged(cell: Mapping[str, Any]) -> bool:
    """Whether a run of the row diverged. As in the library's tables, it is neither ranked nor compared then."""
    return table.has_diverged({"degenerate": cell["warnings"]})


def shown(cell: Mapping[str, Any] | None, key: str = "accuracies") -> str:
    """The mean of a row in percent, and whether it diverged; a dash for a row that was not measured."""
    if cell is None:
        return "–"
    return f"{percent(cell[key])}, {DIVERGED}" if has_diverged(cell) else percent(cell[key])


def in_words(difference: Difference) -> str:
    """A difference in points with the word of the rule, e.g. "+2.1, no difference seen *"; the star marks an interval
    that alone leaves out zero."""
    return f"{100 * difference.mean:+.1f}, {difference.word}{' *' if difference.addition else ''}"


def judged(rows: Mapping[str, Measured], baseline: Measured) -> dict[str, Difference]:
    """Return the difference of each row from a baseline, by label. The rows are one family of the rule.

    Args:
        rows: seeds and accuracies in [0, 1] of each method of one setting and protocol, by label.
        baseline: those of the method with which they are compared on their common seeds.
    """
    differences = [list(paired_differences(*row, *baseline).values()) for row in rows.values()]
    return dict(zip(rows, compare_family(differences), strict=True))


def measured(study: StudyPlan, study_folder: StudyFolder) -> dict[str, dict[str, Any]]:
    """By "setting/label", all methods whose seeds have all finished."""
    expected: dict[tuple[str, str], int] = {}
    for cell in study.cells:
        expected[cell.setting, cell.method] = expected.get((cell.setting, cell.method), 0) + 1
    done = done_of(study, outcome(study, study_folder, study.cells))
    return {
        f"{setting}/{label}": block_of(done[setting, label], study.tried[0] if study.tried else ())
        for (setting, label), count in expected.items()
        if len(done.get((setting, label), [])) == count
    }


def block_of(results: Sequence[Result], tuned: Iterable[str]) -> dict[str, Any]:
    """One method in one setting: test and validation accuracies in [0, 1] of each seed; means over seeds of bytes and
    seconds of a whole run."""
    numbers = [result.numbers for result in results]
    success = [summary["attack"]["success"] for summary in numbers if summary.get("attack")]
    return {
        "method": numbers[0]["method"],
        "preset": numbers[0]["preset"],
        "protocol": numbers[0]["protocol"],
        "seeds": [summary["seed"] for summary in numbers],
        "accuracies": [summary["accuracy"] for summary in numbers],
        "validations": [_validation(result) for result in results],
        "worst": worst_of_group(results),
        "tuned": {key: _at(results[0].config, key) for key in tuned},
        "bytes_up": fmean(summary["bytes_up"] for summary in numbers),
        "bytes_down": fmean(summary["bytes_down"] for summary in numbers),
        "flops": fmean(summary["flops"] for summary in numbers),
        "total_seconds": round(fmean(summary["seconds"]["total"] for summary in numbers), 1),
        "train_seconds": round(fmean(summary["seconds"]["train"] for summary in numbers), 1),
        "attack_success": fmean(success) if success and None not in success else None,
        "warnings": sorted({message for summary in numbers for message in summary["degenerate"]}),
    } | (_in_protocols(results) if "protocols" in numbers[0] else {})


def _in_protocols(results: Sequence[Result]) -> dict[str, Any]:
    """What runs of several protocols measured, one value for each seed.

    tested: all metrics by protocol. newcomers: by way of serving them. clients: accuracies of the clients in the order
    of their ids, of personal models if there are any.
    """
    tested, clients = {}, {}
    for protocol in results[0].protocols:
        runs = [result.in_protocol(protocol) for result in results]
        tested[protocol] = {"accuracy": _rounded(run.numbers["accuracy"] for run in runs)} | {
            name: _rounded(run.numbers["metrics"][name] for run in runs) for name in runs[0].numbers["metrics"]
        }
        tested[protocol]["ece"] = _rounded(run.curve("ece", "test")[1][-1] for run in runs)  # no summary has it
        accuracies = [client_accuracies(run.rows) for run in runs]
        if all(accuracies) and not (clients and protocol.startswith("global")):  # the main protocol comes first
            clients[protocol] = [_rounded(by_id[client] for client in sorted(by_id)) for by_id in accuracies]
    tests = [result.numbers["newcomers"]["tests"] for result in results if "newcomers" in result.numbers]
    newcomers = {
        served: {name: _rounded(test[served][name] for test in tests) for name in ("accuracy", "balanced_accuracy")}
        for served in (tests[0] if tests else ())
    }
    return {"tested": tested, "clients": clients, "newcomers": newcomers}


def _rounded(values: Iterable[float | None]) -> list[float | None]:
    return [None if value is None else round(value, 5) for value in values]


def _validation(result: Result) -> float | None:
    return validation_value(result, ACCURACY) if result.curve("accuracy", "val")[1] else None


def _at(config: Any, key: str) -> Any:
    for part in key.split("."):
        config = config[part]
    return config


@cache
def titles() -> dict[str, str]:
    """By name, how papers write a method's."""
    return {entry.name: entry.title for entry in entries()}


def display_name(label: str, cell: Mapping[str, Any]) -> str:
    """A method as papers write it, with what its row adds in brackets, e.g. FedDW (paper)."""
    method, *wrappers = cell["method"].split("+")
    title = "+".join([titles().get(method, method), *wrappers])
    variant = label.removeprefix(cell["method"]).strip("-")
    return f"{title} ({variant})" if variant else title


def percent(values: Sequence[float | None]) -> str:
    """Mean ± sample standard deviation of shares, in percent; a dash if one of them is undefined."""
    shares = [value for value in values if value is not None and isfinite(value)]
    if len(shares) < len(values):
        return "–"
    mean, std = mean_std(shares)
    return f"{100 * mean:.1f} ± {100 * (std or 0):.1f}"


def against(ours: Sequence[float], theirs: Sequence[float]) -> str:
    """Mean difference of two methods over the same seeds, in points, and on how many of them the first is higher."""
    differences = [100 * (our - their) for our, their in zip(ours, theirs, strict=True)]
    higher = sum(difference > 0 for difference in differences)
    return f"{fmean(differences):+.1f}, higher on {higher} of {len(differences)}"


def option_text(value: Any) -> str:
    """An option's value, as one writes it in a config."""
    return str(list(value)) if isinstance(value, list | tuple) else str(value)
