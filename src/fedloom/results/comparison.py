"""Several finished runs side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedloom.results.formats import formatted_costs, formatted_targets
from fedloom.results.paired import Paired, all_paired
from fedloom.results.result import Result
from fedloom.results.table import ResultRow, grouped, result_table
from fedloom.results.tabular import Tabular, frame
from fedloom.results.text import counted
from fedloom.results.tuning_record import tuned_notes
from fedloom.results.verdict import BASELINE, verdict
from fedloom.storage.run_data import RunData

if TYPE_CHECKING:
    import pandas

_COLUMNS = ("accuracy", "best_val_accuracy", "rounds", "bytes_up", "bytes_down", "peak_memory_mb")


@dataclass(frozen=True, slots=True, repr=False)
class Comparison(Tabular):
    """Runs of several methods, seeds and settings: `results` in the order in which they were asked for."""

    results: list[Result]

    def __iter__(self) -> Iterator[Result]:
        return iter(self.results)

    def __len__(self) -> int:
        return len(self.results)

    def __repr__(self) -> str:
        return f"Comparison({counted(len(self), 'run')}: {self.verdict()})"

    def _runs(self) -> list[Result]:
        return self.results

    def rows(self) -> list[ResultRow]:
        """One row of numbers for the runs that differ in the seed only."""
        return result_table(self.results)

    def verdict(self) -> str:
        """Who is ahead, by how much, and whether seeds could explain it."""
        return verdict(self.rows())

    def tuned(self) -> list[str]:
        """What was tuned on validation data before these runs, one sentence a study; nothing where nothing was."""
        return tuned_notes(self.results)

    def paired(self, against: str = BASELINE) -> list[Paired]:
        """Every row against the row of one method, seed by seed, in the order of `rows()`; empty without that method.

        Rows of another setting, protocol or way of selecting a round, or without a seed in common, are not compared.
        """
        return all_paired(self.rows(), against)

    def target_table(self, target: float | Sequence[float], format: str = "markdown") -> str:
        """What it took to reach each `target`, an accuracy in [0, 1]: the first tested round, bytes and FLOPs, as text.

        Means over the seeds that reached it. Raises `ConfigError` for another format or target.
        """
        targets = [target] if isinstance(target, float | int) else target
        return formatted_targets(self.results, targets, format)

    def cost_table(self, format: str = "markdown") -> str:
        """Milliseconds of a client's local epoch, alone and as a multiple of FedAvg's, FLOPs and bytes of a run.

        Means over seeds, as text. Times compare only where all runs had one machine and one engine. Raises
        `ConfigError` for another format.
        """
        return formatted_costs(self.results, format)

    def to_pandas(self) -> pandas.DataFrame:
        """One row a run: label, method, preset, seed, the settings in which runs differ, and what came out.

        Raises `ConfigError` where pandas is not installed.
        """
        return frame([self._row(group.row, result) for group in grouped(self.results) for result in group.results])

    @staticmethod
    def _row(row: ResultRow, result: RunData) -> dict[str, Any]:
        numbers = result.numbers
        named: dict[str, Any] = {"label": row["label"], "method": row["method"], "preset": row["preset"]}
        named |= {"seed": numbers["seed"], "protocol": row["protocol"], "select": row["select"], **row["setting"]}
        outcome: dict[str, Any] = {key: numbers[key] for key in _COLUMNS} | {"seconds": numbers["seconds"]["total"]}
        return {**named, **outcome, **numbers.get("figures", {})}
