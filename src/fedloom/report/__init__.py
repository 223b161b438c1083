"""Floor 6: tables, figures and the HTML report, from stored results only.

Importing this loads neither torch nor matplotlib; writing a report loads matplotlib.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedloom.core.errors import ConfigError
from fedloom.core.files import write_output
from fedloom.report.table import ResultRow, result_table
from fedloom.report.text import bytes_text, percent, plus_minus, seconds_text
from fedloom.report.verdict import verdict
from fedloom.study.results import Result

__all__ = [
    "ResultRow",
    "bytes_text",
    "percent",
    "plus_minus",
    "result_table",
    "save_holdings",
    "seconds_text",
    "verdict",
    "write_report",
]


def save_holdings(scenario: Mapping[str, Any], path: Path) -> Path:
    """Draw who holds what to a picture file; see `fedloom.report.picture.save_holdings`."""
    from fedloom.report import picture  # brings matplotlib

    return picture.save_holdings(scenario, path)


def write_report(results: Sequence[Result], path: Path, title: str | None = None) -> Path:
    """Write one self-contained HTML page about finished runs to `path`, whole or not at all; returns `path`.

    The same results give the same bytes. title: None names the methods and the data. Raises `ConfigError` if there
    are no results, or if the file cannot be written.
    """
    if not results:
        raise ConfigError("a report needs at least one finished run, got none")
    from fedloom.report.page import page  # brings matplotlib

    write_output(path, page(results, title))
    return path
