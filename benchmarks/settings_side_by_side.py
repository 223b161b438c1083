"""The methods of the long tail in three settings, as a table and a figure for a paper: those of `fedloom table` and
`fedloom figure`, from the committed cells of results/studies."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cells import display_name
from fedloom.results.paper_table import PaperTable
from fedloom.results.pivot import PivotLayout, pivot
from fedloom.results.plot_values import plot_values
from fedloom.results.plots.plot_data import PAGE, PlotData
from fedloom.runs.storage.run_data import RunData

FIGURE = Path(__file__).parents[1] / "docs" / "images" / "three-settings.svg"
NAME = "three-settings"
_SETTINGS = {
    "Dirichlet 0.05": ("all-methods", "alpha-0.05"),
    "Dirichlet 0.2": ("all-methods", "alpha-0.2"),
    "long tail": ("long-tail", ""),
}
_TEST_SAMPLES = 10_000
Studies = Mapping[str, Mapping[str, dict[str, Any]]]


def side_by_side(studies: Studies) -> list[RunData]:
    """Return a run for each seed of the methods that all three settings have."""
    labels = [name.removeprefix("/") for name in studies["long-tail"]]
    return [
        _run(studies[study][f"{setting}/{label}"], seed, title, label)
        for title, (study, setting) in _SETTINGS.items()
        for label in labels
        for seed in studies[study][f"{setting}/{label}"]["seeds"]
    ]


def table_of(studies: Studies) -> PaperTable:
    """Return the table: a row for each method, a column for each setting."""
    layout = PivotLayout(("method",), ("setting",))
    return pivot(side_by_side(studies), layout, "Test accuracy in three settings", NAME)


def plot_of(studies: Studies) -> PlotData:
    """Return the values of the figure: dots with intervals, a panel for each setting."""
    return plot_values(side_by_side(studies), "dots")


def draw(studies: Studies, path: Path) -> None:
    """Write the figure to a .svg, .pdf or .png."""
    from fedloom.results.plots.sheet import save_figure

    save_figure(plot_of(studies), path, PAGE)


def _run(cell: Mapping[str, Any], seed: int, setting: str, label: str) -> RunData:
    """Return what tables and figures read of a run, from the block of its method."""
    accuracy = cell["accuracies"][cell["seeds"].index(seed)]
    numbers = {
        **{key: cell[key] for key in ("method", "preset", "protocol", "bytes_up", "bytes_down")},
        "select": "last",
        "seed": seed,
        "accuracy": accuracy,
        "best_val_accuracy": None,
        "source": "fashion-mnist",
        "clients": 20,
        "peak_memory_mb": 0.0,
        "degenerate": cell["warnings"],
        "seconds": {"total": cell["train_seconds"]},
    }
    config = {"setting": setting, cell["method"]: {"row": label}}
    return RunData(numbers, [], config, {"test_samples": _TEST_SAMPLES}, cell=(setting, display_name(label, cell)))
