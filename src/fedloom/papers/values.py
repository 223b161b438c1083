"""The values that the papers print, read from `values/*.csv`."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

_DOMAIN = re.compile(r";?(?:domain)=([^;]+)")


@dataclass(frozen=True, slots=True)
class PrintedValue:
    """One printed value. `column`: data set and setting, without the domain; `value`: None where the paper has none."""

    method: str
    column: str
    domain: str | None
    metric: str
    value: float | None
    std: float | None


@cache
def printed_values(name: str) -> tuple[PrintedValue, ...]:
    """Read the values of one table, in the order of its file. Raises `FileNotFoundError` for an unknown name."""
    text = (files("fedloom.papers") / "values" / f"{name}.csv").read_text(encoding="utf-8")
    return tuple(_printed_value(row) for row in csv.DictReader(text.splitlines()))


def file_names() -> list[str]:
    """List the files of values by name, without their ending."""
    folder = files("fedloom.papers") / "values"
    return sorted(path.name.removesuffix(".csv") for path in folder.iterdir() if path.name.endswith(".csv"))


def _printed_value(row: dict[str, str]) -> PrintedValue:
    domain = _DOMAIN.search(row["setting"])
    setting = _DOMAIN.sub("", row["setting"])
    return PrintedValue(
        row["method"],
        f"{row['dataset']} | {setting}",
        domain[1] if domain else None,
        row["metric"],
        _number(row["value"]),
        _number(row["std"]),
    )


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:  # empty, a dash, or words
        return None
