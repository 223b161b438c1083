"""The measures of every single client of a row, as a table that folds and filters."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from fedloom.core.text import counted, percent
from fedloom.results.clients import client_accuracies
from fedloom.results.formats import as_csv
from fedloom.results.page_sections import Cell
from fedloom.results.report.chart_rows import ChartRow
from fedloom.results.report.markup import fold, name_cell, table
from fedloom.runs.storage.run_data import RunData

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
    samples = _training_samples(run)
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


def _training_samples(run: RunData) -> list[int]:
    """The training samples of the clients whose counts are kept; empty where none are."""
    return [sum(counts) for counts in run.scenario.get("class_counts") or []]
