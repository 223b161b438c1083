"""What a run leaves: its rows, and the summary computed from them. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, Literal

from fedloom.core.errors import RunFolderError
from fedloom.study.folder import Row, RunFolder
from fedloom.study.tabular import Tabular, frame

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes
    from torch import nn

    from fedloom.study.opened import Memory

At = Literal["last", "best_val"]
SECONDS = ("train", "evaluate", "aggregate", "move", "checkpoint", "total")


@dataclass(frozen=True, slots=True, repr=False)
class Result(Tabular):
    """A finished run: `numbers` (what summary.json holds), all rows, and the folder if it was kept on disk.

    memory: what `model` needs beside the folder; the weights of the server and the clients if there is no folder. cell:
    the setting and the row of the study that it is a run of, as that calls them.
    """

    numbers: dict[str, Any]
    rows: list[Row]
    config: dict[str, Any]
    scenario: dict[str, Any]
    folder: Path | None = None
    memory: Memory | None = field(default=None, repr=False, compare=False)
    cell: tuple[str, str] | None = field(default=None, compare=False)

    @staticmethod
    def read(path: Path) -> Result | None:
        """The result in a run folder; None if the run there has not finished.

        Raises `RunFolderError` if a file of it is damaged, or was changed after the run.
        """
        folder = RunFolder(path)
        numbers, config = folder.read_summary(), folder.read_config()
        if numbers is None or config is None:
            return None
        rows = folder.log.rows()
        if not _follows(numbers, rows):
            raise RunFolderError(
                f"{path / 'summary.json'}: its numbers are not those of {folder.log.path.name}; delete the run folder "
                "and run again"
            )
        return Result(numbers, rows, config, folder.read_scenario(), path)

    def curve(self, name: str = "accuracy", split: str = "test") -> tuple[list[int], list[float]]:
        """Rounds and values of one measure of the whole run."""
        return curve(self.rows, name, split)

    def summary(self) -> list[dict[str, Any]]:
        """One row for `pandas.DataFrame`: what was run and what came out, with the method's own figures (epsilon)."""
        keys = ("method", "preset", "seed", "protocol", "select", "accuracy", "best_val_accuracy", "rounds")
        return [{key: self.numbers[key] for key in keys} | self.numbers.get("figures", {})]

    def model(self, client: int | None = None, at: At = "last") -> nn.Module:
        """The trained model as a plain module, in evaluation mode: x [B, ...] normalised -> class scores [B, C].

        client: whose personal model; None takes the server's. at: after the last round, or after the one that was best
        on validation data. As `fedloom.load`, which also says what is raised.
        """
        from fedloom.study.trained import of_result

        return of_result(self, client, at).module

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
    best = best_val(rows)
    return {
        "last": test[-1],
        "best_val": None if best is None else by_round[best[0]],
        "best_test": max(test),
        "mean_last_k": fmean(test[-last_k:]),
    }


def at_selected(rows: Sequence[Row], name: str, select: str, last_k: int) -> float | None:
    """A measure of the test data at the round that `select` chooses by accuracy; None where it was not measured."""
    rounds, values = curve(rows, name, "test")
    if not values:
        return None
    if select == "mean_last_k":
        return fmean(values[-last_k:])
    tested, accuracy = curve(rows, "accuracy", "test")
    found = best_val(rows)
    best = tested[accuracy.index(max(accuracy))] if select == "best_test" else found[0] if found else tested[-1]
    return dict(zip(rounds, values, strict=True))[tested[-1] if select == "last" else best]


def _follows(numbers: Mapping[str, Any], rows: Sequence[Row]) -> bool:
    """Whether a summary's accuracies and bytes are those of the rows."""
    _, test = curve(rows, "accuracy", "test")
    sent = all(abs(total(rows, name) - numbers[name]) < 1 for name in ("bytes_up", "bytes_down"))
    return bool(test) and sent and (numbers["last_accuracy"], numbers["best_test_accuracy"]) == (test[-1], max(test))


def best_val(rows: Sequence[Row]) -> tuple[int, float] | None:
    """The round of the best validation accuracy, the earliest of equal ones, and that; None without validation data."""
    rounds, accuracy = curve(rows, "accuracy", "val")
    best = max(zip(accuracy, (-r for r in rounds), strict=True), default=None)
    return None if best is None else (-best[1], best[0])


def total(rows: Sequence[Row], name: str) -> float:
    """Sum of a measure over all rounds."""
    return sum(r["value"] for r in rows if r["name"] == name and r["client"] is None)


def mean_std(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and sample standard deviation (n - 1); None for a single value."""
    return fmean(values), (stdev(values) if len(values) > 1 else None)
