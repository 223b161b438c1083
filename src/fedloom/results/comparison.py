"""Several finished runs side by side."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedloom.core.errors import ConfigError, FedloomError, suggest_name
from fedloom.core.files import expand_home
from fedloom.core.text import BASELINE, counted, split_names
from fedloom.results.comparability import same_runs_notes
from fedloom.results.data_table import DataTable, frame
from fedloom.results.fairness import fairness_table
from fedloom.results.group import ResultRow, selected_accuracies
from fedloom.results.pairs import Paired, all_paired
from fedloom.results.result import Result, Summary, Tabular, comparison_summary
from fedloom.results.result_tables import cost_table, target_table
from fedloom.results.table import grouped, not_offered_notes, result_table
from fedloom.results.table_notes import run_notes
from fedloom.results.unseen_tables import left_out_table, newcomer_table
from fedloom.results.verdict import verdict
from fedloom.runs.storage.finished_runs import STUDY_FILE, refuse_mixed_results, refuse_none, search_runs, tuned_notes
from fedloom.runs.storage.run_data import RunData

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes

    from fedloom.results.table_notes import Units

_log = logging.getLogger(__name__)
_COLUMNS = ("accuracy", "best_val_accuracy", "rounds", "bytes_up", "bytes_down", "peak_memory_mb")


@dataclass(frozen=True, slots=True, repr=False, init=False)
class Comparison(Tabular):
    """Finished runs of several methods, seeds and settings: `results`, in the order of the configs."""

    results: list[Result]

    def __init__(self, results: Iterable[RunData]) -> None:
        object.__setattr__(self, "results", [Result.of(run) for run in results])

    @classmethod
    def read(cls, folder: Path | str, allow_mixed: bool = False) -> Comparison:
        """Read all finished runs in and below a folder, such as the `out` of `fedloom.compare`.

        Folders that are left out are warnings of the log.

        Args:
            folder: the folder.
            allow_mixed: join runs of different versions of fedloom.

        Raises `ConfigError` for a folder without a finished run, and for a study, whose rows `fedloom.read` knows."""
        path = expand_home(folder)
        collected = search_runs([path])
        refuse_none(collected)
        if any(result.folder and (result.folder.parent / STUDY_FILE).exists() for result in collected.results):
            raise ConfigError(f"{path}: the runs of a study; fl.read({str(path)!r}) reads them with their rows")
        if not allow_mixed:
            refuse_mixed_results(collected.results)
        for left_out, why in collected.left_out:
            _log.warning("note: %s is left out: %s", left_out, why)
        return cls(collected.results)

    def __iter__(self) -> Iterator[Result]:
        return iter(self.results)

    def __len__(self) -> int:
        return len(self.results)

    def __repr__(self) -> str:
        verdict = f": {self.verdict()}" if self.results else ""
        return f"Comparison({counted(len(self), 'run')}{verdict})"

    def _runs(self) -> list[Result]:
        return self.results

    def rows(self) -> list[ResultRow]:
        """Return one row of numbers for each group of runs that differ in the seed only."""
        return result_table(self.results)

    def summary(self) -> Summary:
        """Return a table when printed: the rows of `rows()`, and the verdict below it."""
        return comparison_summary(self.rows(), self.verdict())

    def verdict(self) -> str:
        """Return which method leads, by how much, and whether seeds could explain the difference."""
        return verdict(self.rows())

    def not_offered(self) -> list[str]:
        """Return a sentence for each method that lacks a model which some protocol of its runs tests."""
        return not_offered_notes(self.results)

    def run_notes(self) -> list[str]:
        """Return a sentence for each run that ended early, and for the runs of a seed that another run has."""
        return run_notes(grouped(self.results))

    def same_runs(self) -> list[str]:
        """Return a sentence that names the rows of the same runs, whose configs are equal; none without such rows."""
        return same_runs_notes(self.rows())

    def tuned(self) -> list[str]:
        """Return a sentence for each study that tuned values on validation data before these runs."""
        return tuned_notes(self.results)

    def paired(self, against: str = BASELINE) -> list[Paired]:
        """Compare every row with that of one method, seed by seed, in the order of `rows()`.

        Rows with another setting, protocol or selection of rounds, or without a common seed, are left out. Raises
        `ConfigError` if no row is of a method other than FedAvg."""
        methods = {result.numbers["method"] for result in self.results}
        if against not in (BASELINE, *methods):
            raise ConfigError(f"against = {against!r}: no row of it; {suggest_name(against, methods)}")
        return all_paired(self.rows(), against)

    def target_table(self, target: float | Sequence[float], format: str = "markdown") -> str:
        """Return the cost of reaching each `target`, an accuracy in [0, 1], as text: first tested round, bytes and
        FLOPs.

        Means are over the seeds that reached it. Raises `ConfigError` for an unknown format or a wrong target."""
        targets = [target] if isinstance(target, float | int) else target
        return target_table(self.results, targets).formatted(format)

    def cost_table(self, format: str = "markdown") -> str:
        """Return a client's time for a local epoch, in ms and as a multiple of FedAvg's, and FLOPs and bytes of a run,
        as text.

        Means are over seeds. Times compare only if all runs used one machine and one engine. Raises `ConfigError` for
        an unknown format."""
        return cost_table(self.results).formatted(format)

    def fairness_table(self, format: str = "markdown") -> str:
        """Return how accuracy spreads over clients, and how many clients are worse off than with local training or
        with FedAvg, as text.

        Means are over seeds; runs whose protocol tests no single clients are left out. Raises `ConfigError` for an
        unknown format."""
        return _text(fairness_table(grouped(self.results)), format)

    def domain_table(self, format: str = "markdown") -> str:
        """Return the accuracy on each domain that runs left out of their training, and the mean over domains, as text.

        Args:
            format: "markdown", "latex" or "csv"."""
        return _text(left_out_table(grouped(self.results)), format)

    def newcomer_table(self, format: str = "markdown") -> str:
        """Return the accuracy on clients that never trained, by method and by how they were served, as text.

        The numbers of "csv" have a line for each way of serving, with how accuracy spreads over these clients.

        Args:
            format: "markdown", "latex" or "csv"."""
        return _text(newcomer_table(grouped(self.results)), format)

    def evaluate(self, **options: Any) -> Comparison:
        """Test all runs again as `Result.evaluate`; the log names those that fail. Raises the first error if all do."""
        from fedloom.runs.retest import evaluate_run

        tested, left_out, loaded = list[Result](), list[tuple[Any, FedloomError]](), dict[str, Any]()
        if "note" in options:
            options["note"] = functools.cache(options["note"])  # what holds for many runs is said once
        for run in self.results:
            try:
                tested.append(evaluate_run(run, loaded=loaded, **options))
            except FedloomError as error:
                left_out.append((run.folder or run, error))
        if left_out and not tested:  # a mistake in an option is one line, and not one for each run
            raise left_out[0][1]
        for name, why in left_out:
            _log.warning("note: %s is left out: %s", name, why)
        return Comparison(tested)

    def clients_to_frame(self) -> pandas.DataFrame:
        """Return one row for each run and client: label, method, seed, protocol, client, and accuracy at the selected
        round.

        Raises `ConfigError` if pandas is not installed."""
        rows: list[dict[str, Any]] = []
        for group in grouped(self.results):
            row = group.row
            named = {"label": row["label"], "method": row["method"], "protocol": row["protocol"]}
            for run in group.results:
                for client, accuracy in selected_accuracies(run).items():
                    rows.append({**named, "seed": run.numbers["seed"], "client": client, "accuracy": accuracy})
        return frame(rows)

    def to_frame(self) -> pandas.DataFrame:
        """Return one row for each run and protocol: label, method, preset, seed, the settings in which runs differ, and
        results.

        Raises `ConfigError` if pandas is not installed."""
        return frame([self._row(group.row, result) for group in grouped(self.results) for result in group.results])

    def pivot(
        self,
        rows: str | Sequence[str] | None = None,
        columns: str | Sequence[str] | None = None,
        cells: str | Sequence[str] = "accuracy",
        format: str = "text",
        *,
        units: Units = "percent",
        against: str = BASELINE,
        interval: bool = False,
        p_value: bool = False,
        caption: str = "",
        label: str = "",
    ) -> str:
        """Return means over seeds as a table for a paper: one key down, another across, measures in the cells.

        Bold are the methods that no other one of their setting is ahead of, over all pairs; the notes say so, with
        seeds and protocol.

        Args:
            rows: keys whose values name the rows: method, setting, preset, protocol, select or any config key, such as
                "alpha". Methods, if neither rows nor columns are given.
            columns: keys whose values stand above the columns.
            cells: measures: accuracy, any metric of the runs, best_val, worst10, up, down, time, n.
            format: "text", "markdown", "latex" or "csv".
            units: "percent" or "share", for measures that are shares.
            against: the method from which differences are taken.
            interval: whether to add the difference with its 95 % interval, seed by seed.
            p_value: whether to add its p, adjusted over the family.
            caption: the caption; it names measures and keys unless given.
            label: the LaTeX label.

        Raises:
            ConfigError: for an unknown name, and for two values in a cell, which names the key that still varies."""
        from fedloom.results.pivot import PivotLayout, default_columns, pivot

        automatic = rows is None and columns is None
        layout = PivotLayout(
            split_names("method" if rows is None else rows),
            default_columns(self.results) if automatic else split_names(columns or ()),
            split_names(cells),
            units,
            against,
            interval,
            p_value,
        )
        return pivot(self.results, layout, caption, label).formatted(format)

    def plot(
        self, kind: str = "curves", metric: str = "accuracy", width: float = 6.9, against: str | None = None
    ) -> Axes:
        """Draw the comparison, and return the matplotlib Axes of its first setting; `axes.figure.axes` has all.

        Each setting has a panel, and a method has its colour in all of them. A note below the panels says what bands
        and lines are.

        Args:
            kind: "curves" by round, or "dots" with 95 % intervals.
            metric: a measure of the test data.
            width: width of the figure, in inches.
            against: for dots, the method from which differences are drawn, seed by seed.

        Raises `ConfigError` for another kind or metric, and where there is nothing to draw."""
        from fedloom.results.plot_values import plot_values

        values = plot_values(self.results, kind, metric, against)
        # pyplot knows its figures, so notebooks and plt.show() display them.
        import matplotlib.pyplot as plt

        from fedloom.results.plots.sheet import draw_figure

        return draw_figure(values, plt.figure(), width)[0]

    @staticmethod
    def _row(row: ResultRow, result: RunData) -> dict[str, Any]:
        numbers = result.numbers
        named: dict[str, Any] = {"label": row["label"], "method": row["method"], "preset": row["preset"]}
        named |= {"seed": numbers["seed"], "protocol": row["protocol"], "select": row["select"], **row["setting"]}
        outcome: dict[str, Any] = {key: numbers[key] for key in _COLUMNS} | {"seconds": numbers["seconds"]["total"]}
        return {**named, **outcome, **numbers.get("figures", {})}


def _text(table: DataTable, format: str) -> str:
    """Return a table as text; nothing where it has no rows."""
    text = table.formatted(format)  # which refuses an unknown format
    return text if table.rows else ""
