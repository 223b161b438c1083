"""Clinical reports: the items of `templates/clinical.yaml`, filled by a run's files and the answers in report.yaml."""

import inspect
from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from fedloom.core.errors import ConfigError, printable, short_repr, suggest_name
from fedloom.core.files import one_line, parse_yaml, read_file, refuse_unwritable, write_atomic
from fedloom.core.text import flat, listed, value_text
from fedloom.results import export_model, plot_values, result, risk_words, table, unseen_tables
from fedloom.results.data_table import DataTable
from fedloom.results.group import client_accuracies
from fedloom.results.page_sections import Block
from fedloom.results.report import check_place, class_charts, class_results, markup, risk_charts, sections
from fedloom.runs.storage.folders import refuse_links
from fedloom.runs.storage.log import curve
from fedloom.runs.storage.run_data import RunData
from fedloom.runs.storage.run_folder import EVALUATIONS, RunFolder

_STATES = ("filled", "partly", "to be written")
_FIRST = "# Answers for `fedloom report RUN --clinical`. Write a text behind a key, or in several lines below `|`.\n"
_UNKNOWN = "Unknown: this run recorded no counts. Nodes keep theirs, and runs of earlier versions lack them."
_LONGEST = 1 << 18  # characters of the answers; parsed within seconds
_MARK = b"\n<!-- fedloom report -->\n"
_MOST, _MOST_CLASSES = 200, 30  # rows of a table, columns of a matrix
_PARTS = ("training", "validation", "test", "newcomers' training", "newcomers' test", "public")


def write_clinical(run: RunData, folder: Path, page: Path) -> dict[str, int]:
    """Write the report of the run in a folder as an HTML page and, beside it, in Markdown; return how many items have
    each state. The first report of a run writes report.yaml in its folder, with a key for each question. Raises
    `ConfigError` for files in the way and for answers that cannot be used, `RunFolderError` for damaged files."""
    markdown = page.with_suffix(".md")
    check_place(page)
    check_place(markdown, _MARK)
    chapters = _chapters(run, RunFolder(folder))
    states = [entry["state"] for entries in chapters.values() for entry in entries]
    charts = class_charts.class_blocks(plot_values.chart_rows(table.grouped([run])))
    for part in (part for parts in chapters.values() for part in parts):
        part["html"] = [sections.render_block(part["key"], of) for of in part["blocks"]]
        part["html"] += charts if part["number"] == "23a" else []
    title = f"Clinical report of {run.numbers['method']} on {run.numbers['source']}, seed {run.numbers['seed']}"
    counts = {state: states.count(state) for state in _STATES}
    values: dict[str, Any] = {"title": title, "counts": counts, "sections": chapters}
    write_atomic(page, printable(markup.render_page("clinical.html", **values), keep_lines=True))
    write_atomic(markdown, export_model.render_markdown("clinical.md", **values) + _MARK.decode())
    return counts


def _chapters(run: RunData, folder: RunFolder) -> dict[str, list[dict[str, Any]]]:
    """Return the items of clinical.yaml by section, each with its key, heading, state, blocks, and answer in lines."""
    text = (files(__package__) / "templates" / "clinical.yaml").read_text(encoding="utf-8")
    chapters: dict[str, list[dict[str, Any]]] = parse_yaml(text)
    entries = [entry for chapter in chapters.values() for entry in chapter]
    for entry in entries:
        entry["key"] = entry["title"].lower().replace(" ", "_")
        entry["heading"] = f"{entry['number']} {entry['title']} [{entry['stard']}]".removesuffix(" []")
    answers = _answers(folder.path / "report.yaml", {entry["key"]: entry for entry in entries if "question" in entry})
    contents = [folder.read_evaluation(p.stem, run.numbers) for p in sorted((folder.path / EVALUATIONS).glob("*.json"))]
    again = [run.as_evaluated(content) for content in contents if content]
    facts = _of_data(run, again) | _of_counts(run) | _of_tests(run, again)
    named = {k: getattr(run, k) for k in ("config", "scenario", "numbers")} | {"env": folder.read_json("env.json")}
    for entry in entries:
        blocks = entry.get("text"), *facts.get(entry["number"], []), _keys_table(named, entry.get("keys", []))
        entry["blocks"] = [block for block in blocks if block and getattr(block, "rows", True)]
        entry["answer"] = answers.get(entry["key"], "").splitlines()
        is_open = ("question" in entry and not entry["answer"]) or _UNKNOWN in entry["blocks"]
        entry["state"] = _STATES[0 if not is_open else 1 if entry["blocks"] else 2]
    return chapters


def _answers(path: Path, questions: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Return the answers by key. Questions that the file lacks, or all if it is missing, are appended to it. Raises
    `ConfigError` for damage, for unknown keys, and for a file to which nothing can be appended."""
    refuse_links([path])
    try:
        refuse_unwritable(path)
        raw, problem = read_file(path) if path.exists() else _FIRST.encode(), "not readable as YAML"
        values = parse_yaml(raw.decode("utf-8-sig"), _LONGEST) or {}
        _check_answers(path, values, questions)
        if lacking := questions.keys() - values.keys():
            keys = [f"\n# {q['heading']}: {q['question']}\n{key}:\n" for key, q in questions.items() if key in lacking]
            whole = raw + b"\n" * (not raw.endswith(b"\n")) + "".join(keys).encode()
            problem = f"lacks {min(lacking)}, and further questions fit only below lines `key: text` without braces"
            parse_yaml(whole.decode("utf-8-sig"), _LONGEST)
            write_atomic(path, whole)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be used ({error.strerror})") from None
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: {problem}: {one_line(error)}") from None
    return {key: str(value).strip() for key, value in values.items() if value is not None}


def _check_answers(path: Path, values: Any, questions: dict[str, dict[str, Any]]) -> None:
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: {short_repr(values)} answers no question; need a line `key: text` for each answer")
    for key, value in values.items():
        if key not in questions:
            raise ConfigError(f"{path}: unknown key {short_repr(key)}: {suggest_name(str(key), questions)}")
        if isinstance(value, dict | list | bool):
            raise ConfigError(f"{path}: {key} = {short_repr(value)}: need a text; put it in quotes, or behind `|`")


def _keys_table(values: Any, paths: Sequence[str]) -> DataTable:
    rows = list[tuple[str, Any]]()
    for path in paths:
        value: Any = reduce(lambda of, key: of.get(key) if isinstance(of, dict) else None, path.split("."), values)
        rows += flat({path: value}) if isinstance(value, dict) else [(path, value)]
    rows = [(path.partition(".")[2], value) for path, value in rows if value not in (None, "None", "[]", [], "{}", "")]
    return _table("keys", "", ("key", "value"), rows, folds=len(rows) > 20)


def _table(name: str, caption: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], **keys: Any) -> DataTable:
    caption += f" These are the first {_MOST} of {len(rows):,} rows." if len(rows) > _MOST else ""
    cells = [["–" if v is None else f"{v:.4g}" if type(v) is float else str(v) for v in row] for row in rows[:_MOST]]
    return DataTable(name, caption, columns, cells, **keys)


def _of_data(run: RunData, again: Sequence[RunData]) -> dict[str, list[Block]]:
    scenario, expected = run.scenario, run.scenario.get("input") or {}
    held_out = len((run.numbers.get("newcomers") or {}).get("clients") or ())
    others = sorted({str(test.numbers["source"]) for test in again} - {run.numbers["source"]})
    validated = f"Tested clients that never trained: {held_out:,}. Other tested data: {listed(others) or 'none'}."
    ranges = zip(*(expected.get(key) or [] for key in ("features", "ranges")), strict=False)
    columns = ("column", "strategy", "value", "observed", "missing", "indicator")
    imputed = [[column.get(name) for name in columns] for column in expected.get("imputed") or []]
    kind = "labels" if "labels" in scenario else "classes"
    losses = [(split, curve(run.rows, "loss", split)[1]) for split in ("train", "test")]
    classes = scenario.get("classes", [])
    return {
        "5a": [validated if held_out or others else "Not validated outside these data."],
        "7": [[f"{note}." for note in scenario.get("notes", [])] or "fedloom noted nothing unusual in the data."],
        "8a": [f"The outcome has {len(classes):,} {kind}: {listed(classes[:_MOST])}. Item 21 counts their rows."],
        "9b": [_table("features", "", ("predictor", "from", "to"), [(name, *ends) for name, ends in ranges])],
        "11": [_table("imputed", "Cells of training rows.", columns, imputed)],
        "16": [[f"Loss on {split} rows in the last round: {of[-1]:.4g} nats." for split, of in losses if of]],
    }


def _of_counts(run: RunData) -> dict[str, list[Block]]:
    recorded, classes = run.scenario.get("flow", {}), run.scenario.get("classes", [])
    stages = {name: recorded[name] for name in ("read", "labelled", "complete", *_PARTS) if name in recorded}
    parts = {name: of["classes"] for name, of in stages.items() if of.get("classes") and of["rows"]}
    if not parts:
        return {number: [_UNKNOWN] for number in ("10", "13", "20a", "20b", "20c", "21")}
    note = "A group is a person, or whatever the key group names; a dash stands for none. Newcomers never trained."
    note += "" if "read" in stages else " How many rows were read, and lacked a label or a value, is unknown."
    rows = [(name, of["rows"], of["groups"]) for name, of in stages.items()]
    flow: list[Block] = [_table("flow", note, ("stage", "rows", "groups"), rows)]
    held = {k: {s: f"{n} / {of}".removesuffix(" / None") for s, n, of in v["sites"]} for k, v in stages.items()}
    sites = dict.fromkeys(site for of in held.values() for site in of)
    at_site = [[site, *(of.get(site) for of in held.values())] for site in sites]
    totals, by_class = [stages[name]["rows"] for name in parts], zip(classes, *parts.values(), strict=False)
    shares = [[c, *(f"{n:,} ({n / of:.1%})" for n, of in zip(row, totals, strict=True))] for c, *row in by_class]
    events: list[Block] = [_table("events", "Rows, and share of the part.", ("class", *parts), shares)]
    by_site = _table("sites", "Rows / groups at the first 200 sites of a stage.", ("site", *held), at_site)
    return {"10": flow, "13": events, "20a": flow, "20b": [by_site], "20c": events, "21": events}


def _of_tests(run: RunData, again: Sequence[RunData]) -> dict[str, list[Block]]:
    from fedloom.evaluation import METRICS  # brings torch

    values, by_site = list[tuple[str, ...]](), dict[str, dict[int, float]]()
    for protocol in run.protocols:
        numbers = (view := run.in_protocol(protocol)).numbers
        ends = (numbers.get("intervals") or {}).get("values", {})
        for name, value in {"accuracy": numbers["accuracy"], **numbers.get("metrics", {})}.items():
            bounds = [value_text(name, v) for k in ("low", "high") if (v := ends.get(name, {}).get(k)) is not None]
            values.append((protocol, name, value_text(name, value), " to ".join(bounds)))
            by_site |= {f"{protocol} {name}": of} if (of := client_accuracies(view.rows, name)) else {}
    caption = f"Values at the round selected by {run.numbers['select']}; intervals of the test after the last round."
    columns = ("protocol", "measure", "value", "interval")
    blocks: list[Block] = [_table("performance", caption, columns, values, heads=2)]
    groups, subgroups = table.grouped([run]), [result.group_table([test]) for test in again]
    results, curve = class_results.class_results(groups[0]), class_results.calibration(groups[0])
    label, curves = risk_charts.risk_curves(groups[0])
    if results and results.confusion and len(results.classes) <= _MOST_CLASSES:
        rows: list[list[Any]] = [[name, *row] for name, row in zip(results.classes, results.confusion, strict=True)]
        blocks.append(_table("confusion", "Test rows by predicted class.", ("true class", *results.classes), rows))
    if curve:
        rows = [[100 * of[1], 100 * of[2], of[0]] for of in curve.bins if of]
        blocks.append(_table("calibration", "Calibration.", ("confidence %", "right %", "rows"), rows, heads=0))
    for points in map(risk_charts.net_benefits, curves):
        caption = f"Net benefit of treating those with a risk of {label} from a threshold on, or all; of none it is 0."
        blocks.append(_table("benefit", caption, ("threshold %", "model %", "all %"), points, heads=0))
    further = enumerate((unseen_tables.newcomer_table(groups), *subgroups))
    blocks += [replace(of, name=f"{of.name}-{k}") for k, of in further]
    clients = sorted({client for of in by_site.values() for client in of})
    rows = [[f"client {k}", *(value_text(name.split()[1], of.get(k)) for name, of in by_site.items())] for k in clients]
    names = dict.fromkeys(name for _, name, *_ in values)
    texts = {name: inspect.getdoc(METRICS.get(name)) or "" for name in names if name in METRICS}
    measures = [(name, " ".join(texts.get(name, "–").partition("\n\n")[0].split())) for name in names]
    tested = dict.fromkeys(str(record["group"]) for of in subgroups for record in of.records or ())
    return {
        "12e": [_table("measures", "", ("measure", "definition"), measures)],
        "14": [f"Subgroups tested, see item 23a: {listed(tested)}." if tested else "No subgroup was tested."],
        "15": [risk_words.risk_sentences(run.numbers) or "No threshold: the prediction is the most probable class."],
        "23a": [*blocks, "" if run.numbers.get("intervals") else "No intervals: evaluation.intervals is not set."],
        "23b": [_table("by-site", "", ("site", *by_site), rows) if rows else "No single site was tested."],
    }
