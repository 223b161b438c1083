"""The result of a run, with its tables, its plot and its trained model. Importing it needs no torch."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from fedloom.core.text import counted
from fedloom.results.summary_table import Summary, run_summary, summary_rows
from fedloom.results.tabular import Tabular, frame
from fedloom.runs.storage.log import RoundSelection
from fedloom.runs.storage.run_data import RunData

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes
    from torch import nn

    from fedloom.results.export_model import ExportedFiles
    from fedloom.runs.export.evaluation import Evaluation
    from fedloom.runs.export.trained import RoundModels


@dataclass(frozen=True, slots=True, repr=False)
class Result(RunData, Tabular):
    """The result of a finished run: its data, and the tables, plots and models that it gives."""

    @classmethod
    def of(cls, run: RunData) -> Self:
        """Return the result of a finished run whose data are `run`."""
        return run if isinstance(run, cls) else cls(*(getattr(run, part.name) for part in fields(RunData)))

    def summary(self) -> Summary:
        """Return a table when printed: setting, results, and the method's own figures such as epsilon."""
        return run_summary(self)

    def summary_rows(self) -> list[dict[str, Any]]:
        """Return the plain values of `summary()`, one dict a row; accuracies are shares in [0, 1]."""
        return summary_rows(self)

    def model(self, client: int | None = None, at: RoundSelection = "last") -> nn.Module:
        """Return the trained model as a plain module in evaluation mode: x [B, ...] normalised -> class scores [B, C].

        Args:
            client: number of the client whose personal model is returned; None for the server's.
            at: after the last round, or "best_val" for the best one on validation data.

        Raises as `fedloom.load` does.
        """
        from fedloom.runs.export.trained import of_result

        return of_result(self, client, at).module

    def round_models(self, round_: int) -> RoundModels:
        """Return the models of a round that `checkpoint.keep_clients` names: of each participant, and the server's.

        Args:
            round_: number of the round.

        Raises `ConfigError` for a round that was not kept, `CheckpointError` for damaged files.
        """
        from fedloom.runs.export.trained import RoundModels

        return RoundModels(self, round_)

    def export(self, path: Path | str, client: int | None = None, at: RoundSelection = "last") -> ExportedFiles:
        """Write the trained model to `path`, with its metadata and its model card beside it.

        The suffix is the format: .safetensors, .onnx, or .pt2 for torch.export. client, at: as for `model`. Raises as
        `fedloom.load` and `fedloom.runs.export.trained.Trained.save` do.
        """
        from fedloom.results.export_model import export_model
        from fedloom.runs.export.trained import of_result

        return export_model(of_result(self, client, at), path, self)

    def evaluate(
        self, data: Path | str | tuple[Any, Any], client: int | None = None, at: RoundSelection = "last", **options: Any
    ) -> Evaluation:
        """Test the trained model on new labelled data, with all metrics, as `fedloom.evaluate` does.

        Args:
            data: a folder of class folders, a file, or arrays (x, y).
            client: number of the client whose personal model is tested; None for the server's.
            at: after the last round, or "best_val" for the best one on validation data.
            options: further arguments of `fedloom.evaluate`.
        """
        from fedloom.runs.export.evaluation import evaluate

        return evaluate(self, data, client, at, **options)

    def __repr__(self) -> str:
        n = self.numbers
        further = (
            f"; {100 * self.in_protocol(protocol).numbers['accuracy']:.2f} % {protocol}"
            for protocol in self.protocols[1:]
        )
        return (
            f"Result({n['method']} ({n['preset']}) on {n['source']}: {100 * n['accuracy']:.2f} % accuracy, "
            f"{n['protocol']}, {n['select']}, {counted(n['rounds'], 'round')}, seed {n['seed']}{''.join(further)})"
        )

    def _runs(self) -> list[Result]:
        return [self]

    def to_pandas(self) -> pandas.DataFrame:
        """Return all measures, one a row: round, client, split, protocol, name, value.

        Raises `ConfigError` if pandas is not installed.
        """
        return frame(self.rows)

    def plot(self, name: str = "accuracy", split: str = "test") -> Axes:
        """Plot the learning curve of a measure, and return the matplotlib Axes.

        Args:
            name: name of the measure.
            split: split of the measure, "test" or "val", say.
        """
        import matplotlib.pyplot as plt

        axes: Axes = plt.figure().add_subplot()
        axes.plot(*self.curve(name, split), label=f"{self.numbers['method']} ({self.numbers['preset']})")
        axes.set_xlabel("round")
        axes.set_ylabel(f"{split} {name} ({self.numbers['protocol']})")
        axes.legend()
        return axes
