"""The tables of a page: results, costs, single clients, tuned values, and where the numbers come from."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import yaml
from markupsafe import Markup

from fedloom.core.text import bytes_text, counted, percent, seconds_text, seeds_text
from fedloom.data.scenario import client_samples
from fedloom.results.data_table import Cell, DataTable, Field, or_dash
from fedloom.results.group import Group, client_accuracies, display_name
from fedloom.results.pairs import Paired, family_note
from fedloom.results.plot_values import ChartRow
from fedloom.results.plots.palette import dash_number, tone_name
from fedloom.results.report.class_results import majority_accuracy
from fedloom.results.report.line_charts import by_panel
from fedloom.results.report.markup import (
    accuracy_cell,
    code_cell,
    details,
    facts,
    fold,
    name_cell,
    paragraph,
    table,
    words_cell,
)
from fedloom.results.result_tables import ATTACK_NOTE, figure_names, result_columns
from fedloom.runs.storage.finished_runs import TuningChoice
from fedloom.runs.storage.run_data import RunData
from fedloom.runs.storage.run_folder import RunFolder

_UNIFORM = ("preset", "protocol", "select")


def numbers_table(rows: Sequence[ChartRow], pairs: Sequence[Paired], saved: Callable[[str], DataTable]) -> Markup:
    """Render the results, one row per group, with the word of its comparison with the baseline.

    The caption states options that all rows share; majority baselines come below the rows. saved: makes the table that
    the links save in a format."""
    plain: list[Any] = [row.row for row in rows]
    several = len({row.panel for row in rows}) > 1
    in_words = {column.heading: column for column in result_columns(plain)}
    varying = [name for name in _UNIFORM if len({str(row[name]) for row in plain}) > 1]
    pair_by_label = {pair.label: pair for pair in reversed(pairs)}  # the first one of each label
    method_by_label = {row.row["label"]: row.method for row in rows}
    names = {method_by_label[pair.reference] for pair in pairs}
    reference = names.pop() if len(names) == 1 else "the baseline"
    columns: list[Field[ChartRow]] = [
        *_named(several),
        Field("accuracy %", lambda row: _accuracy(row.row["accuracy"], row.row["std"]), lambda r: r.row["accuracy"]),
        *(_of_row(in_words[name], _heading(name)) for name in figure_names(plain)),
    ]
    if pairs:
        columns.append(
            Field(
                f"against {reference}",
                lambda row: _against(pair_by_label.get(row.row["label"])),
                lambda row: pair_by_label[row.row["label"]].outcome.mean if row.row["label"] in pair_by_label else None,
            )
        )
    measured = {name for row in plain for name in row["metrics"] if not name.startswith("majority_")} - {"accuracy"}
    metrics = [name for name in in_words if name.partition(" ")[0] in measured]
    shown = [name for name in varying if name == "preset" or not several]  # settings name the others
    others = [name for name in ("diverged", "attack", "success %") if name in in_words]
    for name in (*metrics, "n", "best val %", *shown, *others):
        columns.append(_of_row(in_words[name], "at best val %" if name == "best val %" else _heading(name)))
    caption = "Test accuracy in percent, mean ± sample standard deviation over n seeds."
    caption += f" {family_note(plain)}" if pairs else ""
    shared = ", ".join(f"{name} {plain[0][name]}" for name in _UNIFORM if name not in varying)
    caption += f" All rows: {shared}." if shared else ""
    if any(row["attack"] for row in plain):
        caption += f" {ATTACK_NOTE[0].upper()}{ATTACK_NOTE[1:]}."
    sheet = DataTable.of("results", caption, columns, rows)
    return table(sheet, saved, foot=_majority_rows(rows, len(columns), several))


def _named(several: bool) -> list[Field[ChartRow]]:
    """The columns that name a row. several: whether there are several settings."""
    setting: Field[ChartRow] = Field("setting", lambda row: words_cell(row.panel))
    method: Field[ChartRow] = Field(
        "method", lambda row: name_cell(row.method, tone_name(row.tone), dash_number(row.tone))
    )
    return [method, setting] if several else [method]


def _of_row(column: Field[Any], heading: str) -> Field[ChartRow]:
    number = column.number
    return Field(heading, lambda row: column.text(row.row), number and (lambda row: number(row.row)))


def costs_table(rows: Sequence[ChartRow]) -> Markup:
    """Render bytes, seconds and memory of a run, a row a group."""
    plain: list[Any] = [row.row for row in rows]
    likes = {key: max(row[key] for row in plain) for key in ("bytes_up", "bytes_down", "seconds")}
    costs: list[Field[ChartRow]] = [
        Field("up", lambda r: bytes_text(r.row["bytes_up"], likes["bytes_up"]), lambda r: r.row["bytes_up"]),
        Field("down", lambda r: bytes_text(r.row["bytes_down"], likes["bytes_down"]), lambda r: r.row["bytes_down"]),
        Field("time", lambda r: seconds_text(r.row["seconds"], likes["seconds"]), lambda r: r.row["seconds"]),
        Field("memory MiB", lambda r: f"{r.row['peak_memory_mb']:,.0f}", lambda r: r.row["peak_memory_mb"]),
    ]
    several = len({row.panel for row in rows}) > 1
    words: list[Field[ChartRow]] = [Field("method", lambda row: row.method)]
    words += [Field("setting", lambda row: row.panel)] if several else []
    keys = ("label", "bytes_up", "bytes_down", "seconds", "peak_memory_mb")
    saved = DataTable.of(
        "costs", "", [*words, *costs], rows, records=[{key: row[key] for key in keys} for row in plain]
    )
    caption = "One run, all clients and rounds; mean over seeds, memory the largest."
    return table(DataTable.of("costs", caption, [*_named(several), *costs], rows), lambda format: saved)


def _majority_rows(rows: Sequence[ChartRow], columns: int, several: bool) -> list[list[Cell]]:
    """The accuracy of always predicting the most frequent class, for each setting where it is known."""
    foot: list[list[Cell]] = []
    for panel, members in by_panel(rows).items():
        share = next((m for member in members if (m := majority_accuracy(member.group)) is not None), None)
        if share is None:
            continue
        personal = members[0].row["protocol"].startswith("personal/")
        guess = "own majority class" if personal else "majority class"
        cells: list[Cell] = [name_cell(guess), *([words_cell(panel)] if several else []), _accuracy(share, None)]
        foot.append([*cells, *("" for _ in range(columns - len(cells)))])
    return foot


def _against(pair: Paired | None) -> str:
    if pair is None:
        return "–"
    # A difference that rounds to zero reads the same from both sides.
    points = f"{100 * pair.outcome.mean:+.1f}".replace("-0.0", "+0.0")
    family = f" ({pair.outcome.family})" if pair.outcome.family else ""
    return words_cell(f"{points}, {pair.outcome.verdict}{family}{pair.outcome.unplanned_text}")


def _accuracy(mean: float, std: float | None) -> Markup:
    return accuracy_cell(percent(mean), "" if std is None else percent(std))


def _heading(name: str) -> str:
    measure, *unit = name.split(" ", 1)
    return " ".join([display_name(measure), *unit])


_MEASURES = {"accuracy": "Accuracy %", "balanced_accuracy": "Balanced accuracy %", "macro_f1": "Macro F1 %"}
_MOST_ROWS = 4  # rows of the page that have such a table


def client_tables(rows: Sequence[ChartRow]) -> list[Markup]:
    """Render the clients of each row, of its first seed; nothing on a page of many rows."""
    tested = [row for row in rows if client_accuracies(row.group.results[0].rows)]
    return [_client_table(k, row) for k, row in enumerate(tested)] if len(tested) <= _MOST_ROWS else []


def _client_table(number: int, row: ChartRow) -> Markup:
    run = row.group.results[0]
    by_measure = {name: client_accuracies(run.rows, name) for name in _MEASURES}
    measures = {name: values for name, values in by_measure.items() if values}
    samples = client_samples(run.scenario)  # empty where no counts are kept
    columns = ["Client", *(["Training samples"] if samples else []), *(_MEASURES[name] for name in measures)]
    body: list[list[Cell]] = []
    records = []
    for client in sorted(by_measure["accuracy"]):
        shares = {name: values.get(client) for name, values in measures.items()}
        # scenario.json has the counts of the first clients only.
        held = {"training_samples": samples[client] if client < len(samples) else None} if samples else {}
        cells: list[Cell] = [(or_dash(n, "{:,}".format), n) for n in held.values()]
        cells += [(or_dash(share, percent), share) for share in shares.values()]
        body.append([f"client {client}", *cells])
        records.append({"client": client, **held, **shares})
    caption, untested = f"Seed {run.numbers['seed']}, last test.", run.numbers["clients"] - len(body)
    caption += f" Clients that were not tested: {untested:,}." if untested > 0 else ""
    sheet = table(DataTable(f"client-table-{number}", caption, columns, body, records=records), ends=["csv"])
    return fold(f"{row.row['label']}: each of {counted(len(body), 'client')}", [sheet])


_NAMED = 3


def tuning_blocks(choices: Sequence[TuningChoice]) -> list[Markup]:
    """Render the values that were chosen for each row, and the scores of all that were tried."""
    if not choices:
        return []
    keys = list(dict.fromkeys(key for choice in choices for key in choice.chosen))
    body: list[list[Cell]] = [
        [
            choice.group,
            *(str(choice.chosen.get(key, "–")) for key in keys),
            (choice.score_text, choice.score),
            words_cell("; ".join(choice.trials)),
        ]
        for choice in choices
    ]
    records = [
        {"row": choice.group, **choice.chosen, "validation": choice.score, "tried": "; ".join(choice.trials)}
        for choice in choices
    ]
    rules = " or ".join(dict.fromkeys(choice.rule for choice in choices))
    columns = ("Row", *keys, "Validation", "Tried")
    caption = f"Chosen on validation data: {rules}."
    most = max(len(choice.trials) for choice in choices)
    sheet = table(DataTable("tuning", caption, columns, body, records=records), ends=["csv"])
    summary = f"{', '.join(keys[:_NAMED])} for {counted(len(choices), 'row')}, {counted(most, 'trial')} each"
    return [paragraph("Each row has the values that were best on its own validation data."), fold(summary, [sheet])]


def configs(groups: Sequence[Group]) -> list[Markup]:
    """The resolved config of each group, as YAML."""
    blocks = []
    for group in groups:
        text = yaml.safe_dump(group.results[0].config, sort_keys=False, allow_unicode=True)
        others = group.row["seeds"][1:]
        also = f", alike for {seeds_text(others)}" if others else ""
        blocks.append(details(f"{group.row['label']}: resolved config of seed {group.row['seeds'][0]}{also}", text))
    return blocks


def environments(groups: Sequence[Group]) -> list[Markup]:
    """Hardware and versions of the runs that were kept on disk; runs of one machine are told once."""
    environments_by_text: dict[str, list[str]] = {}
    for group in groups:
        for result in group.results:
            environment = None if result.folder is None else RunFolder(result.folder).read_json("env.json")
            if environment is not None:
                key = json.dumps(environment, sort_keys=True)
                environments_by_text.setdefault(key, []).append(f"{group.row['label']} seed {result.numbers['seed']}")
    return [
        facts(([("Runs", ", ".join(runs))] if len(environments_by_text) > 1 else []) + _environment(json.loads(key)))
        for key, runs in environments_by_text.items()
    ]


def run_list(groups: Sequence[Group]) -> Markup:
    """Every run with its seed, its accuracy, its folder and the hash of its last checkpoint."""
    runs = [(group.row["label"], result) for group in groups for result in group.results]
    records = [{"run": label, **_plain(result)} for label, result in runs]
    body: list[list[Cell]] = [
        [
            record["run"],
            (str(record["seed"]), record["seed"]),
            (percent(record["accuracy"]), record["accuracy"]),
            (f"{record['peak_memory_mb']:,.0f}", record["peak_memory_mb"]),
            str(record["engine"]),
            code_cell(record["folder"]) if record["folder"] else "not kept",
            code_cell(record["checkpoint_sha256"]) if record["checkpoint_sha256"] else "–",
        ]
        for record in records
    ]
    columns = ("Run", "Seed", "Accuracy %", "Memory MiB", "Engine", "Folder", "Checkpoint sha256")
    caption = "Every run: peak memory, engine, folder, and the hash of its last checkpoint."
    return table(DataTable("runs", caption, columns, body, records=records), ends=["csv"])


def _plain(result: RunData) -> dict[str, Any]:
    keys = ("seed", "accuracy", "peak_memory_mb", "engine", "checkpoint_sha256")
    folder = str(result.folder) if result.folder is not None else result.numbers["run_dir"]
    if folder is not None:  # a name may hold bytes that are no text
        folder = folder.encode(errors="backslashreplace").decode()
    return {key: result.numbers[key] for key in keys} | {"folder": folder}


def _environment(environment: dict[str, Any]) -> list[tuple[str, str]]:
    plain = [(key.capitalize(), str(value)) for key, value in environment.items() if not isinstance(value, dict)]
    nested = [
        (name, str(value)) for inner in environment.values() if isinstance(inner, dict) for name, value in inner.items()
    ]
    return plain + nested
