"""The tables of a page: results, costs, single clients, tuned values, and where the numbers come from."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import yaml
from markupsafe import Markup

from fedloom.core.text import bytes_text, counted, percent, seconds_text, seeds_text
from fedloom.results.difference import Paired
from fedloom.results.formats import ATTACK_NOTE, Format, as_csv, optional_columns, text_table
from fedloom.results.group import Group, client_accuracies, display_name
from fedloom.results.page_sections import Cell
from fedloom.results.plots.palette import dash_number
from fedloom.results.report.class_results import majority_accuracy
from fedloom.results.report.line_charts import ChartRow, by_panel
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
from fedloom.results.table import figure_names, figure_text
from fedloom.runs.storage.finished_runs import TuningChoice
from fedloom.runs.storage.run_data import RunData
from fedloom.runs.storage.run_folder import RunFolder

_UNIFORM = ("preset", "protocol", "select")
_COSTS = ("up", "down", "time", "memory MiB")
_FORMATS: dict[str, Format] = {"md": "markdown", "tex": "latex"}


def numbers_table(rows: Sequence[ChartRow], pairs: Sequence[Paired], saved: Mapping[str, str]) -> Markup:
    """Render the results, one row per group, with the word of its comparison with the baseline.

    The caption states the protocol and options that all rows share; the majority baselines come below the rows.

    rows: rows of the table of results. pairs: comparisons with the baseline. saved: as `markup.table` takes it.
    """
    plain = [row.row for row in rows]
    figures, several = figure_names(plain), len({row.panel for row in rows}) > 1
    optional = [column for column in optional_columns(plain) if not column[0].startswith("majority_")]
    measured = {name for row in plain for name in row["metrics"]}
    metrics = [column for column in optional if _metric(column[0]) in measured]
    others = [column for column in optional if column not in metrics]
    varying = [name for name in _UNIFORM if len({str(row[name]) for row in plain}) > 1]  # type: ignore[literal-required]
    shown = [name for name in varying if name == "preset" or not several]  # settings name the others
    pair_by_label: dict[str, Paired] = {}
    for pair in pairs:
        pair_by_label.setdefault(pair.label, pair)
    method_by_label = {row.row["label"]: row.method for row in rows}
    names = {method_by_label[pair.reference] for pair in pairs}
    reference = names.pop() if len(names) == 1 else "the baseline"
    columns = ["method", *(["setting"] if several else []), "accuracy %"]
    columns += [f"against {reference}"] if pairs else []
    columns += [
        *(name for name, *_ in metrics),
        *figures,
        "n",
        "at best val %",
        *shown,
        *(name for name, *_ in others),
    ]
    body: list[list[Cell]] = []
    for chart_row, row in zip(rows, plain, strict=True):
        cells: list[Cell] = [name_cell(chart_row.method, chart_row.color, dash_number(chart_row.tone))]
        cells += [words_cell(chart_row.panel)] if several else []
        cells += [(_accuracy(row["accuracy"], row["std"]), row["accuracy"])]
        cells += [_against(pair_by_label.get(row["label"]))] if pairs else []
        cells += [(text(row), row["metrics"].get(_metric(name))) for name, _, text in metrics]
        cells += [(figure_text(row, name), row["figures"].get(name)) for name in figures]
        cells += [(str(row["n"]), row["n"]), (_or_dash(row["best_val"]), row["best_val"])]
        cells += [str(row[name]) for name in shown]  # type: ignore[literal-required]
        cells += [(text(row), row["attack_success"]) if number else text(row) for _, number, text in others]
        body.append(cells)
    caption = "Test accuracy in percent, mean ± sample standard deviation over n seeds."
    if any(pair.outcome.addition for pair in pairs):
        caption += " A star: the interval alone leaves out zero, or the exact check disagrees."
    shared = ", ".join(f"{name} {plain[0][name]}" for name in _UNIFORM if name not in varying)  # type: ignore[literal-required]
    caption += f" All rows: {shared}." if shared else ""
    if any(row["attack"] for row in plain):
        caption += f" {ATTACK_NOTE[0].upper()}{ATTACK_NOTE[1:]}."
    numeric = {"accuracy %", f"against {reference}", *figures, "n", "at best val %"}
    numeric |= {name for name, number, _ in optional if number}
    return table(
        "results-note",
        caption,
        [_heading(name) for name in columns],
        {_heading(name) for name in numeric},
        body,
        saved,
        foot=_majority_rows(rows, len(columns), several),
    )


def costs_table(rows: Sequence[ChartRow]) -> Markup:
    """Render bytes, seconds and memory of a run, a row a group."""
    plain = [row.row for row in rows]
    up, down = max(row["bytes_up"] for row in plain), max(row["bytes_down"] for row in plain)
    time, several = max(row["seconds"] for row in plain), len({row.panel for row in rows}) > 1
    columns = ["method", *(["setting"] if several else []), *_COSTS]
    body: list[list[Cell]] = []
    texts = []
    for chart_row, row in zip(rows, plain, strict=True):
        numbers = [
            (bytes_text(row["bytes_up"], up), row["bytes_up"]),
            (bytes_text(row["bytes_down"], down), row["bytes_down"]),
            (seconds_text(row["seconds"], time), row["seconds"]),
            (f"{row['peak_memory_mb']:,.0f}", row["peak_memory_mb"]),
        ]
        setting = [chart_row.panel] if several else []
        body.append(
            [
                name_cell(chart_row.method, chart_row.color, dash_number(chart_row.tone)),
                *map(words_cell, setting),
                *numbers,
            ]
        )
        texts.append([chart_row.method, *setting, *(text for text, _ in numbers)])
    keys = ("label", "bytes_up", "bytes_down", "seconds", "peak_memory_mb")
    csv = as_csv([{key: row[key] for key in keys} for row in plain])  # type: ignore[literal-required]
    numeric = [name in _COSTS for name in columns]
    saved = {"csv": csv} | {end: text_table(texts, columns, numeric, form) for end, form in _FORMATS.items()}
    caption = "One run, all clients and rounds; mean over seeds, memory the largest."
    return table("costs-note", caption, [_heading(name) for name in columns], set(map(_heading, _COSTS)), body, saved)


def _metric(heading: str) -> str:
    """The name of a metric, whose heading ends in its unit."""
    return heading.partition(" ")[0]


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


def _against(pair: Paired | None) -> tuple[str | Markup, float | None]:
    if pair is None:
        return "–", None
    outcome = pair.outcome
    mark = " *" if outcome.addition else ""
    points = f"{100 * outcome.mean:+.1f}".replace("-0.0", "+0.0")
    return words_cell(f"{points}, {outcome.word}{mark}"), outcome.mean


def _accuracy(mean: float, std: float | None) -> Markup:
    return accuracy_cell(percent(mean), "" if std is None else percent(std))


def _or_dash(share: float | None) -> str:
    return "–" if share is None else percent(share)


def _heading(name: str) -> str:
    measure, *unit = name.split(" ", 1)
    words = " ".join([display_name(measure), *unit])
    return name if name == "n" else f"{words[:1].upper()}{words[1:]}"


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
    samples = [sum(counts) for counts in run.scenario.get("class_counts") or []]  # empty where no counts are kept
    columns = ["Client", *(["Training samples"] if samples else []), *(_MEASURES[name] for name in measures)]
    body: list[list[Cell]] = []
    plain = []
    for client in sorted(by_measure["accuracy"]):
        shares = {name: values.get(client) for name, values in measures.items()}
        held = {"training_samples": samples[client] if client < len(samples) else None} if samples else {}
        cells: list[Cell] = [name_cell(f"client {client}")]
        cells += [("–" if n is None else f"{n:,}", n) for n in held.values()]
        cells += [("–" if share is None else percent(share), share) for share in shares.values()]
        body.append(cells)
        plain.append({"client": client, **held, **shares})
    caption, untested = f"Seed {run.numbers['seed']}, last test.", run.numbers["clients"] - len(body)
    caption += f" Clients that were not tested: {untested:,}." if untested > 0 else ""
    name = f"client-table-{number}"
    sheet = table(f"{name}-note", caption, columns, set(columns[1:]), body, {"csv": as_csv(plain)})
    return fold(f"{row.row['label']}: each of {counted(len(body), 'client')}", [sheet])


_NAMED = 3


def tuning_blocks(choices: Sequence[TuningChoice]) -> list[Markup]:
    """Render the values that were chosen for each row, and the scores of all that were tried."""
    if not choices:
        return []
    keys = list(dict.fromkeys(key for choice in choices for key in choice.chosen))
    body: list[list[Cell]] = [
        [
            name_cell(choice.group),
            *(str(choice.chosen.get(key, "–")) for key in keys),
            (choice.score_text, choice.score),
            words_cell("; ".join(choice.trials)),
        ]
        for choice in choices
    ]
    plain = [
        {"row": choice.group, **choice.chosen, "validation": choice.score, "tried": "; ".join(choice.trials)}
        for choice in choices
    ]
    rules = " or ".join(dict.fromkeys(choice.rule for choice in choices))
    columns = ("Row", *keys, "Validation", "Tried")
    caption = f"Chosen on validation data: {rules}."
    most = max(len(choice.trials) for choice in choices)
    sheet = table("tuning-note", caption, columns, {"Validation"}, body, {"csv": as_csv(plain)})
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
    body = [[name_cell(label), *_run(result)] for label, result in runs]
    plain = [{"run": label, **_plain(result)} for label, result in runs]
    numeric = {"Seed", "Accuracy %", "Memory MiB"}
    columns = ("Run", "Seed", "Accuracy %", "Memory MiB", "Engine", "Folder", "Checkpoint sha256")
    caption = "Every run: peak memory, engine, folder, and the hash of its last checkpoint."
    return table("runs-note", caption, columns, numeric, body, {"csv": as_csv(plain)})


def _plain(result: RunData) -> dict[str, Any]:
    """Return the plain numbers of one run for the CSV."""
    keys = ("seed", "accuracy", "peak_memory_mb", "engine", "checkpoint_sha256")
    folder = str(result.folder) if result.folder is not None else result.numbers["run_dir"]
    if folder is not None:  # a name may hold bytes that are no text
        folder = folder.encode(errors="backslashreplace").decode()
    return {key: result.numbers[key] for key in keys} | {"folder": folder}


def _run(result: RunData) -> list[Cell]:
    plain = _plain(result)
    return [
        (str(plain["seed"]), plain["seed"]),
        (percent(plain["accuracy"]), plain["accuracy"]),
        (f"{plain['peak_memory_mb']:,.0f}", plain["peak_memory_mb"]),
        str(plain["engine"]),
        code_cell(plain["folder"]) if plain["folder"] else "not kept",
        code_cell(plain["checkpoint_sha256"]) if plain["checkpoint_sha256"] else "–",
    ]


def _environment(environment: dict[str, Any]) -> list[tuple[str, str]]:
    plain = [(key.capitalize(), str(value)) for key, value in environment.items() if not isinstance(value, dict)]
    nested = [
        (name, str(value)) for inner in environment.values() if isinstance(inner, dict) for name, value in inner.items()
    ]
    return plain + nested
