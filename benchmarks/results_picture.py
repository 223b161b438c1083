"""The picture of docs/results.md: every method on clients with skewed labels, from results/studies/all-methods.json."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cells import DIVERGED, FIVE, display_name, has_diverged
from fedloom.results.statistics import mean_std

PICTURE = Path(__file__).parents[1] / "docs" / "images" / "results.png"
SETTING = "alpha-0.05"
BASELINES = {"global/global": "fedavg", "personal/local": "local"}
TITLES = {
    "global/global": "One model for all\n(tested on all classes)",
    "personal/local": "One model for each client\n(tested on the client's own classes)",
}
Cell = Mapping[str, Any]


def draw(cells: Mapping[str, Cell], path: Path) -> None:
    """Draw one panel for each protocol: mean accuracy and sample standard deviation of every method, best on top.

    A dashed line marks the plain method. Methods of the five papers are coloured.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, panels = plt.subplots(1, 2, figsize=(8.4, 6.4), layout="constrained")
    for axes, (protocol, title) in zip(panels, TITLES.items(), strict=True):
        labels, names, means, spreads, colours = [], [], [], [], []
        for label, cell in ranked(cells, protocol):
            mean, std = mean_std(cell["accuracies"])
            labels.append(label)
            name = display_name(label, cell)
            names.append(f"{name}, {DIVERGED}" if has_diverged(cell) else name)
            means.append(100 * mean)
            spreads.append(100 * (std or 0))
            colours.append("#00897b" if cell["method"] in FIVE else "#78909c")
        heights = range(len(names))
        axes.hlines(heights, [m - s for m, s in zip(means, spreads, strict=True)],
                    [m + s for m, s in zip(means, spreads, strict=True)], colors=colours, linewidth=1.2)  # fmt: skip
        axes.scatter(means, heights, c=colours, s=18, zorder=3)
        axes.axvline(means[labels.index(BASELINES[protocol])], color="#37474f", linestyle="--", linewidth=0.8)
        axes.set_yticks(heights, names, fontsize=7)
        axes.set_title(title, fontsize=9)
        axes.set_xlabel("test accuracy in %", fontsize=8)
        axes.tick_params(axis="x", labelsize=7)
        axes.grid(axis="x", linewidth=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120, metadata={"Software": None})
    plt.close(figure)


def ranked(cells: Mapping[str, Cell], protocol: str) -> list[tuple[str, Cell]]:
    """The rows of the setting that were tested by a protocol, worst first, diverged ones before; with their labels."""
    rows = [(name.partition("/")[2], cell) for name, cell in cells.items() if name.startswith(f"{SETTING}/")]
    tested = [(label, cell) for label, cell in rows if cell["protocol"] == protocol]
    return sorted(tested, key=lambda row: (not has_diverged(row[1]), mean_std(row[1]["accuracies"])[0]))
