"""The tables of finished runs: results, the cost of reaching an accuracy, and the cost of a run. Needs no torch."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from statistics import fmean
from typing import Any

from fedloom.core import text as words
from fedloom.core.errors import ConfigError
from fedloom.results.comparability import panel_titles, row_names, same_setting
from fedloom.results.data_table import DataTable, Field, diverged_field, label_with_notes, or_dash
from fedloom.results.group import Group, ResultRow, mean_std, mean_text
from fedloom.results.pairs import best_rows
from fedloom.results.table import grouped
from fedloom.results.table_notes import comparison_notes, notes_of, table_measure
from fedloom.runs.storage.log import curve, total_over_rounds
from fedloom.runs.storage.run_data import RunData


@dataclass(frozen=True, slots=True)
class Reached:
    """The first tested round whose test accuracy is at least the target, and the cost of all rounds up to it."""

    round: int
    bytes: int  # downloads and uploads of all clients
    flops: float  # the run's, in proportion to the samples trained until then
    virtual_seconds: float  # on the clients' devices (`devices`); 0 without


def reached(result: RunData, target: float) -> Reached | None:
    """Return when `result` first reaches `target`, an accuracy in [0, 1]; None if it never does.
    As in the papers, the first crossing counts even if later rounds fall below it. If tests are rare
    (`evaluation.every`), the round is that of the first test that shows it. Raises `ConfigError` for a wrong target."""
    if not (isinstance(target, float | int) and isfinite(target) and 0 < target <= 1):
        raise ConfigError(f"target = {target}: need an accuracy above 0 and up to 1, e.g. 0.8")
    tested = zip(*curve(result.rows, "accuracy", "test"), strict=True)
    first = next((round_ for round_, accuracy in tested if accuracy >= target), None)
    if first is None:
        return None
    up, down, samples, virtual = (
        sum(row["value"] for row in result.rows if row["name"] == name and row["round"] <= first)
        for name in ("bytes_up", "bytes_down", "samples", "virtual_seconds")
    )
    # Only the FLOPs of the whole run are recorded; they grow with the trained samples.
    share = samples / result.numbers["samples"] if result.numbers.get("samples") else 1.0
    return Reached(first, int(up + down), float(result.numbers.get("flops") or 0.0) * min(1.0, share), virtual)


def reached_mean(results: Sequence[RunData], target: float) -> dict[str, Any]:
    """Return the means of `Reached` over the `n` of `of` runs that reach the target; None where none does."""
    reached_runs = [run for run in (reached(result, target) for result in results) if run is not None]
    means = {
        name: fmean(getattr(run, name) for run in reached_runs) if reached_runs else None for name in Reached.__slots__
    }
    return {"n": len(reached_runs), "of": len(results), **means}


@dataclass(frozen=True, slots=True)
class Costs:
    """Costs of the runs of one group: means over seeds. FLOPs, and bytes down and up, are those of a whole run."""

    epoch_ms: float | None  # milliseconds of a client's local epoch
    epoch_ms_std: float | None  # their sample deviation
    relative: float | None  # multiple of FedAvg's time in the same setting; None without such runs
    flops: float
    bytes: float


def epoch_ms(result: RunData) -> float | None:
    """Return ms of a client's local epoch: training seconds over participants and epochs; None if no client trained."""
    epochs = total_over_rounds(result.rows, "participants") * result.config.get("local_epochs", 0)
    return 1000 * total_over_rounds(result.rows, "seconds_train") / epochs if epochs else None


def costs(groups: Sequence[Group]) -> list[Costs]:
    """Return the costs of every group, in their order."""
    times = [[ms for ms in map(epoch_ms, group.results) if ms is not None] for group in groups]
    baselines = [(group.row, of_group) for group, of_group in zip(groups, times, strict=True)]
    baselines = [(row, of_group) for row, of_group in baselines if row["method"] == words.BASELINE]
    by_group = []
    for group, ours in zip(groups, times, strict=True):
        base: list[float] = next((of_group for row, of_group in baselines if same_setting(group.row, row)), [])
        mean, std = mean_std(ours) if ours else (None, None)
        relative = mean / fmean(base) if mean is not None and base and fmean(base) else None
        flops = fmean(float(run.numbers.get("flops") or 0.0) for run in group.results)
        by_group.append(Costs(mean, std, relative, flops, group.row["bytes_up"] + group.row["bytes_down"]))
    return by_group


ATTACK_NOTE = (
    "success: share of flipped-class test samples taken for what the attack wants; other attacks show in the fall of "
    "accuracy against a run without them. All test data are clean"
)
# Keys of a record, apart from the settings in which rows differ.
_BEFORE = ("label", "method", "preset", "protocol", "select")
_AFTER = ("n", "accuracy", "std", "best_val", "bytes_up", "bytes_down", "seconds", "peak_memory_mb")


def figure_names(rows: Sequence[ResultRow]) -> list[str]:
    """Return the names of all figures that some row has, sorted."""
    return sorted({name for row in rows for name in row["figures"]})


def metric_names(rows: Sequence[ResultRow]) -> list[str]:
    """Return the names of all metrics but accuracy that some row has, sorted: a summary on disk is."""
    return sorted({name for row in rows for name in row["metrics"]} - {"accuracy"})


def metric_text(row: ResultRow, name: str) -> str:
    """Return a metric in its unit (`core.units`), with its spread over seeds; empty if the row has none.

    Where a seed does not define it, as AUROC where one class is tested, the number of seeds that do follows."""
    if name not in row["metrics"]:
        return ""
    text = mean_text(name, row["metrics"][name], row["metrics_std"][name])
    return text + words.seeds_share(row["metrics_n"][name], row["n"])


def result_columns(rows: Sequence[ResultRow]) -> list[Field[ResultRow]]:
    """Return the columns that rows of results need for people; every view of them shows some of these."""
    columns: list[Field[ResultRow]] = [
        Field("method", lambda row: row["label"]),
        Field("preset", lambda row: row["preset"]),
        Field("protocol", lambda row: row["protocol"]),
        Field("select", lambda row: row["select"]),
        Field("n", lambda row: str(row["n"]), lambda row: row["n"]),
        Field("accuracy %", lambda row: words.plus_minus(row["accuracy"], row["std"]), lambda row: row["accuracy"]),
        *map(_figure, figure_names(rows)),  # an epsilon says little without its accuracy
        Field.of("best val %", lambda row: row["best_val"], words.percent),
        Field.of("up", lambda row: row["bytes_up"], words.bytes_text),
        Field.of("down", lambda row: row["bytes_down"], words.bytes_text),
        Field.of("time", lambda row: row["seconds"], words.seconds_text),
        *map(_metric, metric_names(rows)),
    ]
    if any(row["diverged"] for row in rows):
        columns.append(Field("diverged", lambda row: words.seeds_text(row["diverged"]) if row["diverged"] else "no"))
    if any(row["attack"] for row in rows):
        columns.append(Field("attack", lambda row: row["attack"] or "none"))
        columns.append(Field.of("success %", lambda row: row["attack_success"], words.percent))
    return columns


# Functions, because a lambda in a loop over names would read the last name.
def _figure(name: str) -> Field[ResultRow]:
    def text(row: ResultRow) -> str:
        return f"{row['figures'][name]:.3g}" if name in row["figures"] else ""

    return Field(name, text, lambda row: row["figures"].get(name))


def _metric(name: str) -> Field[ResultRow]:
    return Field(words.with_unit(name), lambda row: metric_text(row, name), lambda row: row["metrics"].get(name))


def record(row: ResultRow) -> dict[str, Any]:
    """Return a row as plain values for programs."""
    every: dict[str, Any] = dict(row)
    attacked = {key: every[key] for key in ("attack", "attack_success")} if row["attack"] else {}
    metrics = row["metrics"] | {f"{name}_std": std for name, std in row["metrics_std"].items()}
    metrics |= {f"{name}_n": n for name, n in row["metrics_n"].items() if n < row["n"]}
    named = {key: every[key] for key in _BEFORE} | row["setting"] | {"seeds": " ".join(map(str, row["seeds"]))}
    numbers = {key: every[key] for key in _AFTER} | metrics | row["figures"]
    return named | numbers | diverged_field(row["diverged"]) | attacked


def results_table(results: Sequence[RunData], with_notes: bool = False) -> DataTable:
    """Return a row for each group of runs that differ in the seed only. with_notes: mark the best, and add notes."""
    groups = grouped(results)
    rows = [group.row for group in groups]
    columns, notes, bold = result_columns(rows), list[str](), set[tuple[int, int]]()
    if with_notes:
        headings = [column.heading for column in columns]
        titles = panel_titles(rows, row_names(rows))
        measures = [table_measure(name, groups, "percent") for name in ("accuracy", *metric_names(rows))]
        best = [
            best_rows(groups, titles, measure.complete, measure.lower) if measure.ranked else set[int]()
            for measure in measures
        ]
        bold = {
            (index, headings.index(words.with_unit(measure.name)))
            for measure, indices in zip(measures, best, strict=True)
            for index in indices
        }
        places = [(row["protocol"], row["select"]) for row in rows]
        notes = [*notes_of(groups, measures, best, ""), *comparison_notes(groups, titles, measures, best, places)]
    title, records = "Results of the finished runs", [record(row) for row in rows]
    return DataTable.of("results", "", columns, rows, records=records, title=title, notes=notes, bold=bold)


_Reaching = tuple[ResultRow, float, dict[str, Any]]


def target_table(results: Sequence[RunData], targets: Sequence[float]) -> DataTable:
    """Return the cost of reaching accuracies in [0, 1]: means over the seeds that reached them."""
    reached: list[_Reaching] = [
        (group.row, target, reached_mean(group.results, target)) for group in grouped(results) for target in targets
    ]
    several = len({row["protocol"] for row, *_ in reached}) > 1
    protocol: list[Field[_Reaching]] = [Field("protocol", lambda cell: cell[0]["protocol"])] if several else []
    columns: list[Field[_Reaching]] = [
        Field("method", lambda cell: label_with_notes(cell[0]["label"], None, cell[0]["diverged"])),
        *protocol,
        Field("target %", lambda cell: f"{100 * cell[1]:g}", lambda cell: cell[1]),
        Field("seeds there", lambda cell: f"{cell[2]['n']} of {cell[2]['of']}", lambda cell: cell[2]["n"]),
        Field.of("round", lambda cell: cell[2]["round"], "{:.0f}".format),
        Field.of("bytes", lambda cell: cell[2]["bytes"], words.bytes_text),
        Field.of("FLOPs", lambda cell: cell[2]["flops"], "{:.3g}".format),
    ]
    if any(mean["virtual_seconds"] for *_, mean in reached):
        columns.append(Field.of("virtual time", lambda cell: cell[2]["virtual_seconds"], words.seconds_text))
    records = [
        {"label": row["label"], "target": target, **mean, "protocol": row["protocol"]} | diverged_field(row["diverged"])
        for row, target, mean in reached
    ]
    return DataTable.of("targets", "", columns, reached, records=records, title="Cost of reaching an accuracy")


_Cost = tuple[str, Costs]


def cost_table(results: Sequence[RunData]) -> DataTable:
    """Return epoch times, also relative to FedAvg, FLOPs and bytes of a run: means over seeds.

    A run in several protocols has one row."""
    groups: list[Group] = [group for group in grouped(results) if not group.is_further]
    labelled: list[_Cost] = list(zip((group.row["label"] for group in groups), costs(groups), strict=True))
    columns: list[Field[_Cost]] = [
        Field("method", lambda cell: cell[0]),
        Field("ms per local epoch", lambda cell: _ms(cell[1]), lambda cell: cell[1].epoch_ms),
        Field.of("× FedAvg", lambda cell: cell[1].relative, "{:.2f}".format),
        Field.of("FLOPs", lambda cell: cell[1].flops, "{:.3g}".format),
        Field.of("bytes", lambda cell: cell[1].bytes, words.bytes_text),
    ]
    records = [{"label": label, **asdict(cost)} for label, cost in labelled]
    return DataTable.of("costs", "", columns, labelled, records=records, title="Cost of a run")


def _ms(cost: Costs) -> str:
    text = or_dash(cost.epoch_ms, "{:,.1f}".format)
    return text if cost.epoch_ms_std is None else f"{text} ± {cost.epoch_ms_std:,.1f}"
