"""The result of a run and the summary of several, with tables, plots and models. Importing it needs no torch."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Self, overload

from fedloom.core.errors import ConfigError, attribute_error, printable
from fedloom.core.text import counted, percent
from fedloom.results.data_table import Cell, DataTable, Record, frame
from fedloom.results.group import ResultRow
from fedloom.results.result_tables import figure_names, result_columns, results_table
from fedloom.runs.storage.log import At
from fedloom.runs.storage.run_data import RunData

if TYPE_CHECKING:
    import numpy
    import pandas
    from matplotlib.axes import Axes
    from torch import nn

    from fedloom.data import Scenario
    from fedloom.results.export_model import ExportedFiles
    from fedloom.runs.export.evaluation import Evaluation
    from fedloom.runs.export.trained import RoundModels


_KEYS = ("method", "preset", "seed", "protocol", "select", "accuracy", "best_val_accuracy", "rounds")
_SHARES = {"accuracy": "accuracy %", "best_val_accuracy": "best val %"}
_COMPARED = {"method", "preset", "n", "up", "down", "time", "diverged", "attack", "success %", *_SHARES.values()}


class Summary(list[Record]):
    """Rows of plain values, for `pandas.DataFrame` too. `print` shows them as a table, and so does a notebook.

    notes: sentences below the table."""

    def __init__(self, table: DataTable, notes: Sequence[str] = ()) -> None:
        super().__init__(table.records or ())
        self._table, self.notes = table, list(notes)

    def __repr__(self) -> str:
        return "\n".join([printable(self._table.formatted("text"), keep_lines=True), *map(printable, self.notes)])

    def _repr_html_(self) -> str:
        return self._table.formatted("html") + "".join(f"<p>{html.escape(note)}</p>" for note in self.notes)


def summary_rows(run: RunData) -> list[dict[str, Any]]:
    """Return a row for each protocol of a run: setting, accuracies as shares in [0, 1], and the method's figures."""
    views = [run.in_protocol(protocol).numbers for protocol in run.protocols]
    return [{key: numbers[key] for key in _KEYS} | numbers.get("figures", {}) for numbers in views]


def group_table(runs: Sequence[RunData]) -> DataTable:
    """Return the values by group of evaluations, run by run; without rows if the runs have none."""
    numbers = [run.numbers for run in runs]
    named = [({key: n[key] for key in ("method", "seed")}, n.get("evaluation", {}).get("groups", [])) for n in numbers]
    records = [names | record for names, groups in named for record in groups]
    cells = [[_cell(key, value) for key, value in record.items()] for record in records]
    columns = [_SHARES.get(key, key) for key in (records[0] if records else ())]
    return DataTable("groups", "Metrics over the test samples of each group", columns, cells, records=records)


def run_summary(run: RunData) -> Summary:
    """Return the summary of one run; its notes say where the run ended early and what its diagnostics found."""
    records, numbers = summary_rows(run), run.numbers
    cells = [[_cell(key, value) for key, value in record.items()] for record in records]
    stopped = numbers.get("stopped")
    notes = [f"stopped after round {stopped['round']}: {stopped['reason']}"] if stopped else []
    notes += [f"note: {message}" for message in numbers["degenerate"]]
    columns = [_SHARES.get(key, key) for key in records[0]]
    return Summary(DataTable("summary", "", columns, cells, records=records), notes)


def comparison_summary(rows: Sequence[ResultRow], verdict: str) -> Summary:
    """Return the summary of a comparison: a row for each group of runs that differ in the seed only.

    Args:
        rows: the rows of its table.
        verdict: the finding of the comparison, in words."""
    several = {"protocol"} if len({row["protocol"] for row in rows}) > 1 else set()
    headings = _COMPARED | several | {*figure_names(rows)}
    shown = [column for column in result_columns(rows) if column.heading in headings]
    measured = sorted({f"protocol {row['protocol']}, round selected: {row['select']}" for row in rows})
    if several and len({row["select"] for row in rows}) == 1:
        measured = [f"round selected: {rows[0]['select']}"]
    notes = [f"accuracy: mean ± sample std over n seeds; {'; '.join(measured)}", verdict] if rows else []
    notes += [f"{row['label']}: {note}" for row in rows for note in (*row["stopped"], *row["degenerate"])]
    return Summary(DataTable.of("summary", "", shown, rows, records=[dict(row) for row in rows]), notes)


def _cell(key: str, value: Any) -> Cell:
    if isinstance(value, str):
        return value
    text = "–" if value is None else percent(value) if key in _SHARES else value
    return (f"{text:.4g}" if isinstance(text, float) else str(text)), value


class Tabular:
    """Add tables to a class with finished runs."""

    __slots__ = ()

    def _runs(self) -> Sequence[RunData]:
        raise NotImplementedError

    def table(self, format: str = "markdown") -> str:
        """Return one row for each group of runs that differ in the seed only, as text in "markdown", "latex" or "csv".

        markdown and latex: accuracy in percent, mean ± sample standard deviation over n seeds; bytes and time per run.
        csv: plain numbers, accuracies as shares in [0, 1], bytes, seconds. Raises `ConfigError` for another format."""
        return results_table(self._runs(), with_notes=format == "latex").formatted(format)

    def _repr_html_(self) -> str:
        return self.table("html")

    if not TYPE_CHECKING:  # a type checker shall refuse unknown names itself

        def __getattr__(self, name: str) -> NoReturn:
            raise attribute_error(type(self).__name__, name, dir(type(self)))


@dataclass(frozen=True, slots=True, repr=False)
class Result(RunData, Tabular):
    """The result of a finished run: its data, and the tables, plots and models that it gives."""

    @classmethod
    def of(cls, run: RunData) -> Self:
        """Return the result of a finished run whose data are `run`."""
        return run if isinstance(run, cls) else cls(*(getattr(run, part.name) for part in fields(RunData)))

    @property
    def accuracy(self) -> float:
        """The test accuracy of the run, from 0 to 1, in its main protocol and at its selected round."""
        return float(self.numbers["accuracy"])

    def summary(self) -> Summary:
        """Return a table when printed: setting, results, and the method's own figures such as epsilon."""
        return run_summary(self)

    def model(self, client: int | None = None, at: At = "last") -> nn.Module:
        """Return the trained model as a plain module in evaluation mode: x [B, ...] normalised -> class scores [B, C].

        Args:
            client: number of the client whose personal model is returned; None for the server's.
            at: "last", "best_val" (on validation data), or the number of a round with a checkpoint.

        Raises as `fedloom.load` does."""
        from fedloom.runs.export.trained import of_result

        return of_result(self, client, at).module

    def predict(self, data: Any, client: int | None = None, at: At = "last") -> list[str] | list[list[str]]:
        """Return the class that the trained model gives each new sample; of several labels, those that it has.

        Args:
            data: a data frame, a file or several as `fedloom predict` reads them, or an array of samples [n, ...] as
                the run was given its own.
            client: number of the client whose personal model predicts; None for the server's.
            at: "last", "best_val", or the number of a round with a checkpoint.

        Raises `DataError` for samples that do not fit, and as `fedloom.load` does."""
        from fedloom.runs.export.evaluation import predict
        from fedloom.runs.export.trained import of_result

        return predict(of_result(self, client, at), data)[0]

    def probabilities(self, data: Any, client: int | None = None, at: At = "last") -> numpy.ndarray:
        """Return the probability of each class, or of each of several labels, for new samples: [n, C] float32, in the
        order of the run's classes. data, client, at: as for `predict`."""
        from fedloom.runs.export.evaluation import predict
        from fedloom.runs.export.trained import of_result

        return predict(of_result(self, client, at), data)[1].numpy()

    def round_models(self, round_: int) -> RoundModels:
        """Return the models of a round that `checkpoint.keep_clients` names: of each participant, and the server's.

        Args:
            round_: number of the round.

        Raises `ConfigError` for a round that was not kept, `CheckpointError` for damaged files."""
        from fedloom.runs.export.trained import RoundModels

        return RoundModels(self, round_)

    def export(self, path: Path | str, client: int | None = None, at: At = "last") -> ExportedFiles:
        """Write the trained model to `path`, with its metadata and its model card in the same folder.

        The suffix is the format: .safetensors, .onnx, or .pt2 for torch.export. client, at: as for `model`. Raises as
        `fedloom.load` and `fedloom.runs.export.trained.Trained.save` do."""
        from fedloom.results.export_model import export_model
        from fedloom.runs.export.trained import of_result

        return export_model(of_result(self, client, at), path, self)

    @overload
    def evaluate(self, data: Scenario | None = ..., *, at: At | None = ..., **options: Any) -> Result: ...
    @overload
    def evaluate(self, data: Any, client: int | None = ..., at: At | None = ..., **options: Any) -> Evaluation: ...
    def evaluate(self, data: Any = None, client: int | None = None, at: At | None = None, **options: Any) -> Any:
        """Test the run again, without training, and return it as the new tests show it.

        The run folder keeps these tests in `evaluations`, and they are not repeated. With new data, but without
        `protocols`, `newcomers` and `by`, one model is tested with all metrics, as by `fedloom.evaluate`.

        Args:
            data: new labelled data: a folder of class folders, a file, a data frame, a torch Dataset, or arrays (x, y).
                None takes the run's own test data; a scenario that was made in Python must be passed again.
            client: number of the client whose personal model is tested on new data; None for the server's.
            at: "last", "best_val", or the number of a round with a checkpoint. None takes "best_val" if it selected the
                round of the run, else "last".
            options: `protocols` and `metrics`, by default the run's own; `newcomers`, True or keys of
                `evaluation.newcomers`, for clients that never trained; `by`, "group", "owner" or a column, for values
                in `numbers["evaluation"]["groups"]`; `interval`, "group" or "row", for intervals by a bootstrap of
                these; and `label`, `model` and `note`, as for `fedloom.evaluate`.

        Raises `ConfigError` for impossible tests, `CheckpointError` for a round without a checkpoint, and
        `RunFolderError` for data that have changed."""
        from fedloom.data import Scenario

        own_data = data is None or isinstance(data, Scenario)
        again = own_data or bool({"protocols", "newcomers", "by", "interval"} & options.keys())
        if client is not None and not isinstance(client, int):
            raise ConfigError("client is no number; pass new data as a single value, as result.evaluate((x, y))")
        if again and client is not None:
            raise ConfigError(f"client = {client}: protocols test all clients; leave it out, or give new data alone")
        if again:
            from fedloom.runs.retest import evaluate_run

            return evaluate_run(self, data=data, at=at, **options)
        from fedloom.runs.export.evaluation import evaluate

        return evaluate(self, data, client, "last" if at is None else at, **options)

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

    if not TYPE_CHECKING:

        def __getitem__(self, name: object) -> NoReturn:
            raise ConfigError(f"a result has no items: its values are in numbers, as result.numbers[{name!r:.40}]")

    def to_frame(self) -> pandas.DataFrame:
        """Return all measures, one a row: round, client, split, protocol, name, value.

        Raises `ConfigError` if pandas is not installed."""
        return frame(self.rows)

    def plot(self, name: str = "accuracy", split: str = "test") -> Axes:
        """Plot the learning curve of a measure, and return the matplotlib Axes.

        Args:
            name: name of the measure.
            split: split of the measure, "test" or "val", say."""
        import matplotlib.pyplot as plt

        axes: Axes = plt.figure().add_subplot()
        axes.plot(*self.curve(name, split), label=f"{self.numbers['method']} ({self.numbers['preset']})")
        axes.set_xlabel("round")
        axes.set_ylabel(f"{split} {name} ({self.numbers['protocol']})")
        axes.legend()
        return axes
