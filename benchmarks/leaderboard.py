"""The leaderboard of docs/: a table for each scenario and protocol, ranked, with ties by the one statistical rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cells import DIVERGED, display_name, has_diverged, in_words, percent
from fedloom.results.difference import compare_family, paired_differences
from fedloom.results.statistics import mean_std

Cells = Mapping[str, dict[str, Any]]
_TIED = ("no difference seen", "too few seeds")
_COLUMNS = ("rank", "method", "accuracy %", "against the first", "against {plain}", "worst 10 %", "MB", "TFLOPs")


def ranked_tables(scenario: str, cells: Cells, words: Mapping[str, str]) -> str:
    """Return a heading and a table for each protocol of a scenario, best mean first.

    Args:
        scenario: its name for people.
        cells: its measured rows, by name.
        words: the comparison of each row with the plain method of its protocol.
    """
    blocks = []
    for protocol in dict.fromkeys(cell["protocol"] for cell in cells.values()):
        rows = sorted(
            ((name, cell) for name, cell in cells.items() if cell["protocol"] == protocol),
            key=lambda row: (has_diverged(row[1]), -mean_std(row[1]["accuracies"])[0]),
        )
        columns = [name.format(plain="Local" if protocol.startswith("personal") else "FedAvg") for name in _COLUMNS]
        lines = [f"| {' | '.join((*columns, 'seconds', 'n'))} |", "|---" * (len(columns) + 2) + "|"]
        compared = against_first([cell for _, cell in rows])
        for place, ((name, cell), (word, text)) in enumerate(zip(rows, compared, strict=True), start=1):
            worst = "–" if cell["worst"] is None else f"{100 * cell['worst']:.1f}"
            rank = "–" if has_diverged(cell) else f"{place} =" if word in _TIED else str(place)
            lines.append(
                f"| {rank} | {display_name(name.rpartition('/')[2], cell)} |"
                f" {percent(cell['accuracies'])} | {text} | {words.get(name, '–')} | {worst} |"
                f" {(cell['bytes_up'] + cell['bytes_down']) / 1e6:,.1f} | {cell['flops'] / 1e12:.2f} |"
                f" {cell['train_seconds']:.0f} | {len(cell['seeds'])} |"
            )
        blocks.append(f"## {scenario}, {protocol}\n\n" + "\n".join(lines) + "\n")
    return "\n".join(blocks)


def against_first(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return the word of the one rule on each row against the first one, and its text.

    All rows are one family but those with a run that diverged, which come last.
    """
    ranked = [row for row in rows if not has_diverged(row)]
    lost = [(DIVERGED, DIVERGED)] * (len(rows) - len(ranked))
    if not ranked:
        return lost
    first, *others = ranked
    differences = [
        list(paired_differences(row["seeds"], row["accuracies"], first["seeds"], first["accuracies"]).values())
        for row in others
    ]
    outcomes = iter(compare_family([values for values in differences if values]))
    compared = [("first", "–")]
    for values in differences:
        if not values:
            compared.append(("too few seeds", "no common seed"))
            continue
        outcome = next(outcomes)
        compared.append((outcome.word, in_words(outcome)))
    return compared + lost
