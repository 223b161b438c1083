"""Tables of results: markdown, LaTeX, CSV, HTML, pandas."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedloom.core.errors import ConfigError

if TYPE_CHECKING:
    import pandas

    from fedloom.runs.storage.run_data import RunData


class Tabular:
    """Add tables to a class with finished runs."""

    __slots__ = ()

    def _runs(self) -> Sequence[RunData]:
        raise NotImplementedError

    def table(self, format: str = "markdown") -> str:
        """Return one row for each group of runs that differ in the seed only, as text in "markdown", "latex" or "csv".

        markdown and latex: accuracy in percent, mean ± sample standard deviation over n seeds; bytes and time per run.
        csv: plain numbers, accuracies as shares in [0, 1], bytes, seconds. Raises `ConfigError` for another format.
        """
        from fedloom.results.formats import formatted

        return formatted(self._runs(), format)

    def _repr_html_(self) -> str:
        return self.table("html")


def frame(rows: Sequence[Mapping[str, Any]]) -> pandas.DataFrame:
    """Return rows as a pandas DataFrame. Raises `ConfigError` if pandas is not installed."""
    try:
        dataframe: pandas.DataFrame = importlib.import_module("pandas").DataFrame(rows)
    except ImportError:
        raise ConfigError("to_pandas: the package pandas is not installed; install pandas") from None
    return dataframe
