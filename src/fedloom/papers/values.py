"""The values that the papers print (`values/*.csv`), claims outside their tables, and data that are missing here."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from statistics import fmean

from fedloom.core.errors import DataError
from fedloom.papers.compared_values import ComparedValue
from fedloom.papers.measurements import ACCURACY
from fedloom.papers.recipe import Claim
from fedloom.papers.verdicts import NOT_RUN, Verdict, judge_value
from fedloom.runs.studies.plan import Cell

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


def source_names(cells: Sequence[Cell]) -> list[str]:
    """Name the sources that the cells read, each once."""
    return list(dict.fromkeys(cell.config.scenario.source for cell in cells))


def missing_sources(cells: Sequence[Cell]) -> dict[str, str]:
    """Find the sources whose files are missing; by source, which files it needs where, and where they come from."""
    errors: dict[str, list[str]] = {}
    checked = set()
    for cell in cells:
        scenario = cell.config.scenario
        key = (scenario.source, str(scenario.model_extra))
        if key in checked:
            continue
        checked.add(key)
        source, _ = scenario.parts()
        try:
            source.files()
        except DataError as error:
            messages = errors.setdefault(scenario.source, [])
            messages += [] if str(error) in messages else [str(error)]
    return {name: "; ".join(messages) for name, messages in errors.items()}


def refuse_missing(cells: Sequence[Cell]) -> None:
    """Raise `DataError` if files are missing: which ones, in which layout, and where to get them."""
    missing = missing_sources(cells)
    if missing:
        raise DataError(f"{'; '.join(missing.values())}. Nothing was run; --only leaves columns out")


@dataclass(frozen=True, slots=True)
class JudgedClaim:
    """A claim, ours by seed in its unit, and the verdict."""

    claim: Claim
    ours: list[float]
    verdict: Verdict

    @property
    def texts(self) -> tuple[str, str, str, str, str]:
        """Return claim, printed value, ours, verdict and reason."""
        printed = f"{self.claim.printed:g} {self.claim.unit}" if self.claim.printed is not None else "–"
        if self.claim.values is not None:
            printed = f"{len(printed_values(self.claim.values))} values"
        ours = f"{fmean(self.ours):.2f}" if self.ours else "–"
        return self.claim.claim, printed, ours, self.verdict.word, self.verdict.why


def judge_claims(claims: Sequence[Claim], tables: Mapping[str, Sequence[ComparedValue]]) -> list[JudgedClaim]:
    """Judge claims by compared values.

    Args:
        claims: the claims of the papers.
        tables: by its name, the values of each table that was run.
    """
    judged = []
    for claim in claims:
        ours, reason = _ours(claim, tables.get(claim.table or "", []))
        judged.append(JudgedClaim(claim, ours, judge_value(ours, claim.printed, reason=claim.why or reason)))
    return judged


def _ours(claim: Claim, values: Sequence[ComparedValue]) -> tuple[list[float], str | None]:
    """Return our values by seed, and why they cannot be compared; None if they can."""
    by_name = {f"{value.column}/{value.row}": value for value in values if value.was_run and value.metric in ACCURACY}
    names = [name for name in (claim.row, claim.minus) if name is not None]
    cells = [by_name[name] for name in names if name in by_name]
    if not cells or len(cells) < len(names):
        missing = ", ".join(name for name in names if name not in by_name)
        return [], f"{NOT_RUN}: {missing} of `{claim.table}`" if claim.table and missing else NOT_RUN
    reasons = [value.verdict.why.partition(";")[0] for value in cells if value.verdict.word == "not comparable"]
    ours = cells[0].by_seed
    if len(cells) == 2:
        ours = {seed: ours[seed] - value for seed, value in cells[1].by_seed.items() if seed in ours}
    return list(ours.values()), reasons[0] if reasons else None
