"""A pivot of finished runs: one config key down, another across, measures in the cells. Needs no torch."""

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, get_args

from fedloom.core.errors import ConfigError, check_choice, short_repr, suggest_name
from fedloom.core.text import listed
from fedloom.results.comparability import panel_titles, row_names
from fedloom.results.data_table import Cell, DataTable, diverged_field
from fedloom.results.difference import LEVEL, Difference
from fedloom.results.group import Group, mean_std
from fedloom.results.pairs import best_rows, differences_against
from fedloom.results.table import grouped, protocols_of, settings_of
from fedloom.results.table_notes import TableMeasure, Units, comparison_notes, notes_of, table_measure
from fedloom.runs.storage.run_data import RunData

NAMED = ("method", "setting", "preset", "protocol", "select")
_SEED = ("seed", "seeds")


def short_keys(keys: Sequence[str]) -> dict[str, str]:
    """Return the last word of each key, or the whole key if two keys share that word.

    >>> short_keys(["scenario.alpha", "fedprox.mu", "moon.mu"])
    {'scenario.alpha': 'alpha', 'fedprox.mu': 'fedprox.mu', 'moon.mu': 'moon.mu'}
    """
    last = {key: key.rpartition(".")[2] for key in keys}
    return {key: key if list(last.values()).count(word) > 1 else word for key, word in last.items()}


class PivotKeys:
    """The values of all keys by which groups may be arranged."""

    def __init__(self, groups: Sequence[Group]) -> None:
        names = row_names([group.row for group in groups])
        self.methods = [name.method for name in names]
        self.values: list[dict[str, str]] = []
        for group, name in zip(groups, names, strict=True):
            row = group.row
            named = {"method": name.method, "setting": name.setting or "–", "preset": row["preset"]}
            named |= {"protocol": row["protocol"], "select": row["select"]}
            self.values.append({**settings_of(group.results[0]), **named})
        self._own = [f"{group.row['method']}." for group in groups]
        self._tuned = [set(group.row["tuned"]) for group in groups]

    def find(self, name: str) -> str:
        """Return the whole name of a key. Raises `ConfigError` for an unknown or ambiguous one."""
        if name in _SEED:
            raise ConfigError("seed: each cell is a mean over seeds; n in --cells says over how many")
        every = dict.fromkeys(key for values in self.values for key in values)
        if name in every:
            return name
        whole = [key for key in every if key.rpartition(".")[2] == name]
        if len(whole) > 1:
            # Of several keys with this last word, those that vary are meant.
            whole = [key for key in whole if len(self._values_of(key)) > 1] or whole
        if len(whole) > 1:
            raise ConfigError(f"{short_repr(name)}: say which key is meant: {', '.join(whole)}")
        if whole:
            return whole[0]
        varying = {key for key in every if len(self._values_of(key)) > 1}
        known = {*NAMED, *varying, *(key.rpartition(".")[2] for key in varying)}
        raise ConfigError(f"{short_repr(name)}: no run has this key; {suggest_name(name, known)}")

    def arranged(
        self, rows: Sequence[str], columns: Sequence[str]
    ) -> dict[tuple[tuple[str, ...], tuple[str, ...]], int]:
        """Return the group of each pair of row and column. Raises `ConfigError` for two groups in one cell."""
        at: dict[tuple[tuple[str, ...], tuple[str, ...]], int] = {}
        for index, values in enumerate(self.values):
            pair = tuple(values.get(key, "–") for key in rows), tuple(values.get(key, "–") for key in columns)
            first = at.setdefault(pair, index)
            if first != index:
                named = short_keys((*rows, *columns))
                where = ", ".join(f"{name} {values.get(key, '–')}" for key, name in named.items())
                key = self._varying(first, index)
                both = f"{self.values[first].get(key, '–')} and {values.get(key, '–')}"
                raise ConfigError(
                    f"two values in a cell ({where}): {key} still varies ({both}); add it to --rows or --columns, or "
                    "name fewer folders"
                )
        return at

    def places(self, rows: Sequence[str], columns: Sequence[str]) -> list[tuple[str, ...]]:
        """Return for each group the part of a pivot where its methods stand: its values but those that name methods."""
        named = [
            [key for key in (*rows, *columns) if key not in ("method", "preset") and not key.startswith(own)]
            for own in self._own
        ]
        return [tuple(values.get(key, "–") for key in keys) for values, keys in zip(self.values, named, strict=True)]

    def _varying(self, first: int, second: int) -> str:
        """Return the key that best says how two groups differ: no option of a method, if another key differs."""
        ours, theirs = self.values[first], self.values[second]
        apart = ("optimizer.", self._own[first], self._own[second])
        keys = [key for key in {**ours, **theirs} if ours.get(key) != theirs.get(key)]
        named = [key for key in ("method", "protocol", "select", "preset") if key in keys]
        tuned = self._tuned[first] | self._tuned[second]
        plain = [key for key in keys if key not in NAMED and not key.startswith((*apart, "evaluation."))]
        return next(iter([*named, *(key for key in plain if key not in tuned), *keys]), "setting")

    def _values_of(self, key: str) -> set[str | None]:
        return {values.get(key) for values in self.values}


@dataclass(frozen=True, slots=True)
class PivotLayout:
    """The shape of a pivot; `Comparison.pivot` explains its fields."""

    rows: tuple[str, ...] = ("method",)
    columns: tuple[str, ...] = ()
    cells: tuple[str, ...] = ("accuracy",)
    units: Units = "percent"
    against: str = "fedavg"
    interval: bool = False
    p_value: bool = False


def pivot(results: Sequence[RunData], layout: PivotLayout, caption: str = "", label: str = "") -> DataTable:
    """Return the means over seeds as a table whose rows, columns and cells the `layout` names.
    An empty `caption` names measures and keys; `label` is for LaTeX. Raises `ConfigError` for an unknown key or
    measure, and for two values in a cell, which names the key that still varies."""
    check_choice("units", layout.units, get_args(Units))
    groups = grouped(results)
    keys = PivotKeys(groups)
    row_keys, column_keys = ([keys.find(key) for key in names] for names in (layout.rows, layout.columns))
    if not row_keys or not layout.cells:
        raise ConfigError(f"--{'rows' if not row_keys else 'cells'}: need at least one name")
    repeated = next((key for key in column_keys if key in row_keys), None)
    if repeated is not None:
        raise ConfigError(f"--columns {repeated}: it names the rows already; choose another key")
    at = keys.arranged(row_keys, column_keys)
    measures = [table_measure(name, groups, layout.units) for name in dict.fromkeys(layout.cells)]
    titles = panel_titles([group.row for group in groups], row_names([group.row for group in groups]))
    blocks = [_Block(measure, groups, titles, layout, keys) for measure in measures]
    upper, lines = _ordered(key for _, key in at), _ordered(key for key, _ in at)
    names, heads = short_keys((*row_keys, *column_keys)), len(row_keys)
    settings = [", ".join(map(partial(_heading, names), column_keys, key)) for key in upper]
    columns = [(setting, words) for setting in settings for block in blocks for words in block.headings()]
    rows, records, bold = list[list[Cell]](), list[dict[str, Any]](), set[tuple[int, int]]()
    for r, line in enumerate(lines):
        values = [value for key in upper for block in blocks for value in block.values(at.get((line, key)))]
        rows.append([*line, *((value.text, value.numbers.get("")) for value in values)])
        bold |= {(r, heads + c) for c, value in enumerate(values) if value.bold}
        records.append(dict(zip((names[key] for key in row_keys), line, strict=True)))
        for column, value in zip(columns, values, strict=True):
            words = ", ".join(filter(None, column))
            records[-1] |= {f"{words} {ending}".rstrip(): number for ending, number in value.numbers.items()}
    scores = listed(measure.words for measure in measures)
    title = caption or f"{scores[:1].upper()}{scores[1:]} by {' and '.join(names.values())}"
    best = [block.best for block in blocks]
    notes = notes_of(groups, measures, best, layout.against if _differs(layout) else "")
    notes += comparison_notes(groups, titles, measures, best, keys.places(row_keys, column_keys))
    private = [row for row in (group.row for group in groups) if "epsilon" in row["figures"]]
    budgets = ("{label}: epsilon {figures[epsilon]:.3g}, delta {figures[delta]:.3g}.".format(**row) for row in private)
    notes += dict.fromkeys(budgets)
    headings = [*(names[key] for key in row_keys), *(words for _, words in columns)]
    above = [*[""] * heads, *(setting for setting, _ in columns)]
    texts: dict[str, Any] = {"title": title, "label": label_of(label or "results"), "notes": notes, "above": above}
    return DataTable("pivot", "", headings, rows, heads, records=records, bold=bold, **texts)


def default_columns(results: Sequence[RunData]) -> tuple[str, ...]:
    """Return the keys that tell apart settings, protocols and ways of selecting a round, where there are several."""
    groups = grouped(results)
    names = row_names([group.row for group in groups])
    settings = ("setting",) if len({name.setting for name in names}) > 1 else ()
    protocols = ("protocol",) if len(protocols_of(groups)) > 1 or len(set(names)) < len(groups) else ()
    selections = ("select",) if len({group.row["select"] for group in groups}) > 1 else ()
    return settings + protocols + selections


def label_of(name: str) -> str:
    """Return a LaTeX label from any name: "tab:mine"."""
    plain = re.sub(r"[^A-Za-z0-9:.-]+", "-", name).strip("-") or "results"
    return plain if ":" in plain else f"tab:{plain}"


@dataclass(frozen=True, slots=True)
class _Value:
    """A value as text, and as numbers for programs, by the ending of their column's name."""

    text: str
    numbers: Mapping[str, Any]
    bold: bool = False


_NONE = _Value("–", {})


class _Block:
    """The columns of one measure in one setting: its means, and the differences that are wanted."""

    def __init__(
        self,
        measure: TableMeasure,
        groups: Sequence[Group],
        titles: Sequence[str],
        layout: PivotLayout,
        keys: PivotKeys,
    ) -> None:
        self._measure, self._groups, self._layout = measure, groups, layout
        self.best = best_rows(groups, titles, measure.complete, measure.lower) if measure.ranked else set[int]()
        self._differences: dict[int, Difference] = {}
        if _differs(layout) and measure.tested:
            self._differences = differences_against(
                layout.against, groups, keys.methods, titles, measure.complete, measure.name
            )
        counts = {group.row["n"] for group in groups}
        self._counts_vary = len(counts) > 1 and "n" not in layout.cells
        self._pairs_vary = len(counts | {outcome.n for outcome in self._differences.values()}) > 1

    def headings(self) -> list[str]:
        interval = [f"over {self._layout.against} [{100 * LEVEL:.0f} %]"] if self._layout.interval else []
        p_value = ["p"] if self._layout.p_value else []
        return [self._measure.words, *(interval + p_value if self._measure.tested else [])]

    def values(self, index: int | None) -> list[_Value]:
        count = len(self.headings())
        if index is None or not self._measure.defined(index):
            return [_NONE] * count
        values, outcome = [self._mean(index)], self._differences.get(index)
        if count > 1 and self._layout.interval:
            values.append(_NONE if outcome is None else self._interval(outcome))
        if count > 1 and self._layout.p_value:
            p = None if outcome is None else outcome.adjusted
            values.append(_NONE if p is None else _Value("<0.001" if p < 0.001 else f"{p:.3f}", {"": p}))
        return values

    def _mean(self, index: int) -> _Value:
        values, row = self._measure.defined(index), self._groups[index].row
        if row["diverged"] and self._measure.tested:
            return _Value("diverged", {"": None, **diverged_field(row["diverged"])})
        mean, std = mean_std([self._measure.scale * value for value in values])
        numbers: dict[str, Any] = {"": mean}
        if self._measure.tested:
            numbers |= {"std": std, "n": len(values), "bold": int(index in self.best)}
        text = self._measure.text(index)
        if self._measure.tested and self._counts_vary and len(values) == row["n"]:  # else the text says it
            text += f" (n = {row['n']})"
        return _Value(text, numbers, index in self.best)

    def _interval(self, outcome: Difference) -> _Value:
        scale, decimals = self._measure.scale, self._measure.decimals
        low, high = (None if bound is None else scale * bound for bound in (outcome.low, outcome.high))
        text = f"{scale * outcome.mean:+.{decimals}f}"
        text += "" if outcome.low is None else f" [{outcome.interval_text(scale, decimals)}]"
        text += f" (n = {outcome.n})" if self._pairs_vary else ""
        return _Value(text, {"": scale * outcome.mean, "low": low, "high": high, "n": outcome.n})


def _differs(layout: PivotLayout) -> bool:
    return layout.interval or layout.p_value


def _heading(names: Mapping[str, str], key: str, value: str) -> str:
    """Return the words above a column; names of methods and settings need no key."""
    return value if key in NAMED else f"{names[key]} = {value}"


def _ordered(keys: Iterable[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Return keys in the order of their parts: by size where all of a key are numbers, else by appearance."""
    distinct = list(dict.fromkeys(keys))
    ranks = [_ranks(list(dict.fromkeys(parts))) for parts in zip(*distinct, strict=True)]
    return sorted(distinct, key=lambda key: [rank[part] for rank, part in zip(ranks, key, strict=True)])


def _ranks(parts: list[str]) -> dict[str, int]:
    with suppress(ValueError):  # words stay in their order
        parts = sorted(parts, key=float)
    return {part: rank for rank, part in enumerate(parts)}
