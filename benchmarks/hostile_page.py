"""Tables of docs/hostile-nodes.md, from results/hostile.json, median.json and honest.json.

python benchmarks/hostile_page.py          # after hostile.py
"""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from fedloom.core.files import write_atomic
from hostile import NAMES, SCENARIOS
from marked_tables import with_tables

RESULTS, PAGE = Path(__file__).parent / "results", Path(__file__).parents[1] / "docs" / "hostile-nodes.md"
Rows = list[dict[str, Any]]


def tables() -> dict[str, str]:
    """The tables of the page by the name between their marks."""
    rows = {name: json.loads((RESULTS / f"{name}.json").read_text()) for name in ("hostile", "median", "honest")}
    under_median = {row["attack"] for row in rows["median"]}
    return {
        "hostile": attack_table(rows["hostile"], NAMES),
        "median": attack_table(rows["median"], [name for name in NAMES if name in under_median]),
        "honest": honest_table(rows["honest"]),
    }


def attack_table(rows: Rows, attacks: Collection[str]) -> str:
    """A line for each method: accuracy without a hostile node and under each attack; bold if it is 5 points lower."""
    lines = ["| method | honest | " + " | ".join(attacks) + " |", "|---|" + "---:|" * (len(attacks) + 1)]
    for method in dict.fromkeys(row["method"] for row in rows):
        accuracies = {row["attack"]: row.get("accuracy") for row in rows if row["method"] == method}
        cells = [_cell(accuracies.get(attack), accuracies[None]) for attack in attacks]
        lines.append(f"| {method} | {_cell(accuracies[None], accuracies[None])} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def honest_table(rows: Rows) -> str:
    """A line for each method: the largest honest entry of an upload by scenario, and how many uploads were refused."""
    lines = ["| method | " + " | ".join(SCENARIOS) + " | refused |", "|---|" + "---:|" * (len(SCENARIOS) + 1)]
    for method in dict.fromkeys(row["method"] for row in rows):
        by_scenario = {row["scenario"]: row for row in rows if row["method"] == method}
        cells = [f"{by_scenario[name]['largest']:.2f}" for name in SCENARIOS]
        refused = sum(len(row["refused"]) for row in by_scenario.values())
        lines.append(f"| {method} | " + " | ".join(cells) + f" | {refused} |")
    return "\n".join(lines) + "\n"


def _cell(accuracy: float | None, honest: float | None) -> str:
    if accuracy is None or honest is None:
        return "ended"
    return f"**{accuracy:.1f}**" if accuracy < honest - 5 else f"{accuracy:.1f}"


if __name__ == "__main__":
    write_atomic(PAGE, with_tables(PAGE.read_text(encoding="utf-8"), tables()))
