"""What a run leaves: its rows, and the summary computed from them. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from fedloom.study.folder import Row, RunFolder
from fedloom.study.tabular import Tabular, frame

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes

SECONDS = ("train", "evaluate", "aggregate", "move", "total")


@dataclass(frozen=True, slots=True, repr=False)
class Result(Tabular):
    """A finished run: `numbers` (what summary.json holds), all rows, and the folder if it was kept on disk."""

    numbers: dict[str, Any]
    rows: list[Row]
    config: dict[str, Any]
    scenario: dict[str, Any]
    folder: Path | None = None

    @staticmethod
    def read(path: Path) -> Result | None:
        """The result in a run folder; None if the run there has not finished."""
        folder = RunFolder(path)
        numbers = folder.read_json("summary.json")
        config = folder.read_config()
        if numbers is None or config is None:
            return None
        return Result(numbers, folder.rows(), config, folder.read_json("scenario.json") or {}, path)

    def curve(self, name: str = "accuracy", split: str = "test") -> tuple[list[int], list[float]]:
        """Rounds and values of one measure of the whole run."""
        return curve(self.rows, name, split)

    def summary(self) -> list[dict[str, Any]]:
        """One row for `pandas.DataFrame`: what was run and what came out."""
        keys = ("method", "preset", "seed", "protocol", "select", "accuracy", "best_val_accuracy", "rounds")
        return [{key: self.numbers[key] for key in keys}]

    def __repr__(self) -> str:
        n = self.numbers
        return (
            f"Result({n['method']} ({n['preset']}) on {n['source']}: {100 * n['accuracy']:.2f} % accuracy, "
            f"{n['protocol']}, {n['select']}, {n['rounds']} rounds, seed {n['seed']})"
        )

    def _runs(self) -> list[Result]:
        return [self]

    def to_pandas(self) -> pandas.DataFrame:
        """All measures, one a row: round, client, split, protocol, name, value.

        Raises `ConfigError` where pandas is not installed.
        """
        return frame(self.rows)

    def plot(self, name: str = "accuracy", split: str = "test") -> Axes:
        """The learning curve, as matplotlib Axes."""
        import matplotlib.pyplot as plt

        axes: Axes = plt.figure().add_subplot()
        axes.plot(*self.curve(name, split), label=f"{self.numbers['method']} ({self.numbers['preset']})")
        axes.set_xlabel("round")
        axes.set_ylabel(f"{split} {name} ({self.numbers['protocol']})")
        axes.legend()
        return axes


def curve(rows: Sequence[Row], name: str, split: str) -> tuple[list[int], list[float]]:
    """Rounds and values of one measure, clients' own rows left out."""
    picked = [r for r in rows if r["name"] == name and r["split"] == split and r["client"] is None]
    return [r["round"] for r in picked], [r["value"] for r in picked]


def accuracies(rows: Sequence[Row], last_k: int) -> dict[str, float | None]:
    """Test accuracy by each way of selecting a round; None where there is no validation data."""
    rounds, test = curve(rows, "accuracy", "test")
    by_round = dict(zip(rounds, test, strict=True))
    val_rounds, val = curve(rows, "accuracy", "val")
    best = max(zip(val, (-r for r in val_rounds), strict=True), default=None)  # the earliest of equal rounds
    return {
        "last": test[-1],
        "best_val": None if best is None else by_round[-best[1]],
        "best_test": max(test),
        "mean_last_k": fmean(test[-last_k:]),
    }


def total(rows: Sequence[Row], name: str) -> float:
    """Sum of a measure over all rounds."""
    return sum(r["value"] for r in rows if r["name"] == name and r["client"] is None)


def mean_std(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and sample standard deviation (n - 1); None for a single value."""
    return fmean(values), (stdev(values) if len(values) > 1 else None)
