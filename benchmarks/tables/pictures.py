"""The picture of the results page: every method on clients with skewed labels, from the study all-methods."""

import io

from benchmarks.cells import Cells, read_cells
from benchmarks.tables.words import DIVERGED, FIVE, display_name, has_diverged, mean_accuracy
from fedloom.results.group import mean_std

SETTING = "alpha-0.05"
BASELINES = {"global/global": "fedavg", "personal/local": "local"}
TITLES = {
    "global/global": "One model for all\n(tested on all classes)",
    "personal/local": "One model for each client\n(tested on the client's own classes)",
}


def picture() -> bytes:
    """Draw a panel per protocol: mean accuracy and sample standard deviation of every method, best on top.

    A dashed line marks the plain method. Methods of the five papers are coloured. Returns a PNG.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    cells = read_cells("all-methods")
    figure, panels = plt.subplots(1, 2, figsize=(8.4, 6.4), layout="constrained")
    for axes, (protocol, title) in zip(panels, TITLES.items(), strict=True):
        rows = ranked(cells, protocol)
        names = [display_name(label, cell) + (f", {DIVERGED}" if has_diverged(cell) else "") for label, cell in rows]
        means, spreads = zip(
            *(mean_std([100 * share for share in cell["accuracies"]]) for _, cell in rows), strict=True
        )
        colours = ["#00897b" if cell["method"] in FIVE else "#78909c" for _, cell in rows]
        heights = range(len(rows))
        lows, highs = ([mean + sign * (std or 0) for mean, std in zip(means, spreads, strict=True)] for sign in (-1, 1))
        axes.hlines(heights, lows, highs, colors=colours, linewidth=1.2)
        axes.scatter(means, heights, c=colours, s=18, zorder=3)
        baseline = [label for label, _ in rows].index(BASELINES[protocol])
        axes.axvline(means[baseline], color="#37474f", linestyle="--", linewidth=0.8)
        axes.set_yticks(heights, names, fontsize=7)
        axes.set_title(title, fontsize=9)
        axes.set_xlabel("test accuracy in %", fontsize=8)
        axes.tick_params(axis="x", labelsize=7)
        axes.grid(axis="x", linewidth=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=120, metadata={"Software": None})
    plt.close(figure)
    return image.getvalue()


def ranked(cells: Cells, protocol: str) -> list[tuple[str, dict]]:
    """Return the rows of the setting that were tested by a protocol, worst first, diverged ones before those."""
    rows = [(name.partition("/")[2], cell) for name, cell in cells.items() if name.startswith(f"{SETTING}/")]
    tested = [(label, cell) for label, cell in rows if cell["protocol"] == protocol]
    return sorted(tested, key=lambda row: (not has_diverged(row[1]), mean_accuracy(row[1])))
