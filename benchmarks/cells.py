"""Finished studies as plain numbers: results/studies/NAME.csv.gz has a row per run, and `read_cells` makes a dictionary
per setting and method of them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.data import RESULTS, Row, read_rows, write_rows
from fedloom.core.text import ACCURACY
from fedloom.results.group import client_accuracies, selected_accuracies, worst
from fedloom.results.result import Result
from fedloom.runs.storage.data_record import describe_environment
from fedloom.runs.storage.log import curve
from fedloom.runs.studies.outcome import done_of, outcome
from fedloom.runs.studies.plan import StudyPlan
from fedloom.runs.studies.study_folder import StudyFolder, read
from fedloom.runs.studies.tuning import validation_value

FOLDER = RESULTS / "studies"
Cells = Mapping[str, dict[str, Any]]
_PER_SEED = {"accuracies": "accuracy", "validations": "validation"}
_LISTS = {*_PER_SEED, "seeds", "tested", "clients", "newcomers"}
_NEWCOMERS = "newcomers "


def read_cells(name: str) -> dict[str, dict[str, Any]]:
    """Read the cells of a study by "setting/method", as `cell_of` makes them."""
    cells: dict[str, dict[str, Any]] = {}
    for row in read_rows(FOLDER / f"{name}.csv.gz"):
        _put(cells.setdefault(f"{row.pop('setting', '')}/{row.pop('row')}", {}), row)
    return cells


def studies_by_name() -> dict[str, Cells]:
    """Read the finished cells of every study."""
    names = (path.name.removesuffix(".csv.gz") for path in sorted(FOLDER.glob("*.csv.gz")))
    return {name: read_cells(name) for name in names}


def write_cells(name: str, cells: Cells) -> Path:
    """Write the cells of a study."""
    path = FOLDER / f"{name}.csv.gz"
    write_rows(path, [row for key, cell in cells.items() for row in _rows(key, cell)])
    return path


def keep_study(out: Path) -> Path:
    """Keep the results in a study's folder, under the name of the folder.

    Methods of earlier runs stay until they are measured again, so a study may be run in parts; each says on which
    machine. Ends the program where there is no study.
    """
    study = read(out)
    if study is None:
        raise SystemExit(f"{out}: no study there")
    name = out.resolve().name
    earlier = read_cells(name) if (FOLDER / f"{name}.csv.gz").exists() else {}
    machine = describe_environment()
    cells = earlier | {
        key: cell | {"environment": machine} for key, cell in measured_cells(study, StudyFolder(out)).items()
    }
    in_order = dict.fromkeys(f"{cell.setting}/{cell.method}" for cell in study.cells)
    return write_cells(name, {key: cells[key] for key in in_order if key in cells})


def measured_cells(study: StudyPlan, study_folder: StudyFolder) -> dict[str, dict[str, Any]]:
    """Return all methods whose seeds have all finished, by "setting/method"."""
    expected: dict[tuple[str, str], int] = {}
    for cell in study.cells:
        expected[cell.setting, cell.method] = expected.get((cell.setting, cell.method), 0) + 1
    done = done_of(study, outcome(study, study_folder, study.cells))
    return {
        f"{setting}/{method}": cell_of(done[setting, method], study.tried[0] if study.tried else ())
        for (setting, method), count in expected.items()
        if len(done.get((setting, method), [])) == count
    }


def cell_of(results: Sequence[Result], tuned: Iterable[str]) -> dict[str, Any]:
    """Return one method in one setting: test and validation accuracies in [0, 1] by seed, and means over seeds of the
    bytes and seconds of a whole run.

    Runs of several protocols also have `tested` (all metrics by protocol), `newcomers` (by the way of serving them) and
    `clients` (accuracies of the clients in the order of their ids, of personal models if there are any).
    """
    numbers = [result.numbers for result in results]
    success = [summary["attack"]["success"] for summary in numbers if summary.get("attack")]
    lowest: list[Any] = [worst(list(selected_accuracies(result).values())) for result in results]
    return {
        "method": numbers[0]["method"],
        "preset": numbers[0]["preset"],
        "protocol": numbers[0]["protocol"],
        "seeds": [summary["seed"] for summary in numbers],
        "accuracies": [summary["accuracy"] for summary in numbers],
        "validations": [_validation(result) for result in results],
        "worst": None if None in lowest else fmean(lowest),
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
        way: {name: _rounded(test[way][name] for test in tests) for name in ("accuracy", "balanced_accuracy")}
        for way in (tests[0] if tests else ())
    }
    return {"tested": tested, "clients": clients, "newcomers": newcomers}


def _rows(key: str, cell: Mapping[str, Any]) -> Iterator[Row]:
    """Yield a row with the values of all seeds together, then a row per seed, and per seed and test."""
    setting, _, label = key.partition("/")
    head = {"setting": setting, "row": label} if setting else {"row": label}
    yield head | {name: value for name, value in cell.items() if name not in _LISTS}
    for index, seed in enumerate(cell["seeds"]):
        of_seed = head | {"seed": seed}
        yield of_seed | {name: cell[plural][index] for plural, name in _PER_SEED.items() if plural in cell}
        for protocol, metrics in cell.get("tested", {}).items():
            clients = cell["clients"].get(protocol)
            values = {name: by_seed[index] for name, by_seed in metrics.items()}
            yield of_seed | {"test": protocol} | values | ({"clients": clients[index]} if clients else {})
        for way, metrics in cell.get("newcomers", {}).items():
            yield of_seed | {"test": _NEWCOMERS + way} | {name: by_seed[index] for name, by_seed in metrics.items()}


def _put(cell: dict[str, Any], row: Row) -> None:
    """Put a row's values where `_rows` found them."""
    seed, test = row.pop("seed", None), row.pop("test", None)
    if seed is None:
        cell.update(row)
    elif test is None:
        cell.setdefault("seeds", []).append(seed)
        for plural, name in _PER_SEED.items():
            if name in row:
                cell.setdefault(plural, []).append(row[name])
    else:
        for group in ("tested", "clients", "newcomers"):
            cell.setdefault(group, {})
        if "clients" in row:
            cell["clients"].setdefault(test, []).append(row.pop("clients"))
        group = "newcomers" if test.startswith(_NEWCOMERS) else "tested"
        metrics = cell[group].setdefault(test.removeprefix(_NEWCOMERS), {})
        for name, value in row.items():
            metrics.setdefault(name, []).append(value)


def _rounded(values: Iterable[float | None]) -> list[float | None]:
    return [None if value is None else round(value, 5) for value in values]


def _validation(result: Result) -> float | None:
    return validation_value(result, ACCURACY) if curve(result.rows, "accuracy", "val")[1] else None


def _at(config: Any, key: str) -> Any:
    for part in key.split("."):
        config = config[part]
    return config
