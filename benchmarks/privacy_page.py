"""Tables of docs/privacy-leaks.md, from results/privacy.json.

python benchmarks/privacy_page.py          # after privacy.py
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from fedloom.core.files import write_atomic
from marked_tables import with_tables
from privacy import CELLS

RESULTS = Path(__file__).parent / "results" / "privacy.json"
PAGE = Path(__file__).parents[1] / "docs" / "privacy-leaks.md"
Rows = list[dict[str, Any]]


def tables() -> dict[str, str]:
    """The tables of the page by the name between their marks."""
    found = json.loads(RESULTS.read_text(encoding="utf-8"))
    cells = sorted(found["cells"], key=lambda row: CELLS.index((row["method"], row["wrapper"])))
    labels = sorted(found["labels"], key=lambda row: row["method"])
    return {"prices": price_table(cells), "inputs": input_table(cells), "labels": label_table(labels)}


def price_table(rows: Rows) -> str:
    """A line for each cell: accuracy, bytes, epsilon, and one figure of each attack."""
    columns: dict[str, Callable[[dict[str, Any]], float | None]] = {
        "accuracy, %": lambda row: row["accuracy"],
        "KiB up": lambda row: row["bytes_up"] / 1024,
        "epsilon": lambda row: row["epsilon"],
        "labels, round 1": lambda row: row["labels"]["first"]["error"],
        "labels, round 20": lambda row: row["labels"]["last"]["error"],
        "4 inputs, dB": lambda row: row["inputs"]["4"]["exact"],
        "prototypes, dB": lambda row: row["prototypes"] and row["prototypes"]["inverted"],
        "members, upload": lambda row: row["membership"]["upload"],
        "members, global": lambda row: row["membership"]["global"],
    }
    digits = (1, 1, 0, 2, 2, 1, 1, 2, 2)
    lines = ["| method | " + " | ".join(columns) + " |", "|---|" + "---:|" * len(columns)]
    for name, of_cell in _by_name(rows, lambda row: _title(row["method"], row["wrapper"])):
        cells = [_cell(map(value, of_cell), places) for value, places in zip(columns.values(), digits, strict=True)]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    uniform = [row["labels"]["first"]["uniform"] for row in rows]
    blind = [row["inputs"]["4"]["mean image"] for row in rows]
    of_class = [row["prototypes"]["mean image"] for row in rows if row["prototypes"]]
    guess = [
        "",
        "",
        "",
        _cell(uniform, 2),
        _cell(uniform, 2),
        _cell(blind, 1),
        _cell(of_class, 1),
        "0.50",
        "0.50",
    ]
    return "\n".join([*lines, "| *a guess without any upload* | " + " | ".join(guess) + " |"]) + "\n"


def input_table(rows: Rows) -> str:
    """A line for each cell that sends a first layer: PSNR by size of the batch, of the exact attack and the search."""
    sizes, lines = ("1", "4", "16"), ["| method | 1 sample | 4 | 16 | search, 1 | search, 4 |", "|---|" + "---:|" * 5]
    for name, of_cell in _by_name(rows, lambda row: _title(row["method"], row["wrapper"])):
        if of_cell[0]["inputs"]["1"]["exact"] is None:
            continue
        cells = [_cell((row["inputs"][size]["exact"] for row in of_cell), 1) for size in sizes]
        cells += [_cell((row["inputs"][size]["search"] for row in of_cell), 1) for size in sizes[:2]]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    blind = [_cell((row["inputs"][size]["mean image"] for row in rows), 1) for size in (*sizes, *sizes[:2])]
    return "\n".join([*lines, "| *the mean image* | " + " | ".join(blind) + " |"]) + "\n"


def label_table(rows: Rows) -> str:
    """A line for each method: error of the guessed label shares after the first round, and what they come from."""
    lines = ["| method | error | from |", "|---|---:|---|"]
    for name, of_method in _by_name(rows, lambda row: row["method"]):
        sources = dict.fromkeys(source for row in of_method for source in row["from"])
        lines.append(f"| {name} | {_cell((row['error'] for row in of_method), 2)} | {', '.join(sources)} |")
    uniform = _cell((row["uniform"] for row in rows), 2)
    return "\n".join([*lines, f"| *equal shares* | {uniform} | |"]) + "\n"


def _by_name(rows: Rows, name: Callable[[dict[str, Any]], str]) -> Iterable[tuple[str, Rows]]:
    return [(one, [row for row in rows if name(row) == one]) for one in dict.fromkeys(map(name, rows))]


def _title(method: str, wrapper: str) -> str:
    return f"{method}, {wrapper}" if " " in wrapper else f"{method}+{wrapper}" if wrapper else method


def _cell(values: Iterable[float | None], places: int) -> str:
    """Mean and standard deviation over seeds; a dash where the attack has nothing to work on."""
    known = [value for value in values if value is not None]
    if not known:
        return "–"
    mean, spread = float(np.mean(known)), float(np.std(known, ddof=1)) if len(set(known)) > 1 else 0.0
    return f"{mean:.{places}f}" + (f" ± {spread:.{places}f}" if round(spread, places) > 0 else "")


if __name__ == "__main__":
    write_atomic(PAGE, with_tables(PAGE.read_text(encoding="utf-8"), tables()))
