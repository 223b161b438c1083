"""Tables of the command line. No cell is cut: a table wider than the terminal becomes one line for each cell."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, JustifyMethod
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from fedloom.core.console import fits, print_table, print_template
from fedloom.core.text import bytes_text, counted, percent, value_text, with_unit
from fedloom.results.group import ResultRow
from fedloom.results.result_tables import ATTACK_NOTE, metric_text, result_columns
from fedloom.results.risk_words import risk_sentences
from fedloom.runs.storage.log import curve, of_protocol
from fedloom.runs.storage.run_data import SECONDS, RunData

# Metrics that every run has; they follow the table of a comparison, which would be too wide with them.
_BELOW = ("balanced_accuracy", "macro_f1", "majority_global", "majority_own")
_FIRST_FACT_COLUMNS = 30  # columns of the terminal for it


def print_grid(console: Console, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print `rows` of plain text under the headings `columns`; all columns but the first wrap."""
    table = Table(box=SIMPLE_HEAD, header_style="bold")
    for index, column in enumerate(columns):
        table.add_column(column, style="cyan" if not index else None, no_wrap=not index, overflow="fold")
    # Text, because rich would read brackets in plain strings as markup.
    for row in rows:
        table.add_row(*map(Text, row))
    print_table(console, table, wraps=True)


def print_catalogue(console: Console, noun: str, items: Sequence[tuple[str, Mapping[str, str]]]) -> None:
    """Print names with facts: one column per fact if they fit, otherwise one block of text per name.
    noun: heading of the names. items: names, and facts by heading, equal for all; the first fact may wrap."""
    columns = [noun, *items[0][1]]
    wide = Table(box=SIMPLE_HEAD, header_style="bold")
    rows = [[name, *facts.values()] for name, facts in items]
    for index, column in enumerate(columns):
        widest = max(len(cell) for cell in [column, *(row[index] for row in rows)])
        wide.add_column(column, min_width=min(widest, _FIRST_FACT_COLUMNS) if index == 1 else widest)
    for row in rows:
        wide.add_row(*map(Text, row))
    if fits(console, wide, wraps=True):
        console.print(wide)
        return
    narrow = []
    for name, facts in items:
        first, *further = facts.items()
        narrow.append((name, "\n".join([first[1], "; ".join(f"{key}: {value}" for key, value in further if value)])))
    print_grid(console, (noun, "description"), narrow)


def print_result(console: Console, result: RunData, brief: bool = False) -> None:
    """Print the `result` of a run: its accuracy and, unless `brief`, its costs, metrics and notes."""
    further = [result.in_protocol(protocol) for protocol in result.protocols[1:]]
    words: dict[str, Any] = {"counted": counted, "percent": percent, "bytes_text": bytes_text, "value_text": value_text}
    words |= {"protocol_text": _protocol_text, "risk_sentences": risk_sentences, "SECONDS": SECONDS}
    values = {"n": result.numbers, "result": result, "further_protocols": further, "brief": brief}
    print_template(console, "fedloom.results", "result.txt", wraps=False, **values, **words)


def _protocol_text(result: RunData) -> str:
    protocol, clients = result.numbers["protocol"], result.numbers["clients"]
    tested = curve(of_protocol(result.rows, protocol), "clients", "test")[1]
    return f"{protocol} over {tested[-1]:.0f} of {clients} clients" if tested and tested[-1] < clients else protocol


def _in_ascii(console: Console, text: str) -> str:
    """Replace ± if the terminal knows ASCII only; it must happen before columns are measured."""
    return text.replace("±", "+-") if console.options.ascii_only else text


def print_comparison(console: Console, rows: Sequence[ResultRow]) -> None:
    """Print a table of methods, followed by its notes."""
    table = Table(box=SIMPLE_HEAD, header_style="bold")
    named = sorted({(row["protocol"], row["select"]) for row in rows})
    several = len({protocol for protocol, _ in named}) > 1
    hidden = {"select", *map(with_unit, _BELOW), *(() if several else ("protocol",))}
    columns = [column for column in result_columns(rows) if column.heading not in hidden]
    for column in columns:
        justify: JustifyMethod = "left" if column.number is None else "right"
        table.add_column(column.heading, justify=justify, no_wrap=column.heading != "preset")
    for row in rows:
        table.add_row(*(Text(_in_ascii(console, column.text(row))) for column in columns))
    print_table(console, table)
    selects = sorted({select for _, select in named})
    protocols = "; ".join(f"protocol {protocol}, round selected: {select}" for protocol, select in named)
    protocols = f"round selected: {', '.join(selects)}" if several and len(selects) == 1 else protocols
    console.print(f"  accuracy: mean ± sample std over n seeds; {protocols}")
    console.print("  best val: test accuracy at the round of best validation accuracy; up, down, time: per run")
    for name in _BELOW:
        texts = {row["label"]: metric_text(row, name) for row in rows if name in row["metrics"]}
        alike = len({*texts.values()}) == 1 and len(texts) == len(rows)
        values = [*texts.values()][:1] if alike else [f"{label} {text}" for label, text in texts.items()]
        if values:
            console.print(f"  {with_unit(name)}: {_in_ascii(console, escape(', '.join(values)))}", soft_wrap=True)
    if any(row["attack"] for row in rows):
        console.print(f"  {ATTACK_NOTE}", soft_wrap=True)
    for row in rows:
        for reason in row["stopped"]:
            console.print(f"  {escape(row['label'])}: {escape(reason)}", soft_wrap=True)
        for note in row["degenerate"]:
            console.print(f"  [yellow]{escape(row['label'])} is degenerate:[/] {escape(note)}", soft_wrap=True)
