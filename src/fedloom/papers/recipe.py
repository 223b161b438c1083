"""Recipes: the printed values of papers' tables (`values/*.csv`), and studies that repeat them (`recipes/*.yaml`)."""

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from pydantic import Field

from fedloom.core.errors import ConfigError, DataError, short_repr, suggest_name
from fedloom.core.files import parse_yaml
from fedloom.methods import METHODS
from fedloom.runs.config.kinds import overlaid
from fedloom.runs.config.run_config import load
from fedloom.runs.config.sections import Section
from fedloom.runs.storage.schemas import changes_numbers
from fedloom.runs.studies.plan import Cell, StudyPlan, parse_study
from fedloom.runs.studies.search_space import OF_STUDIES

_DOMAIN = re.compile(r";?domain=([^;]+)")


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
    values = []
    for row in csv.DictReader(text.splitlines()):
        domain, setting = _DOMAIN.search(row["setting"]), _DOMAIN.sub("", row["setting"])
        place = (row["method"], f"{row['dataset']} | {setting}", domain[1] if domain else None)
        values.append(PrintedValue(*place, row["metric"], _number(row["value"]), _number(row["std"])))
    return tuple(values)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:  # empty, a dash, or words
        return None


Scale = Literal["full", "small"]
Kind = (
    Literal["table", "curves", "sweep", "clients", "bars", "costs", "points", "relations", "norms"]
    | Literal["landscapes", "cohorts", "local_points", "knowledge", "drift"]
)
Keys = dict[str, Any]
_COLUMN_KEYS = ("printed", "panel", "x", "client", "domains", "small")  # the others are config keys


class Small(Section):
    """The reduction of a paper's tables to small scale.
    reduction: a description. row_notes: its effect on single rows, by row. keys: the config keys that make it.
    left_out: rows that are not run at this scale, each with patterns of columns. seeds: how many seeds are run."""

    reduction: str
    row_notes: dict[str, str] = Field(default_factory=dict)
    keys: Keys
    left_out: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    seeds: int = Field(3, ge=1)


class Table(Section):
    """One table, or the runs of a figure.

    - kind: a table, or a kind of figure: accuracy by round (curves), by the `axis` of a sweep, of single clients
      (clients), as bars, or against its costs; the parts of a run's drift by round (drift). Of trained models: t-SNE
      (points), FedDW's SL and CR matrices (relations) or class weight norms (norms). Of client models of single rounds,
      which the columns name by `checkpoint.keep_clients`: loss landscapes, class counts of cohorts, t-SNE
      (local_points) or class knowledge.
    - values: the file of printed values. seeds: how many seeds are run. pooled: accuracy is over all clients' test
      samples together, and not the mean over clients.
    - columns: settings of the study by name, as config keys, with `without` (rows that are not run there), `small` (its
      part of the reduction), and `printed` (data set and setting as printed). In a figure `panel`, `x`, `client` (whose
      accuracy is drawn) and `domains` (clients in order that have their own bars) say where it is drawn.
    - rows: which of the paper's rows the table has (None: all). own_rows: rows that replace them. row_overrides: config
      keys on top of a row. predictor_rows: rows that are another predictor of a row's run.
    - client_panels: panels of a sweep that show one client alone, by name. points: how vectors are embedded, as
      `benchmarks.figures.probes.points` takes it.
    - baseline: the row that gains are over, where this is neither FedAvg nor local training.
    - margin: the largest difference from a printed value that counts as none, in the unit of its measure (points,
      rounds), fixed before anything runs. printed_runs: the number of runs behind printed standard deviations, if the
      paper says it.
    - small: the table's part of the reduction. reduction: that in words, where it is not the paper's.
    - why_not_run: why nothing is run. choices: our choices where the paper is silent.
    """

    title: str
    kind: Kind = "table"
    axis: str = ""
    values: str | None = None
    seeds: int = Field(3, ge=1)
    columns: dict[str, Keys] = Field(default_factory=dict)
    rows: tuple[str, ...] | None = None
    own_rows: dict[str, Keys] = Field(default_factory=dict)
    row_overrides: dict[str, Keys] = Field(default_factory=dict)
    predictor_rows: dict[str, tuple[str, str]] = Field(default_factory=dict)
    client_panels: dict[str, int] = Field(default_factory=dict)
    points: Keys = Field(default_factory=dict)
    baseline: str | None = None
    margin: float = Field(1.0, gt=0)
    printed_runs: int | None = Field(None, ge=2)
    pooled: bool = False
    why_not_run: str | None = None
    reduction: str | None = None
    small: Keys = Field(default_factory=dict)
    choices: tuple[str, ...] = ()


class Claim(Section):
    """A value that the paper states in its text, or draws in a figure. claim: in words. printed: the value, in `unit`.
    table, row, minus: the cells of a table, "column/row", whose mean or difference of means it is; none if no table has
    them. values: a file of printed values that is listed whole. why: why it cannot be compared with our runs."""

    claim: str
    printed: float | None = None
    unit: str = "points"
    table: str | None = None
    row: str | None = None
    minus: str | None = None
    values: str | None = None
    why: str | None = None


class Paper(Section):
    """A paper: its tables and figures, and what holds for all of them. rows: config keys by the name of a printed row.
    searched: config keys that the paper searched, printing the best result; a single run is not compared with such a
    maximum. claims: values that the paper states outside its tables. choices: our choices where the paper is silent."""

    title: str
    choices: tuple[str, ...] = ()
    searched: dict[str, tuple[Any, ...]] = Field(default_factory=dict)
    claims: tuple[Claim, ...] = ()
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
        """Config keys by the label of the row."""
        rows = self.table.own_rows
        if not rows:
            names = self.paper.rows if self.table.rows is None else self.table.rows
            rows = {name: overlaid(self.paper.rows[name], self.table.row_overrides.get(name, {})) for name in names}
        # The preset of the paper's name, if the method has one, has the options with which the paper ran it.
        preset = self.name.partition("/")[0]
        with_preset = {name for name, keys in rows.items() if preset in METHODS.get(keys["method"]).presets}
        return {name: {"preset": preset, **keys} if name in with_preset else keys for name, keys in rows.items()}

    @property
    def values(self) -> tuple[PrintedValue, ...]:
        """The values that the table prints."""
        return () if self.table.values is None else printed_values(self.table.values)

    @property
    def choices(self) -> tuple[str, ...]:
        """The choices that were made where the paper is silent."""
        return self.paper.choices + self.table.choices

    def seeds(self, scale: Scale) -> int:
        """Return the number of seeds of a scale."""
        return self.table.seeds if scale == "full" else self.paper.small.seeds

    def baseline_of(self, row: str) -> str | None:
        """Name the row that a row's gain is over: without its wrapper, as MOON for MOON+DW, or else the plain row (the
        table's `baseline`, FedAvg, or local training). None for the plain row itself."""
        # reversed, because the first row of a method is the printed one, and variants follow
        by_method = {keys["method"]: name for name, keys in reversed(self.rows.items())}
        plain = self.table.baseline or by_method.get("fedavg") or by_method.get("local")
        unwrapped = self.rows.get(row, {"method": ""})["method"].rpartition("+")[0]
        baseline = by_method.get(unwrapped, plain)
        return None if baseline == row else baseline

    def claimed_gain(self, printed: PrintedValue) -> float | None:
        """Return the printed gain of the paper's own method over its plain row in the column of `printed`, if any."""
        key = printed.column, printed.domain, printed.metric
        by_row = {v.method: v.value for v in self.values if (v.column, v.domain, v.metric) == key}
        # Papers print the whole method last, below its ablations.
        for row in reversed(by_row):
            baseline = self.baseline_of(row) if self.is_own(row) else None
            ours, plain = by_row[row], by_row.get(baseline or "")
            if ours is not None and plain is not None:
                return ours - plain
        return None

    def column(self, printed: str) -> str | None:
        """Name the setting of the study for a printed column."""
        return next((name for name, keys in self.table.columns.items() if keys.get("printed") == printed), None)

    def scale_text(self, scale: Scale) -> str:
        """Describe the scale in words."""
        if scale == "full":
            return "the paper's own setting"
        small = self.paper.small
        notes = (text for row, text in small.row_notes.items() if row in self.rows)
        return "; ".join([self.table.reduction or small.reduction, *notes])

    def changing(self, overrides: Sequence[str], scale: Scale = "full") -> list[str]:
        """Keep the `key=value` overrides that can change a number at this scale, as engines cannot."""
        # Comparing run folders builds a study, which is slow, so clear cases are decided first.
        keys = {override: override.partition("=")[0] for override in overrides}
        candidates = [o for o, key in keys.items() if changes_numbers(key) and not key.startswith("scenario.path")]
        folders = self._folders(scale) if candidates else set()
        return [override for override in candidates if self._folders(scale, override) != folders]

    def is_own(self, row: str) -> bool:
        """Whether a row is the paper's own method, a part of it, or another method with it."""
        run_row, _ = self.table.predictor_rows.get(row, (row, ""))
        paper = self.name.partition("/")[0]
        own_names = {paper, paper.removeprefix("fed")}  # a method, and a wrapper over others
        return not own_names.isdisjoint(self.rows.get(run_row, {"method": ""})["method"].split("+"))

    def study(
        self, scale: Scale = "full", seeds: int | None = None, keys: Mapping[str, Any] | None = None
    ) -> StudyPlan:
        """Make the study of the table.
        scale: "full" or "small". seeds: how many seeds, from 0 on (None: the recipe's number). keys: config keys on top
        of all cells. Raises `ConfigError` for a table in which nothing is run, for keys of no cell, and above 10,000
        seeds."""
        if self.table.why_not_run is not None:
            raise ConfigError(f"{self.name}: {self.table.why_not_run}")
        small, overrides = scale == "small", keys or {}
        for key in overrides.keys() & set(OF_STUDIES):
            raise ConfigError(f"{key} = {short_repr(overrides[key])}: a table has its own; see --seeds and --only")
        study = parse_study(
            {
                **(overlaid(self.paper.small.keys, self.table.small) if small else {}),
                "settings": {name: self._setting(name, small) for name in self.table.columns},
                "methods": {row: overlaid(row_keys, overrides) for row, row_keys in self.rows.items()},
                "seeds": seeds or self.seeds(scale),
            }
        )
        if point := next((cell.point for cell in study.cells if cell.point), None):
            raise ConfigError(f"{point}: a table takes one value of a key; `fedloom study` takes lists")
        return study

    def _folders(self, scale: Scale, *overrides: str) -> set[str] | None:
        """The run folders of the first seed, which identify configs; None if the overrides make no config."""
        try:
            # Overrides apply to all seeds, so the first seed shows their effect.
            return {cell.folder for cell in self.study(scale, seeds=1, keys=load(None, overrides)).cells}
        except ConfigError:
            return None

    def _setting(self, name: str, small: bool) -> Keys:
        column = self.table.columns[name]
        setting = {key: value for key, value in column.items() if key not in _COLUMN_KEYS}
        if not small:
            return setting
        setting = overlaid(setting, column.get("small", {}))
        patterns = {row: names for row, names in self.paper.small.left_out.items() if row in self.rows}
        left_out = [row for row, names in patterns.items() if any(fnmatchcase(name, pattern) for pattern in names)]
        return overlaid(setting, {"without": [*setting.get("without", []), *left_out]}) if left_out else setting


@cache
def recipes() -> dict[str, Recipe]:
    """Read all recipes, by name, paper by paper."""
    by_name: dict[str, Recipe] = {}
    for path in sorted((files("fedloom.papers") / "recipes").iterdir(), key=lambda path: path.name):
        if not path.name.endswith(".yaml"):
            continue
        paper = Paper(**parse_yaml(path.read_text(encoding="utf-8")))
        folder = path.name.removesuffix(".yaml")
        for table_name, table in (paper.tables | paper.figures).items():
            name = f"{folder}/{table_name}"
            by_name[name] = Recipe(name, paper, table)
    return by_name


def find_recipe(name: str) -> Recipe:
    """Return the recipe of this name. Raises `ConfigError` with the nearest name."""
    known_recipes = recipes()
    if name not in known_recipes:
        raise ConfigError(f"unknown table {short_repr(name)}: {suggest_name(name, known_recipes)}")
    return known_recipes[name]


def missing_sources(cells: Sequence[Cell]) -> dict[str, str]:
    """Find the sources whose files are missing; by source, which files it needs where, and where they come from."""
    scenarios = {(s.source, str(s.model_extra)): s for s in (cell.config.scenario for cell in cells)}
    errors: dict[str, dict[str, None]] = {}
    for scenario in scenarios.values():
        try:
            scenario.parts()[0].files()
        except DataError as error:
            errors.setdefault(scenario.source, {})[str(error)] = None
    return {name: "; ".join(messages) for name, messages in errors.items()}
