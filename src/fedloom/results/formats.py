"""The table of results as text: percent and units for people, plain numbers for programs."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict
from typing import Any, Literal, get_args

from tabulate import tabulate

from fedloom.core.errors import ConfigError, suggest_name
from fedloom.core.text import bytes_text, percent, plus_minus, seconds_text, seeds_text, with_unit
from fedloom.results.best_rows import best_rows
from fedloom.results.comparability import panel_titles, row_names
from fedloom.results.costs import costs, reached_mean
from fedloom.results.group import ResultRow
from fedloom.results.table import (
    figure_names,
    figure_text,
    grouped,
    metric_names,
    metric_text,
    protocols_of,
    result_table,
)
from fedloom.results.table_notes import comparison_notes, notes_of, table_measure
from fedloom.runs.storage.run_data import RunData

_SIGNS = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "±": r"$\pm$",
    "×": r"$\times$",
    "–": "--",
    "−": "$-$",
    "·": r"$\cdot$",
    "|": r"\textbar{}",
}
_COMMAND = re.compile(r"\\[a-z]+(\{\d+\}\{c\})?|[{}$&\\]")  # no letter of the page
_COLUMN, _PAGE = 55, 95  # characters that fit in a column, and over the page


def escaped(text: str) -> str:
    """Return text whose signs LaTeX prints as they are.

    Example:
        >>> print(escaped("a_b ± 5 %"))
        a\\_b $\\pm$ 5 \\%
    """
    return "".join(_SIGNS.get(sign, sign) for sign in " ".join(text.split()))


def bold(text: str) -> str:
    """Return escaped text in bold."""
    return rf"\textbf{{{text}}}"


def table_row(texts: Sequence[str]) -> str:
    """Return escaped texts as a line of a tabular."""
    line = f"{' & '.join(texts)} \\\\"
    return f"{{}}{line}" if line[0] in "[*" else line  # the rule or line break above would take these as its option


def latex_float(
    alignment: str, headings: Sequence[str], body: Sequence[str], caption: str, label: str, notes: Sequence[str] = ()
) -> str:
    """Return a table as a LaTeX float, whose preamble needs booktabs. A wide one takes the page, and small letters.

    alignment: a letter for each column, "lrr". headings: the lines above the rule, as LaTeX. body: the lines below it,
    as LaTeX. caption: the caption as text, without a full stop; empty for none.
    """
    named = [rf"  \caption{{{escaped(caption)}.}}", rf"  \label{{{label}}}"] if caption else []
    small = [rf"  \par\smallskip{{\footnotesize {escaped(' '.join(notes))}\par}}"] if notes else []
    widest = max((len(_COMMAND.sub("", line)) for line in (*headings, *body)), default=0)
    float_name, size = "table*" if widest > _COLUMN else "table", r"\footnotesize" if widest > _PAGE else ""
    return "\n".join(
        (
            r"% \usepackage{booktabs}",
            rf"\begin{{{float_name}}}[tb]",
            rf"  \centering{size}",
            *named,
            rf"  \begin{{tabular}}{{@{{}}{alignment}@{{}}}}",
            r"    \toprule",
            *(f"    {line}" for line in headings),
            r"    \midrule",
            *(f"    {line}" for line in body),
            r"    \bottomrule",
            r"  \end{tabular}",
            *small,
            rf"\end{{{float_name}}}",
        )
    )


Format = Literal["markdown", "latex", "csv", "text"]

# Columns for people: name, whether it is a number, and a row's text.
COLUMNS: tuple[tuple[str, bool, Callable[[ResultRow], str]], ...] = (
    ("method", False, lambda row: row["label"]),
    ("preset", False, lambda row: row["preset"]),
    ("protocol", False, lambda row: row["protocol"]),
    ("select", False, lambda row: row["select"]),
    ("n", True, lambda row: str(row["n"])),
    ("accuracy %", True, lambda row: plus_minus(row["accuracy"], row["std"])),
    ("best val %", True, lambda row: "–" if row["best_val"] is None else percent(row["best_val"])),
    ("up", True, lambda row: bytes_text(row["bytes_up"])),
    ("down", True, lambda row: bytes_text(row["bytes_down"])),
    ("time", True, lambda row: seconds_text(row["seconds"])),
)
# Columns for programs, apart from the settings in which rows differ.
_BEFORE = ("label", "method", "preset", "protocol", "select")
_AFTER = ("n", "accuracy", "std", "best_val", "bytes_up", "bytes_down", "seconds", "peak_memory_mb")


# Columns for diverged runs and attacks, shown if some row has them.
_DIVERGED: tuple[tuple[str, bool, Callable[[ResultRow], str]], ...] = (
    ("diverged", False, lambda row: seeds_text(row["diverged"]) if row["diverged"] else "no"),
)
_ATTACKED: tuple[tuple[str, bool, Callable[[ResultRow], str]], ...] = (
    ("attack", False, lambda row: row["attack"] or "none"),
    ("success %", True, lambda row: "–" if row["attack_success"] is None else percent(row["attack_success"])),
)

ATTACK_NOTE = (
    "success: share of flipped-class test samples taken for what the attack wants; other attacks show in the fall of "
    "accuracy against a run without them. All test data are clean"
)


def columns_for(rows: Sequence[ResultRow]) -> tuple[tuple[str, bool, Callable[[ResultRow], str]], ...]:
    """Return the columns that these rows need."""
    return (*COLUMNS, *(_figure(name) for name in figure_names(rows)), *optional_columns(rows))


def optional_columns(rows: Sequence[ResultRow]) -> tuple[tuple[str, bool, Callable[[ResultRow], str]], ...]:
    """Return the columns on further metrics, diverged runs and attacks that these rows need."""
    diverged = _DIVERGED if any(row["diverged"] for row in rows) else ()
    metrics = (_metric(name) for name in metric_names(rows))
    return (*metrics, *diverged, *(_ATTACKED if any(row["attack"] for row in rows) else ()))


def formatted(results: Sequence[RunData], format: str) -> str:
    """Return the table of `results` in a `Format`, or "html" for notebooks. Raises `ConfigError` for another format."""
    rows = result_table(results)
    if format == "csv":
        return rows_csv(rows)
    names, numeric, texts = zip(*columns_for(rows), strict=True)
    cells = [[text(row) for text in texts] for row in rows]
    if format != "latex":
        return text_table(cells, names, numeric, format)
    groups = grouped(results)
    titles = panel_titles(rows, row_names(rows))
    measures = [table_measure(name, groups, "percent") for name in ("accuracy", *metric_names(rows))]
    best = [
        best_rows(groups, titles, measure.complete, measure.lower) if measure.ranked else set[int]()
        for measure in measures
    ]
    bold_cells = {
        (index, names.index(with_unit(measure.name)))
        for measure, indices in zip(measures, best, strict=True)
        for index in indices
    }
    places = [(row["protocol"], row["select"]) for row in rows]
    notes = [*notes_of(groups, measures, best, ""), *comparison_notes(groups, titles, measures, best, places)]
    return text_table(cells, names, numeric, format, "Results of the finished runs", notes, bold_cells)


def formatted_targets(results: Sequence[RunData], targets: Sequence[float], format: str) -> str:
    """Return the cost of reaching accuracies, as `formatted`: means over the seeds that reached them.

    targets: accuracies in [0, 1]. format: "markdown", "latex", "csv" or "html".
    """
    groups = grouped(results)
    several = len(protocols_of(groups)) > 1
    reached_targets = [
        (group.row, target, reached_mean(group.results, target)) for group in groups for target in targets
    ]
    if format == "csv":
        return as_csv(
            [
                {"label": row["label"], "target": target}
                | asdict(reached)
                | {"protocol": row["protocol"]}
                | diverged_field(row["diverged"])
                for row, target, reached in reached_targets
            ]
        )
    names = ["method", *(["protocol"] if several else []), "target %", "seeds there", "round", "bytes", "FLOPs"]
    cells = [
        [
            label_with_notes(row["label"], None, row["diverged"]),
            *([row["protocol"]] if several else []),
            f"{100 * target:g}",
            f"{reached.n} of {reached.of}",
            _or_dash(reached.round, lambda value: f"{value:.0f}"),
            _or_dash(reached.bytes, bytes_text),
            _or_dash(reached.flops, lambda value: f"{value:.3g}"),
        ]
        for row, target, reached in reached_targets
    ]
    numeric = (*(False,) * (len(names) - 5), *(True,) * 5)
    return text_table(cells, names, numeric, format, "Cost of reaching an accuracy")


def formatted_costs(results: Sequence[RunData], format: str) -> str:
    """Return epoch times, also relative to FedAvg, FLOPs and bytes of a run, as `formatted`: means over seeds.

    A run in several protocols has one row.

    format: "markdown", "latex", "csv" or "html".
    """
    groups = [group for group in grouped(results) if not group.is_further]
    labelled_costs = list(zip((group.row["label"] for group in groups), costs(groups), strict=True))
    if format == "csv":
        return as_csv([{"label": label} | asdict(cost) for label, cost in labelled_costs])
    names = ("method", "ms per local epoch", "× FedAvg", "FLOPs", "bytes")
    cells = [
        [
            label,
            "–" if cost.epoch_ms is None else _ms(cost.epoch_ms, cost.epoch_ms_std),
            _or_dash(cost.relative, lambda value: f"{value:.2f}"),
            f"{cost.flops:.3g}",
            bytes_text(cost.bytes),
        ]
        for label, cost in labelled_costs
    ]
    return text_table(cells, names, (False, *(True,) * 4), format, "Cost of a run")


def _ms(mean: float, std: float | None) -> str:
    return f"{mean:,.1f}" if std is None else f"{mean:,.1f} ± {std:,.1f}"


def _or_dash(value: float | None, text: Callable[[float], str]) -> str:
    return "–" if value is None else text(value)


def text_table(
    cells: list[list[str]],
    names: Sequence[str],
    numeric: Sequence[bool],
    format: str,
    caption: str = "",
    notes: Sequence[str] = (),
    bold_cells: Collection[tuple[int, int]] = (),
) -> str:
    """Format cells as a markdown, latex, text or html table.

    cells: the texts, line by line. numeric: of each column, whether its cells are numbers. format: "markdown", "latex",
    "text" or "html". caption: of a table in LaTeX. notes: sentences below a table in LaTeX. bold_cells: line and column
    of cells that are bold in LaTeX.

    Raises:
        ConfigError: for another format.
    """
    align = ["right" if number else "left" for number in numeric]
    options: dict[str, Any] = {"disable_numparse": True, "colalign": align if cells else None}
    match format:
        case "markdown":
            names, *cells = [[*map(escaped_bars, line)] for line in (names, *cells)]
            return tabulate(cells, names, tablefmt="pipe", **options)
        case "text":
            return tabulate(cells, names, tablefmt="simple", **options)
        case "html":
            return tabulate(cells, names, tablefmt="html", **options)
    check_format(format)
    body = [
        table_row([bold(escaped(cell)) if (k, c) in bold_cells else escaped(cell) for c, cell in enumerate(line)])
        for k, line in enumerate(cells)
    ]
    alignment = "".join(side[0] for side in align)
    return latex_float(alignment, [table_row([*map(escaped, names)])], body, caption, "tab:results", notes)


def escaped_bars(text: str) -> str:
    """Return text that ends no cell of a table in markdown."""
    return text.replace("|", r"\|")


def check_format(format: str) -> None:
    """Raise `ConfigError` for a format that tables do not have."""
    formats = get_args(Format)
    if format not in formats:
        raise ConfigError(f"format = '{format}': {suggest_name(format, formats)}; tables come as {', '.join(formats)}")


def _figure(name: str) -> tuple[str, bool, Callable[[ResultRow], str]]:
    # A function, because a lambda in the loop over names would read the last name.
    return name, True, lambda row: figure_text(row, name)


def _metric(name: str) -> tuple[str, bool, Callable[[ResultRow], str]]:
    return with_unit(name), True, lambda row: metric_text(row, name)


def rows_csv(rows: Sequence[ResultRow]) -> str:
    """Return the plain numbers of the rows as CSV."""
    return as_csv([_plain(row) for row in rows])


def as_csv(rows: Sequence[dict[str, Any]]) -> str:
    """Return rows as CSV with a header of all keys in the order of their first appearance; None is an empty cell."""
    keys = list(dict.fromkeys(key for row in rows for key in row))
    stream = io.StringIO()
    writer = csv.DictWriter(stream, keys, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue().rstrip("\n")


def diverged_field(seeds: Sequence[int]) -> dict[str, str]:
    """Return the field of a row for programs that names the seeds of diverged runs; empty if none diverged."""
    return {"diverged": " ".join(map(str, seeds))} if seeds else {}


def label_with_notes(label: str, note: str | None, diverged: Sequence[int]) -> str:
    """Return a row's label, and in brackets what one has to know of it: a note, and the seeds of diverged runs.

    Example:
        >>> label_with_notes("fedgh", None, [1])
        'fedgh (diverged with seed 1)'
    """
    notes = filter(None, (note, f"diverged with {seeds_text(diverged)}" if diverged else None))
    text = "; ".join(notes)
    return f"{label} ({text})" if text else label


def _plain(row: ResultRow) -> dict[str, Any]:
    every: dict[str, Any] = dict(row)
    attacked = {key: every[key] for key in ("attack", "attack_success")} if row["attack"] else {}
    seeds = {"seeds": " ".join(map(str, row["seeds"]))}
    diverged = diverged_field(row["diverged"])
    metrics = row["metrics"] | {f"{name}_std": std for name, std in row["metrics_std"].items()}
    metrics |= {f"{name}_n": n for name, n in row["metrics_n"].items() if n < row["n"]}
    numbers = {key: every[key] for key in _AFTER} | metrics | row["figures"]
    return {key: every[key] for key in _BEFORE} | row["setting"] | seeds | numbers | diverged | attacked
