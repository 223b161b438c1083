"""The table that the audit reads, with its groups of rows, and the findings of the audit."""

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from fedloom.core.errors import DataError
from fedloom.data.findings import LISTED, DataFinding
from fedloom.data.labels import GROUP_NAME
from fedloom.data.sources.tables.columns import Column, ReadingError
from fedloom.data.sources.tables.table_files import TableFile
from fedloom.data.sources.tables.words import refuse_misread

FEW_ROWS = 10  # below, everything looks odd
SEVERAL = 20  # different values that make a measurement, and rows that tell ids from them
_BLOCKS = 10
_PAIRS = 64  # of rows, in which most dependent columns are ruled out
_SEARCHED = 1000  # columns among which groups are sought
REFUSED = "a run refuses it: it "


@dataclass(frozen=True)
class AuditedTable:
    """The columns [n each] of a table by name, as `reader` reads them from `file`. numbers: those of the rows in the
    `whole` file [n], from 1 on; of a large one only a part is read. label, owner: names of columns, or None. unused:
    columns that a config leaves out. refused: findings on features that a run refuses to read."""

    reader: Any  # a TableSource, whose module imports this one
    file: TableFile
    whole: TableFile
    numbers: np.ndarray
    columns: dict[str, Column]
    label: str | None = None
    owner: str | None = None
    unused: frozenset[str] = frozenset()
    refused: list[DataFinding] = field(default_factory=list)

    @cached_property
    def features(self) -> dict[str, Column]:
        apart = {self.label, self.owner, *self.unused}
        return {name: column for name, column in self.columns.items() if name not in apart}

    @cached_property
    def measurements(self) -> dict[str, np.ndarray]:
        """The numeric features as float64 [n], NaN where a value is missing."""
        return {name: as_floats(column) for name, column in self.features.items() if column.is_numeric()}

    @cached_property
    def codes(self) -> dict[str, np.ndarray]:
        """Each column as whole numbers from 0 on that tell its values apart and keep their order, -1 for missing."""
        codes = {name: np.full(len(column.values), -1, np.int64) for name, column in self.columns.items()}
        for name, column in self.columns.items():
            codes[name][~column.is_missing] = np.unique(column.present_values, return_inverse=True)[1]
        return codes

    @cached_property
    def classes(self) -> np.ndarray | None:
        """The class of each row [n], -1 where it is missing; None without a label, or if that is a measurement."""
        codes = None if self.label is None else self.codes[self.label]
        few = codes is not None and 2 <= codes.max(initial=-1) + 1 <= max(2, min(100, len(codes) // 5))
        return codes if few else None

    @cached_property
    def groups(self) -> dict[str, list[str]]:
        """The group-like columns, with the columns that depend on each: those with the name of a group, or else the one
        with the most dependent columns; the most values first. Of columns that stand for each other, one to one, the
        first is taken."""
        varied = {}
        for name, codes in [*self.codes.items()][:_SEARCHED]:
            sizes = np.bincount(codes[codes >= 0]).astype(float)
            if name not in (self.label, self.owner) and 0 < (sizes**2).sum() <= 0.3 * sizes.sum() ** 2:
                varied[name] = codes
        matrix = np.stack([*varied.values()] or [np.zeros(len(self.numbers))], 1).astype(np.int32)
        searched = [*self.columns][:_SEARCHED]
        candidates = {name: of for name in searched if (of := group_dependents(self, name, varied, matrix)) is not None}
        named = {name: of for name, of in candidates.items() if GROUP_NAME.fullmatch(name)}
        most = sorted(candidates, key=lambda name: -len(candidates[name]))[:1]
        groups: list[str] = []
        for name in named or most:
            if not any(are_one_to_one(self.codes[name], self.codes[group]) for group in groups):
                groups.append(name)
        return {name: candidates[name] for name in sorted(groups, key=lambda name: -self.codes[name].max())}

    def finding(
        self, check: str, column: str, rule: str, key: str, held: np.ndarray | None = None, is_note: bool = False
    ) -> DataFinding:
        """Return the finding of a check on a column. held: the rows that it concerns, bool [n]; None for all."""
        first = () if held is None else tuple(self.numbers[held][:LISTED].tolist())
        rows = len(self.numbers) if held is None else int(held.sum())
        return DataFinding(check, column, rows, first, rule, key, is_note)

    def missing(self, cells: Collection[str]) -> str:
        """Return the key that makes cells missing, in addition to those that are already."""
        known = list(self.reader.missing or ())
        if self.reader.missing is None and not self.reader.typed:  # the key replaces NA and the like among numbers
            lacking = [name for name, column in self.columns.items() if column.is_numeric() and column.is_missing.any()]
            words = {word for column in self.reader.texts(self.file, lacking).values() for word in column.counts()}
            known = sorted(word for word in words if self.reader.cell_format.number(word) is None)
        return f"scenario.missing: {json.dumps([*known, *cells], ensure_ascii=False)}"


def read_table(
    reader: Any,
    file: TableFile,
    label: str | None = None,
    owner: str | None = None,
    unused: Collection[str] = (),
    cells: int = 50_000_000,
) -> AuditedTable:
    """Read a table for an audit: of one with more `cells`, the first columns (one for 2,000 cells) and ten blocks of
    rows, because the rows of one person often follow each other. label, owner, unused: as in `AuditedTable`."""
    names = [name for at, name in enumerate(file.columns) if at < cells // 2000 or name in (label, owner)]
    size = max(FEW_ROWS, cells // max(1, len(names)) // _BLOCKS)
    part, rows = file, np.arange(file.rows)
    if _BLOCKS * size < file.rows:
        rows = (np.linspace(0, file.rows - size, _BLOCKS).astype(int)[:, None] + np.arange(size)).ravel()
    if len(rows) < file.rows or len(names) < len(file.columns):
        reread, columns = file.reread, {name: file.columns[name].take(rows) for name in names}
        again = reread and (lambda names: {name: values.take(rows) for name, values in reread(names).items()})
        part = replace(file, columns=columns, rows=len(rows), reread=again)
    table = AuditedTable(reader, part, file, rows + 1, {}, label, owner, frozenset(unused))
    left = {*part.index} - {label, owner, *(reader.features or ()), *reader.categorical}
    for name in [name for name in part.columns if name not in left]:
        try:
            is_feature = name not in (label, owner, *unused)
            column = reader.feature(part, name) if is_feature else reader.column(part, name)
            table.columns[name] = column.as_words() if name in reader.categorical else column
            if not is_feature or name in reader.categorical:
                continue
            if column.words is None:
                replace(column, values=column.present_values).as_numbers(part.path)
            else:
                refuse_misread(column, part.path, reader.cell_format)
        except DataError as error:
            if name not in unused:
                advice = error.advice if isinstance(error, ReadingError) else drop(name)
                problem = str(error).removesuffix(f"; {advice}").removeprefix(f"{part.path}: ")
                rule = REFUSED + re.sub(r"^column '.*?' ", "", problem)
                table.refused.append(table.finding("refused", name, rule, advice))
    return table


# -- groups of rows ----------------------------------------------------------------------------------------------------
def group_column(table: AuditedTable) -> str | None:
    """Return the column that looks most like groups of rows, such as persons; None if there is none."""
    return next(iter(table.groups), None)


def group_dependents(
    table: AuditedTable, name: str, varied: Mapping[str, np.ndarray], matrix: np.ndarray
) -> list[str] | None:
    """Return the columns that depend on a column if it looks like groups of rows, such as persons; else None. It holds
    words or whole numbers, 10 to n/1.5 different ones, of which 5 occur again. It has the name of a group, and a
    dependent column or 20 values with a median of at most 50 rows each; or, under another name, a dependent column and
    at least 15 values and 2 % of n. A column depends if 95 % of neighbours in a group agree in it, at most 30 % of
    random rows do (those of `varied`, codes by name, and as a matrix [n, k]), and it is no step, monotone or one-peak
    function of the group."""
    codes = table.codes[name]
    present = codes[codes >= 0]
    sizes = np.bincount(present) if len(present) else np.zeros(0)
    is_named = GROUP_NAME.fullmatch(name) is not None
    least = 10 if is_named else max(15, 0.02 * len(present))
    if name in (table.label, table.owner) or is_fractional(table, name) or (sizes > 1).sum() < 5:
        return None
    if not least <= len(sizes) <= len(present) / 1.5:
        return None
    pairs = neighbours(codes)
    few = [rows[:: max(1, len(rows) // _PAIRS)] for rows in pairs]
    before, after = matrix[few[0]], matrix[few[1]]
    agree = ((before == after) | (before < 0) | (after < 0)).mean(0) >= 0.8
    likely = [key for key, is_likely in zip(varied, agree, strict=False) if is_likely and key != name]
    dependent = [key for key in likely if _depends(codes, varied[key], pairs)]
    return dependent if dependent or (is_named and len(sizes) >= SEVERAL and np.median(sizes) <= 50) else None


def _depends(groups: np.ndarray, codes: np.ndarray, pairs: tuple[np.ndarray, np.ndarray]) -> bool:
    if agreement(pairs, codes) < 0.95:
        return False
    ids, rows = np.unique(np.where(codes >= 0, groups, -1), return_index=True)
    steps = np.sign(np.diff(codes[rows[ids >= 0]]))
    turns = (np.diff(steps[steps != 0]) != 0).sum()
    return bool(turns > 1 and (steps != 0).mean() > 0.1)


def are_one_to_one(first: np.ndarray, second: np.ndarray) -> bool:
    """Tell whether the codes of two columns [n], where both have one, stand for each other and are several."""
    present = (first >= 0) & (second >= 0)
    if present.all() and first.max(initial=0) != second.max(initial=0):  # soon done for nearly all columns
        return False
    pairs = np.unique(np.stack([first, second])[:, present], axis=1)
    return bool(1 < pairs.shape[1] == len(np.unique(pairs[0])) == len(np.unique(pairs[1])))


def agreement(pairs: tuple[np.ndarray, np.ndarray], codes: np.ndarray) -> float:
    """Return the share of the pairs of rows, both with a value in codes [n], that have the same one; 0 for few."""
    before, after = pairs
    usable = (codes[before] >= 0) & (codes[after] >= 0)
    return float((codes[before] == codes[after])[usable].mean()) if usable.sum() >= 5 else 0.0


def neighbours(groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of rows that follow each other within a group: the former ones and the latter ones."""
    order = np.argsort(groups, kind="stable")
    same = (groups[order][1:] == groups[order][:-1]) & (groups[order][1:] >= 0)
    return order[:-1][same], order[1:][same]


# -- what the checks share ---------------------------------------------------------------------------------------------
def as_floats(column: Column) -> np.ndarray:
    """Return the numbers of a column, float64 [n], NaN where one is missing or infinite."""
    values = np.where(column.is_missing, np.nan, column.values.astype(np.float64))
    return np.where(np.isfinite(values), values, np.nan)


def is_fractional(table: AuditedTable, name: str) -> bool:
    """Tell whether a column holds numbers that are not all whole."""
    column = table.columns[name]
    return column.is_numeric() and not Column(name, column.present_values).is_whole()


def drop(name: str) -> str:
    """Return the key that leaves out a column."""
    return f"scenario.drop: {json.dumps([name], ensure_ascii=False)}"
