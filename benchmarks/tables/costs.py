"""What accuracy costs at honest scale: the methods above all cheaper ones, in bytes and in operations.

A row is on the front of a cost if no other row of its setting and protocol has a higher mean accuracy for the same cost
or less. Fronts are of means over five seeds: neighbours on a front may well be equal (see the words of the tables).
"""

import io
from collections.abc import Mapping
from statistics import fmean
from typing import Any, NamedTuple

from benchmarks.cells import Cells, studies_by_name
from benchmarks.tables.honest_scale import GLOBAL, PERSONAL, REFERENCES, SETTINGS, STUDIES
from benchmarks.tables.words import FIVE, display_name, has_diverged, markdown

COSTS = {"bytes": "MB of a run, up and down", "operations": "billion operations of a run"}
PROTOCOLS = {GLOBAL: "One model for all", PERSONAL: "A model for each client"}
SETTING = "hundred-clients"  # which the picture shows


class Row(NamedTuple):
    """A method with its mean accuracy in percent, and its costs by name."""

    label: str
    name: str
    accuracy: float
    costs: Mapping[str, float]


def rows_of(cells: Cells, setting: str, protocol: str) -> list[Row]:
    """Return the rows of a setting that were tested by a protocol. References, and runs that diverged, have none."""
    rows = []
    for name, cell in cells.items():
        label = name.removeprefix(f"{setting}/")
        if label == name or protocol not in cell["tested"] or label in REFERENCES or has_diverged(cell):
            continue
        costs = {"bytes": (cell["bytes_up"] + cell["bytes_down"]) / 1e6, "operations": cell["flops"] / 1e9}
        accuracy = 100 * fmean(cell["tested"][protocol]["accuracy"])
        rows.append(Row(label, display_name(label, cell), accuracy, costs))
    return rows


def front(rows: list[Row], cost: str) -> list[Row]:
    """Return the rows on the front of a cost, cheapest first."""
    best: list[Row] = []
    for row in sorted(rows, key=lambda row: (row.costs[cost], -row.accuracy)):
        if not best or row.accuracy > best[-1].accuracy:
            best.append(row)
    return best


def tables() -> dict[str, str]:
    """Return the table of fronts by name."""
    cells = studies_by_name()[STUDIES[0]]
    lines = []
    for setting in SETTINGS:
        for protocol, title in PROTOCOLS.items():
            rows = rows_of(cells, setting, protocol)
            for cost in COSTS:
                names = [f"{row.name} ({row.costs[cost]:,.3g}; {row.accuracy:.1f} %)" for row in front(rows, cost)]
                lines.append([setting, title.lower(), cost, len(rows), ", ".join(names)])
    return {"honest-fronts": markdown(("setting", "model", "cost", "methods", "on the front, cheapest first"), lines)}


def picture() -> bytes:
    """Draw accuracy against bytes and operations of a hundred clients, for one model and for a model each; a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    cells = studies_by_name()[STUDIES[0]]
    figure, panels = plt.subplots(2, 2, figsize=(8.4, 6.8), layout="constrained")
    for lane, (protocol, title) in zip(panels, PROTOCOLS.items(), strict=True):
        rows = rows_of(cells, SETTING, protocol)
        for axes, (cost, unit) in zip(lane, COSTS.items(), strict=True):
            _draw(axes, rows, cost)
            axes.set_title(title, fontsize=9)
            axes.set_xlabel(unit, fontsize=8)
            axes.set_ylabel("test accuracy in %", fontsize=8)
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=120, metadata={"Software": None})
    plt.close(figure)
    return image.getvalue()


def _draw(axes: Any, rows: list[Row], cost: str) -> None:
    best, costs = front(rows, cost), [row.costs[cost] for row in rows]
    colours = ["#00897b" if row.label.partition("+")[0] in FIVE else "#78909c" for row in rows]
    axes.scatter(costs, [row.accuracy for row in rows], c=colours, s=16, zorder=3)
    axes.step(
        [row.costs[cost] for row in best], [row.accuracy for row in best], where="post", color="#37474f", linewidth=0.8
    )
    axes.set_xscale("log" if max(costs) > 20 * min(costs) else "linear")
    for row in rows:
        if row in best or row.label.partition("+")[0] in FIVE:
            place = row.costs[cost], row.accuracy
            axes.annotate(row.name, place, xytext=(4, 3), textcoords="offset points", fontsize=6.5)
    axes.tick_params(labelsize=7)
    axes.grid(linewidth=0.3)
    axes.spines[["top", "right"]].set_visible(False)
