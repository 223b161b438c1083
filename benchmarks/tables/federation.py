"""Tables of the pages on hostile nodes and on measured leaks."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from benchmarks.data import RESULTS, Row, read_rows
from benchmarks.tables.words import markdown
from fedloom.flower.scores import OUTLYING

Rows = list[Row]
_PRICES: dict[str, tuple[int, Callable[[Row], Any]]] = {  # digits, and the value of a cell
    "accuracy, %": (1, lambda cell: cell["accuracy"]),
    "KiB up": (1, lambda cell: cell["bytes_up"] / 1024),
    "epsilon": (0, lambda cell: cell["epsilon"]),
    "labels, round 1": (2, lambda cell: cell["labels.first.error"]),
    "labels, round 20": (2, lambda cell: cell["labels.last.error"]),
    "4 inputs, dB": (1, lambda cell: cell["inputs.4.exact"]),
    "prototypes, dB": (1, lambda cell: cell["prototypes.inverted"]),
    "members, upload": (2, lambda cell: cell["membership.upload"]),
    "members, global": (2, lambda cell: cell["membership.global"]),
}
_SETTINGS = {"ten nodes": "ten", "3 of 20": "3 of 20", "three nodes": "three", "two nodes": "two"}
_BLIND = {  # the error of a guess without any upload
    "labels, round 1": "labels.first.uniform",
    "labels, round 20": "labels.first.uniform",
    "4 inputs, dB": "inputs.4.mean image",
    "prototypes, dB": "prototypes.mean image",
}


def tables() -> dict[str, str]:
    """Return the tables by name."""
    names = ("hostile", "median", "honest", "lies", "privacy", "privacy-labels", "privacy-stages")
    hostile, median, honest, lies, cells, labels, stages = (read_rows(RESULTS / f"{name}.csv.gz") for name in names)
    return {
        "hostile": attack_table(hostile),
        "median": attack_table(median),
        "honest": honest_table(honest),
        "lies-ten": lies_table([row for row in lies if row["setting"] == "ten nodes"]),
        "lies-small": lies_table([row for row in lies if row["setting"] in ("3 of 20", "three nodes", "two nodes")]),
        "lies-honest": refusals_table([row for row in lies if row["attack"] is None and "accuracy" in row]),
        "prices": price_table(cells),
        "inputs": input_table(cells),
        "labels": label_table(labels),
        "opening-and-closing": stage_table(stages),
    }


def attack_table(rows: Rows) -> str:
    """Return a line per method: accuracy without a hostile node and under each attack; bold if it is 5 points lower."""
    attacks = [attack for attack in dict.fromkeys(row["attack"] for row in rows) if attack is not None]
    lines = []
    for method in dict.fromkeys(row["method"] for row in rows):
        accuracies = {row["attack"]: row.get("accuracy") for row in rows if row["method"] == method}
        lines.append([method, *(_accuracy(accuracies.get(attack), accuracies[None]) for attack in (None, *attacks))])
    return markdown(("method", "honest", *attacks), lines, " " + "r" * (len(attacks) + 1))


def _accuracy(accuracy: float | None, honest: float | None) -> str:
    if accuracy is None or honest is None:
        return "ended"
    return f"**{accuracy:.1f}**" if accuracy < honest - 5 else f"{accuracy:.1f}"


def honest_table(rows: Rows) -> str:
    """Return a line per method: the largest honest entry of an upload by scenario, and the refused uploads."""
    scenarios = dict.fromkeys(row["scenario"] for row in rows)
    lines = []
    for method in dict.fromkeys(row["method"] for row in rows):
        by_scenario = {row["scenario"]: row for row in rows if row["method"] == method}
        refused = sum(len(row["refused"]) for row in by_scenario.values())
        lines.append([method, *(f"{by_scenario[name]['largest']:.2f}" for name in scenarios), refused])
    return markdown(("method", *scenarios, "refused"), lines, " " + "r" * (len(scenarios) + 1))


def lies_table(rows: Rows) -> str:
    """Return a line per setting and lie, with a column per method: accuracy, and runs in which liars were detected."""
    methods, lines = dict.fromkeys(row["method"] for row in rows), []
    by_lie = _grouped(rows, lambda row: (row["setting"], row.get("attack")))
    for (setting, lie), of_lie in sorted(by_lie, key=lambda pair: [*_SETTINGS].index(pair[0][0])):
        cells = []
        for method in methods:
            attacked = {row["seed"]: row for row in of_lie if row["method"] == method}
            honest = [
                row.get("accuracy")
                for row in rows
                if (row["method"], row["setting"], row.get("attack")) == (method, setting, None)
                and row["seed"] in attacked
            ]
            cells.append(_lie_cell([*attacked.values()], honest, named=lie not in (None, "absent")))
        lines.append([_SETTINGS[setting], lie or "honest", *cells])
    return markdown(("nodes", "lie", *methods), lines, "  " + "r" * len(methods))


def _lie_cell(rows: Rows, honest: list[float | None], *, named: bool) -> str:
    if not rows:
        return "–"
    accuracies = [row.get("accuracy") for row in rows]
    text = "ended"
    if None not in accuracies and None not in honest and honest:
        text = f"{np.mean(accuracies):.1f}"  # type: ignore[arg-type]
        text = f"**{text}**" if np.mean(accuracies) < np.mean(honest) - 5 else text  # type: ignore[arg-type]
    refused = sum(row["refused"] > 0 for row in rows)
    stood_out = sum(max((max(series) for series in row["deviations"]), default=0.0) >= OUTLYING for row in rows)
    counts = ", ".join(f"{letter} {count}" for letter, count in (("r", refused), ("s", stood_out)) if count) or "0"
    return f"{text} ({counts} of {len(rows)})" if named else f"{text} ({len(rows)})"


def refusals_table(rows: Rows) -> str:
    """Return a line per setting of honest runs: runs, refused uploads, and clients that stood out at any time."""
    lines = []
    for setting, of_setting in _grouped(rows, lambda row: row["setting"]):
        deviations = [value for row in of_setting for value in row["honest_deviations"]]
        named = sum(value >= OUTLYING for value in deviations)
        refused = sum(row["honest_refused"] for row in of_setting)
        lines.append([setting, len(of_setting), refused, f"{named} of {len(deviations)}", max(deviations)])
    return markdown(("nodes", "runs", "refused", "standing out", "largest deviation"), lines, " rrrr")


def price_table(cells: Rows) -> str:
    """Return a line per cell: accuracy, bytes, epsilon, and one number of each attack."""
    lines = [
        [name, *(_mean(map(value, of_cell), digits) for digits, value in _PRICES.values())]
        for name, of_cell in _grouped(cells, _title)
    ]
    guesses = {column: _mean((cell[name] for cell in cells), _PRICES[column][0]) for column, name in _BLIND.items()}
    guesses |= dict.fromkeys(("members, upload", "members, global"), "0.50")
    lines.append(["*a guess without any upload*", *(guesses.get(column, "") for column in _PRICES)])
    return markdown(("method", *_PRICES), lines, " " + "r" * len(_PRICES))


def input_table(cells: Rows) -> str:
    """Return a line per cell that sends a first layer: PSNR by batch size, of the exact attack and of the search."""
    columns = ("1.exact", "4.exact", "16.exact", "1.search", "4.search")
    lines = [
        [name, *(_mean((cell[f"inputs.{column}"] for cell in of_cell), 1) for column in columns)]
        for name, of_cell in _grouped(cells, _title)
        if of_cell[0]["inputs.1.exact"] is not None
    ]
    blind = [_mean((cell[f"inputs.{column.partition('.')[0]}.mean image"] for cell in cells), 1) for column in columns]
    headers = ("method", "1 sample", "4", "16", "search, 1", "search, 4")
    return markdown(headers, [*lines, ["*the mean image*", *blind]], " rrrrr")


def label_table(rows: Rows) -> str:
    """Return a line per method: error of the guessed label shares after the first round, and its source."""
    lines = []
    for name, of_method in _grouped(rows, lambda row: row["method"]):
        sources = dict.fromkeys(source for row in of_method for source in row["from"])
        lines.append([name, _mean((row["error"] for row in of_method), 2), ", ".join(sources)])
    lines.append(["*equal shares*", _mean((row["uniform"] for row in rows), 2), ""])
    return markdown(("method", "error", "from"), lines, " r")


def stage_table(rows: Rows) -> str:
    """Return a line per method and view of its opening or closing round: errors of labels, and of images of classes."""
    columns = {"error": 2, "means.inverted": 1, "means.lone": 1}
    lines: list[Sequence[str]] = [
        (*title, *(_mean((row[name] for row in of_title), digits) for name, digits in columns.items()))
        for title, of_title in _grouped(rows, lambda row: (row["method"], row["stage"], row["view"]))
    ]
    blind = [_mean((row[name] for row in rows), digits) for name, digits in (("uniform", 2), ("means.mean image", 1))]
    headers = ("method", "round", "seen", "labels", "class means, dB", "single samples, dB")
    return markdown(headers, [*lines, ("*a guess without any upload*", "", "", *blind, "")], "   rrr")


def _grouped(rows: Rows, name: Callable[[Row], Any]) -> Iterable[tuple[Any, Rows]]:
    return [(group, [row for row in rows if name(row) == group]) for group in dict.fromkeys(map(name, rows))]


def _title(cell: Row) -> str:
    method, wrapper = cell["method"], cell["wrapper"]
    return f"{method}, {wrapper}" if " " in wrapper else f"{method}+{wrapper}" if wrapper else method


def _mean(values: Iterable[float | None], digits: int) -> str:
    """Mean and standard deviation over seeds; a dash where the attack has nothing to work on."""
    known = [value for value in values if value is not None]
    if not known:
        return "–"
    mean, spread = float(np.mean(known)), float(np.std(known, ddof=1)) if len(set(known)) > 1 else 0.0
    return f"{mean:.{digits}f}" + (f" ± {spread:.{digits}f}" if round(spread, digits) > 0 else "")
