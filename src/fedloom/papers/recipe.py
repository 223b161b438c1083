"""Recipes: what a table of a paper runs here, read from `recipes/*.yaml`, and the study that it makes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from pydantic import Field

from fedloom.core.errors import ConfigError, nearest, shown
from fedloom.core.safe_yaml import parse_yaml
from fedloom.methods import METHODS
from fedloom.papers.values import Printed, printed
from fedloom.study.config import load
from fedloom.study.execution_keys import changes_numbers
from fedloom.study.sections import Section
from fedloom.study.studies.plan import OF_STUDIES, Study, laid, parse_study

Scale = Literal["full", "small"]
Kind = Literal["table", "curves", "sweep", "clients", "bars", "costs", "points", "relations", "norms", "surface"]
Keys = dict[str, Any]
_OF_A_COLUMN = ("of", "panel", "x", "client", "domains", "small")
_UNDRAWN = "Not drawn:"


class Small(Section):
    """A reduction: what it is in words, and what it does to single rows; the keys that make it, rows that it leaves out
    by patterns of columns, and how many seeds."""

    says: str
    rows: dict[str, str] = Field(default_factory=dict)
    keys: Keys
    without: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    seeds: int = Field(3, ge=1)


class Points(Section):
    """How vectors are embedded: the keywords of `papers.probes.points`, where they are explained."""

    space: Literal["features", "scores"] = "features"
    unit: bool = False
    marks: Literal["none", "weights", "means"] = "none"
    samples: int = Field(1000, ge=2)


class Table(Section):
    """One table, or the runs of a figure. `columns`: settings of its study by name, each with `without` (rows that are
    not run there) and `small` (its part of the reduction), and in a table `of` (data set and setting as printed), in a
    figure `panel`, `x`, `client` (whose accuracy is drawn) and `domains` (clients in order that have bars of their
    own). `kind`: a table, or what is drawn: accuracy by round (curves), by the `axis` of a sweep, of single clients, as
    bars, or against its costs (`x`: the setting); or of trained models t-SNE (`points`), SL and CR matrices
    (relations), class weight norms, or loss surfaces. `rows`: those of the paper's rows that it has (None: all), or
    `only`: rows of its own. `with`: keys on top of a row. `beside`: rows that are another predictor of a row's run.
    `further`: panels of a sweep that show one client alone, by name. `baseline`: the row that gains are over, where
    FedAvg's, or that of local training, is not. `pooled`: accuracy is over all clients' test samples together, not the
    mean over clients. `small`: its part of the reduction, and `says`: the reduction in words, where these are not the
    paper's. `facts`: why nothing is run. `open`: what the paper leaves open, and what was chosen."""

    title: str
    kind: Kind = "table"
    axis: str = ""
    values: str | None = None
    seeds: int = Field(3, ge=1)
    columns: dict[str, Keys] = Field(default_factory=dict)
    rows: tuple[str, ...] | None = None
    only: dict[str, Keys] = Field(default_factory=dict)
    over: dict[str, Keys] = Field(default_factory=dict, alias="with")
    beside: dict[str, tuple[str, str]] = Field(default_factory=dict)
    further: dict[str, int] = Field(default_factory=dict)
    points: Points = Points()
    baseline: str | None = None
    pooled: bool = False
    facts: str | None = None
    says: str | None = None
    small: Keys = Field(default_factory=dict)
    open: tuple[str, ...] = ()


class Paper(Section):
    """A paper: its rows as keys of methods, what holds for all its tables, and the tables. `searched`: keys of which it
    tried several values and prints the best result; another one of them is the paper's setting as well."""

    paper: str
    open: tuple[str, ...] = ()
    searched: dict[str, tuple[Any, ...]] = Field(default_factory=dict)
    rows: dict[str, Keys]
    small: Small
    tables: dict[str, Table]
    figures: dict[str, Table] = Field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Recipe:
    """One table or figure of one paper."""

    name: str  # feddw/table1, feddw/fig6
    paper: Paper
    table: Table

    @property
    def rows(self) -> dict[str, Keys]:
        """What is run, by the label of its row."""
        rows = self.table.only
        if not rows:
            names = self.paper.rows if self.table.rows is None else self.table.rows
            rows = {name: laid(self.paper.rows[name], self.table.over.get(name, {})) for name in names}
        return {name: self._with_preset(keys) for name, keys in rows.items()}

    def over(self, row: str) -> str | None:
        """The row that a row's gain is over: with a wrapper the one without it, as MOON for MOON+DW, else the plain
        one: the table's `baseline`, its FedAvg, or its local training. None for the plain one itself."""
        by_method = {keys["method"]: name for name, keys in reversed(self.rows.items())}
        plain = self.table.baseline or by_method.get("fedavg") or by_method.get("local")
        method = self.rows.get(row, {"method": ""})["method"].rpartition("+")[0]
        found = by_method.get(method, plain)
        return None if found == row else found

    def _with_preset(self, keys: Keys) -> Keys:
        """A method's preset of this paper's name holds the options with which the paper ran it."""
        home, kind = self.name.partition("/")[0], METHODS.get(keys["method"])
        return {"preset": home, **keys} if home in kind.presets else keys

    @property
    def values(self) -> tuple[Printed, ...]:
        """What the table prints."""
        return () if self.table.values is None else printed(self.table.values)

    @property
    def open(self) -> tuple[str, ...]:
        """What the paper leaves open, and what was chosen."""
        return self.paper.open + self.table.open

    @property
    def cells(self) -> int:
        """How many cells its study has at full scale."""
        columns = self.table.columns.values()
        return self.table.seeds * sum(len(self.rows) - len(column.get("without", [])) for column in columns)

    @property
    def undrawn(self) -> list[str]:
        """What of the paper's figure is not drawn, and why."""
        said = (*([] if self.table.facts is None else [self.table.facts]), *self.table.open)
        return [text.removeprefix(_UNDRAWN).strip() for text in said if text.startswith(_UNDRAWN)]

    def column(self, of: str) -> str | None:
        """The setting of the study that stands for a printed column."""
        return next((name for name, keys in self.table.columns.items() if keys.get("of") == of), None)

    def says(self, scale: Scale) -> str:
        """The scale in words."""
        if scale == "full":
            return "the paper's own setting"
        small = self.paper.small
        of_rows = (text for row, text in small.rows.items() if row in self.rows)
        return "; ".join([self.table.says or small.says, *of_rows])

    def changing(self, words: Sequence[str], scale: Scale = "full") -> list[str]:
        """Those of `key=value` words that can change a number at this scale: no engine, and no value that all cells
        have already."""
        keys = {word: word.partition("=")[0] for word in words}
        asked = [word for word, key in keys.items() if changes_numbers(key) and not key.startswith("scenario.path")]
        cells = self._folders(scale) if asked else set()
        return [word for word in asked if self._folders(scale, word) != cells]

    def beyond(self, words: Sequence[str]) -> list[str]:
        """Those of such words that leave what the paper ran: they do not name another value that it searched."""
        return [word for word in words if not self._searched(*word.split("=", 1))]

    def _folders(self, scale: Scale, *words: str) -> set[str] | None:
        """What the runs of its cells are called, which says their configs; None if these words make no config, as a
        source without its path."""
        try:
            return {cell.folder for cell in self.study(scale, keys=load(None, words)).cells}
        except ConfigError:
            return None

    def _searched(self, key: str, text: str = "") -> bool:
        return parse_yaml(text) in self.paper.searched.get(key, ())

    def study(self, scale: Scale = "full", seeds: int | None = None, keys: Mapping[str, Any] | None = None) -> Study:
        """The study of the table. seeds: how many, from 0 on; None takes the recipe's. keys: on top of all cells.

        Raises `ConfigError` for a table in which nothing is run, for keys that are none of a cell's, and for more than
        10,000 seeds.
        """
        if self.table.facts is not None:
            raise ConfigError(f"{self.name}: {self.table.facts}")
        small, over = scale == "small", keys or {}
        for key in over.keys() & set(OF_STUDIES):
            raise ConfigError(f"{key} = {shown(over[key])}: a table has its own; see --seeds and --only")
        made = parse_study(
            {
                **(laid(self.paper.small.keys, self.table.small) if small else {}),
                "settings": {name: self._block(name, small) for name in self.table.columns},
                "methods": {row: laid(own, over) for row, own in self.rows.items()},
                "seeds": seeds or (self.paper.small.seeds if small else self.table.seeds),
            }
        )
        if listed := next((cell.point for cell in made.cells if cell.point), None):
            raise ConfigError(f"{listed}: a table takes one value of a key; `fedloom study` takes lists")
        return made

    def _block(self, name: str, small: bool) -> Keys:
        """A column's keys, as a setting of the study."""
        column = self.table.columns[name]
        block = {key: value for key, value in column.items() if key not in _OF_A_COLUMN}
        if small:
            block = laid(block, column.get("small", {}))
        less = self.paper.small.without.items() if small else ()
        left_out = [row for row, where in less if row in self.rows and any(fnmatchcase(name, glob) for glob in where)]
        return laid(block, {"without": [*block.get("without", []), *left_out]}) if left_out else block


@cache
def recipes() -> dict[str, Recipe]:
    """All recipes by name, paper by paper."""
    found: dict[str, Recipe] = {}
    for path in sorted((files("fedloom.papers") / "recipes").iterdir(), key=lambda path: path.name):
        if not path.name.endswith(".yaml"):
            continue
        paper = Paper(**parse_yaml(path.read_text(encoding="utf-8")))
        home = path.name.removesuffix(".yaml")
        found |= {
            f"{home}/{name}": Recipe(f"{home}/{name}", paper, table)
            for name, table in (paper.tables | paper.figures).items()
        }
    return found


def find(name: str) -> Recipe:
    """The recipe of this name. Raises `ConfigError` with the nearest one."""
    known = recipes()
    if name not in known:
        raise ConfigError(f"unknown table {shown(name)}: {nearest(name, known)}")
    return known[name]
