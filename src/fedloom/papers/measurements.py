"""Measurements of the printed values, one for each value and seed, and their CSV files."""

import csv
import gzip
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from pydantic import TypeAdapter

from fedloom.papers.recipe import PrintedValue, Recipe
from fedloom.results.data_table import as_csv
from fedloom.results.group import selected_accuracies
from fedloom.results.result_tables import epoch_ms, reached
from fedloom.runs.storage.data_record import environment_line
from fedloom.runs.storage.log import mean_over
from fedloom.runs.storage.run_data import RunData
from fedloom.runs.storage.run_folder import RunFolder

ACCURACY = ("acc_pct", "test_accuracy_pct", "mean_acc_pct")
GAIN = "gain_over_fedavg_points"
VARIANT = re.compile(r" \[(authors|sound)\]$")
OTHER_IMAGES = "CIFAR from JPEG files of quality 95"  # as `changed` says it of data that are not the paper's own
_OTHER_SOURCE = re.compile(r"\bscenario(\.source=|=\{source: )")
CellResults = Mapping[tuple[str, str], Sequence[RunData]]  # finished runs by column and row


@dataclass(frozen=True, slots=True)
class Measurement:
    """One printed value as one run gives it.
    - row: the row of the study. ours: in the unit of `metric`; None where the run does not have it.
    - seconds: of one core, training and tests; None for a run on several cores.
    - changed: the differences from the recipe, in words. comparable: whether the paper itself ran such a setting.
    - test_samples: the number behind an accuracy; None for other values, and where they were not recorded."""

    column: str
    row: str
    metric: str
    domain: str | None
    seed: int
    ours: float | None
    seconds: float | None
    machine: str
    changed: str
    comparable: bool
    test_samples: int | None = None

    @property
    def stand_in(self) -> bool:
        """Whether other data replace the paper's."""
        return _OTHER_SOURCE.search(self.changed) is not None


_ADAPTER = TypeAdapter(Measurement)
_COLUMNS = [field.name for field in fields(Measurement)]


def measure(recipe: Recipe, results: CellResults, changed: str = "", comparable: bool = True) -> list[Measurement]:
    """Measure the printed values of a recipe in the finished runs, `results` by column and row.
    changed: the differences from the recipe, in words. comparable: whether the paper itself ran such a setting."""
    measurements = []
    for value, column, row in printed_rows(recipe):
        if column is None:
            continue
        run_row, predictor = recipe.table.predictor_rows.get(row, (row, ""))
        for result in results.get((column, run_row), []):
            place = column, row, value.metric, value.domain, int(result.numbers["seed"])
            ours = _value_of(recipe, value, result, predictor, results)
            number = None if ours is None else float(f"{ours:.6g}")
            environment = None if result.folder is None else RunFolder(result.folder).read_json("env.json")
            machine = "not known" if environment is None else environment_line(environment)
            # Other engines than the serial one know the wall-clock time of several cores.
            spent, is_serial = result.numbers["seconds"], result.numbers["engine"].startswith("serial")
            seconds = round(float(spent["train"] + spent["evaluate"]), 1) if is_serial else None
            how = seconds, machine, changed, comparable, _test_samples(value, result)
            measurements.append(Measurement(*place, number, *how))
    return measurements


PrintedRow = tuple[PrintedValue, str | None, str]  # with its column of the study, if any, and a row for it


def printed_rows(recipe: Recipe) -> Iterator[PrintedRow]:
    """Yield every printed value with its column of the study, if any, and each row that stands for it."""
    for value in recipe.values:
        column = recipe.column(value.column)
        yield value, column, value.method
        for row in recipe.rows:
            if VARIANT.search(row) and VARIANT.sub("", row) == value.method:
                yield value, column, row


def measurements_csv(measurements: Sequence[Measurement]) -> str:
    """Write measurements as tidy CSV, which `read_measurements` reads."""
    if not measurements:
        return ",".join(_COLUMNS) + "\n"
    return as_csv([asdict(measurement) for measurement in measurements]) + "\n"


def read_measurements(path: Path) -> list[Measurement]:
    """Read measurements from a CSV file, also gzipped or of an earlier version. Raises `ValueError` for other
    columns."""
    data = path.read_bytes()
    text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
    reader = csv.DictReader(io.StringIO(text))
    columns = [name for name in reader.fieldnames or () if name != "estimated"]  # a forecast of version 0.1
    if columns not in (_COLUMNS, _COLUMNS[:-1]):
        raise ValueError(f"{path}: columns {reader.fieldnames}; need {', '.join(_COLUMNS)}")
    optional = ("domain", "ours", "seconds", "test_samples")
    plain = ({name: row.get(name) for name in _COLUMNS} for row in reader)
    # CSV has no None: an empty field stands for it.
    return [_ADAPTER.validate_python(row | {name: row[name] or None for name in optional}) for row in plain]


def accuracy(recipe: Recipe, result: RunData, predictor: str = "") -> float | None:
    """Return the test accuracy of a finished run in percent; None where it was not measured. recipe: its table counts
    the mean over clients, or pooled samples. predictor: another one of the run, e.g. "online"."""
    name = f"accuracy/{predictor}" if predictor else "accuracy_pooled" if recipe.table.pooled else "accuracy"
    if name == "accuracy":
        return 100 * float(result.numbers["accuracy"])
    share = mean_over(result.rows, name, result.selected_rounds())
    return None if share is None else 100 * share


def _value_of(
    recipe: Recipe, value: PrintedValue, result: RunData, predictor: str, results: CellResults
) -> float | None:
    metric = value.metric
    if metric.startswith("rounds_to_"):
        first = reached(result, float(metric.removeprefix("rounds_to_")) / 100)
        return None if first is None else float(first.round)
    if metric == "ms_per_epoch":
        return epoch_ms(result)
    if metric == GAIN:
        baseline = results.get((recipe.column(value.column) or "", recipe.table.baseline or ""), [])
        seed = result.numbers["seed"]
        equal_seed = [plain.numbers["accuracy"] for plain in baseline if plain.numbers["seed"] == seed]
        return 100 * (result.numbers["accuracy"] - equal_seed[0]) if equal_seed else None
    if metric not in ACCURACY:
        return None
    if value.domain in (None, "Avg"):
        return accuracy(recipe, result, predictor)
    client, name = _client_of(value.domain, result), f"accuracy/{predictor}" if predictor else "accuracy"
    share = None if client is None else selected_accuracies(result, name).get(client)
    return None if share is None else 100 * share


def _client_of(domain: str, result: RunData) -> int | None:
    """The client that holds a domain; None in a run of another source, which has other domains."""
    domains = [name.casefold() for name in result.scenario["domains"]]
    return domains.index(domain.casefold()) if domain.casefold() in domains else None


def _test_samples(value: PrintedValue, result: RunData) -> int | None:
    """The number of test samples behind our value: of all clients, or of the one that holds the domain."""
    if value.metric != GAIN and value.metric not in ACCURACY:
        return None
    if value.domain in (None, "Avg"):
        return result.scenario.get("test_samples") or None
    client = _client_of(value.domain, result)
    confusion = [] if client is None else result.confusions().get(client, [])
    return sum(samples for *_, samples in confusion) or None
