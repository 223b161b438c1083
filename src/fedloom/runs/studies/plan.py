"""Parses a study, one YAML with settings, methods, seeds and lists, into its cells."""

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from fedloom.core.errors import ConfigError, DataError, short_repr, suggest_name
from fedloom.core.files import read_yaml
from fedloom.core.text import BASELINE, MARGIN
from fedloom.data import SOURCES
from fedloom.data.newcomers import domain_names
from fedloom.data.sources.source import configure_source
from fedloom.methods import METHODS
from fedloom.runs.config.grid import grid_points
from fedloom.runs.config.keys import built, refuse_many
from fedloom.runs.config.kinds import put_over
from fedloom.runs.config.reference import find_config
from fedloom.runs.config.run_config import RunConfig, load
from fedloom.runs.storage.run_folder import folder_name
from fedloom.runs.storage.schemas import changes_numbers
from fedloom.runs.studies.search_space import OF_STUDIES, StudyKeys, UntilDecided, plain_space, tried_in


def without_each_domain(settings: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return each setting once for each domain of its source, which its runs hold out.

    Raises `ConfigError` for a setting that holds out something else, and for sources without two domains."""
    by_name: dict[str, dict[str, Any]] = {}
    for setting, keys in settings.items():
        scenario = keys.get("scenario", {})
        scenario = {"source": scenario} if isinstance(scenario, str) else dict(scenario)
        if scenario.get("held_out") is not None:
            raise ConfigError(
                f"leave_out = 'domain': scenario.held_out = {short_repr(scenario['held_out'])} holds out something "
                "else; leave it out"
            )
        for domain in _domains(scenario):
            name = ", ".join(filter(None, (setting, f"without {domain}")))
            by_name[name] = {**keys, "scenario": {**scenario, "held_out": {"domain": domain}}}
    return by_name


def _domains(scenario: Mapping[str, Any]) -> list[str]:
    """The domains of the source that a scenario names; data are read only where its keys do not name them."""
    name = scenario.get("source", "digits")
    if not isinstance(name, str):
        raise ConfigError(f"leave_out = 'domain': scenario.source = {short_repr(name)}; need one source")
    kind = SOURCES.get(name)
    try:
        source = configure_source(kind, **{key: value for key, value in scenario.items() if key in kind.model_fields})
        domains = list(source.named_domains())
        if not domains:
            splits = source.load()
            domains, tested = domain_names(splits.train), domain_names(splits.test)
            for missing, split in ((set(tested) - set(domains), "training"), (set(domains) - set(tested), "test")):
                if missing:
                    raise ConfigError(
                        f"leave_out = 'domain': {name} has no {split} samples of {', '.join(sorted(missing))}, so it "
                        "cannot be left out; take it out of the data"
                    )
    except DataError as error:
        raise ConfigError(f"leave_out = 'domain': {error}") from None
    if not domains:
        raise ConfigError(f"leave_out = 'domain': {name} has no domains; take a source that has, or leave it out")
    if len(domains) == 1:
        raise ConfigError(f"leave_out = 'domain': {domains[0]} is the only domain of {name}; nothing would train")
    return domains


_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Cell:
    """One run of a study, with its names there. `values`: its plain config, before tuning."""

    setting: str
    method: str  # the label of its row
    point: str  # the listed values that it has, "alpha=0.1"
    values: dict[str, Any] = field(repr=False)
    config: RunConfig = field(repr=False)

    @property
    def group(self) -> str:
        """The cell's name without the seed."""
        return "/".join(filter(None, (self.setting, self.method, self.point)))

    @property
    def row(self) -> tuple[str, str]:
        """The cell's setting, and its row there: method and listed values."""
        return self.setting, "/".join(filter(None, (self.method, self.point)))

    @property
    def name(self) -> str:
        """The cell's name: setting/method/listed values/seed."""
        return f"{self.group}/seed{self.config.seed}"

    @property
    def folder(self) -> str:
        """The name of the run folder. Cells with equal configs share it."""
        return folder_name(self.config)


@dataclass(frozen=True, slots=True)
class StudyPlan:
    """A parsed study.

    Attributes:
        tried: sets of values that methods try before the cells, with the keys of `trials`.
    """

    values: dict[str, Any]
    cells: list[Cell]
    tried: list[dict[str, Any]]
    trials: dict[str, Any]

    @property
    def hash(self) -> str:
        """Hash (16 hex digits) of everything in the study that can change a number."""
        return hashlib.sha256(json.dumps(relevant(self.values), sort_keys=True, default=str).encode()).hexdigest()[:16]

    @property
    def families(self) -> dict[str, str]:
        """The family of each row in comparisons, by the cells' name without the seed."""
        primary = self.values.get("primary", ())
        names = {True: "primary", False: "exploratory" if primary else ""}
        return {cell.group: names[cell.method in primary] for cell in self.cells}

    @property
    def looks(self) -> dict[int, float]:
        """The numbers of seeds at which rows are judged, each with its alpha; empty if the seeds are fixed."""
        seeds = self.values.get("seeds")
        return UntilDecided(**seeds).looks if isinstance(seeds, dict) else {}

    def numbered(self) -> dict[str, int]:
        """Return the position of each cell, by name, among the seeds of its row."""
        firsts = {cell.group: cell.config.seed for cell in reversed(self.cells)}
        return {cell.name: cell.config.seed - firsts[cell.group] for cell in self.cells}

    def holds(self, subset: "StudyPlan") -> bool:
        """Whether all cells of another study are cells of this one, tuned in the same way."""
        # a grown study keeps its finished cells only if their tuning would choose the same values
        same = (self.tried, self.trials) == (subset.tried, subset.trials)
        if self.tried and "seed" not in self.trials:  # trials use the first seed, which must not change
            mine = self._first
            same = same and all(mine.get(group) == folder for group, folder in subset._first.items())
        return same and {cell.folder for cell in subset.cells} <= {cell.folder for cell in self.cells}

    @property
    def _first(self) -> dict[str, str]:
        return {cell.group: cell.folder for cell in reversed(self.cells)}  # the first of a group stays

    def chosen(self, patterns: Sequence[str] = ()) -> list[Cell]:
        """Return the cells whose names match one of `patterns` (`*` and `?` as in a shell); all cells without patterns.

        Raises `ConfigError` for a pattern that matches no cell."""
        for pattern in patterns:
            if not any(_fits(cell, pattern) for cell in self.cells):
                names = {name for cell in self.cells for name in (cell.setting, cell.method, cell.point) if name}
                hint = suggest_name(next((part for part in pattern.split("/") if part not in names), ""), names)
                like = short_repr(self.cells[0].name)
                raise ConfigError(f"--only {short_repr(pattern)} fits no cell of the study (such as {like}): {hint}")
        return [cell for cell in self.cells if not patterns or any(_fits(cell, pattern) for pattern in patterns)]


def read_study(path: Path, overrides: Sequence[str] = ()) -> StudyPlan:
    """Read a study from a YAML file, with `key=value` words on top. Raises `ConfigError` for an invalid file."""
    if not path.is_file() and (ready_config := find_config(path)) != path:
        path = ready_config
    elif not isinstance(read_yaml(path), dict):
        raise ConfigError(f"{path}: a study is a mapping of keys to values")
    values = load(path, overrides)
    if not values.get("methods", True):  # the study.yaml of a study without the key has an empty list
        raise ConfigError(f"methods = {values['methods']!r}: need one; leave methods out for the config's own")
    return parse_study(values, path.parent)


def parse_study(values: Mapping[str, Any], folder: Path = Path()) -> StudyPlan:
    """Make a study from plain values. Configs that it names are searched in `folder`, then among the ready ones.

    Raises `ConfigError` for the first mistake in any cell."""
    keys = built(StudyKeys, {key: value for key, value in values.items() if key in OF_STUDIES}, "")
    shared = {key: value for key, value in values.items() if key not in OF_STUDIES}
    for key in [key for key in shared if key not in RunConfig.model_fields and key not in METHODS]:
        if (hint := suggest_name(key, OF_STUDIES, "study key")).startswith("did"):
            raise ConfigError(f"unknown key {short_repr(key)}: {hint}")
    settings = {name: _setting(keys, shared, block, folder) for name, block in keys.settings.items()}
    if keys.leave_out is not None:
        settings = without_each_domain(settings)
    cells: list[Cell] = []
    for name, block in settings.items():
        cells += _cells(keys, name, block)
        refuse_many("the settings, methods, listed values and seeds", [len(cells)])
    if not cells:
        why = "no cell is left; need a setting that does not leave out all methods"
        raise ConfigError(f"settings = {short_repr(list(settings))}: {why}")
    _refuse_namesakes(cells)
    for name in keys.primary:  # only now, because an unknown key is the likelier mistake
        if name not in keys.methods:
            raise ConfigError(f"primary = {name!r}: no method of the study; {suggest_name(name, [*keys.methods])}")
    complete: dict[str, Any] = {"settings": settings, "methods": dict(keys.methods)}
    complete |= {"primary": list(keys.primary)} if keys.primary else {}
    complete |= {"margin": keys.margin} if keys.margin != MARGIN else {}
    match keys.seeds:
        case UntilDecided() as adding:
            complete["seeds"] = adding.model_dump()
            compared = {cell.setting for cell in cells if cell.config.method == BASELINE}
            if alone := [cell.setting for cell in cells if cell.setting not in compared]:
                setting = f" in the setting {alone[0]}" if alone[0] else ""
                why = f"rows are compared with {BASELINE}, which is not among the methods{setting}; add it"
                raise ConfigError(f"seeds = {short_repr(complete['seeds'])}: {why}, or give a number of seeds")
        case tuple() | int() as seeds:
            complete["seeds"] = seeds if isinstance(seeds, int) else list(seeds)
    tuning = {"tune": plain_space(keys.tune), "tries": keys.tries, "trials": dict(keys.trials)}
    complete |= {key: value for key, value in tuning.items() if value}
    tried = tried_in(keys.tune, keys.tries)
    refuse_many("the trials of tuning", [len({cell.group for cell in cells}), len(tried)])
    return StudyPlan(complete, cells, tried, keys.trials)


def relevant(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a study's values without the keys that cannot change a number."""
    blocks = {
        kind: {
            name: {key: value for key, value in block.items() if changes_numbers(key)}
            for name, block in values.get(kind, {}).items()
        }
        for kind in ("settings", "methods")
    }
    return {key: value for key, value in values.items() if key not in ("primary", "margin")} | blocks


def nested(key: str, value: Any) -> dict[str, Any]:
    """Return a value at a dotted key as nested sections."""
    for part in reversed(key.split(".")):
        value = {part: value}
    return dict(value)


def _setting(keys: StudyKeys, shared: Mapping[str, Any], block: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return all keys of a setting: those of its config, those that all cells share, and its own."""
    setting_keys = {key: value for key, value in block.items() if key != "config"}
    named = block.get("config", keys.config)
    if named is None:
        return _over(shared, setting_keys)
    if not isinstance(named, str):
        raise ConfigError(f"config = {short_repr(named)}: need a YAML file, or the name of a ready config")
    path = folder / named
    return _over(_over(load(path if path.is_file() else find_config(Path(named))), shared), setting_keys)


def _over(values: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Put keys over a config as `put_over` does; one warning says which keys of the config are dropped."""
    joined, phrases = put_over(values, over)
    if phrases:
        _log.warning("note: %s", "; ".join(phrases))
    return joined


def _cells(keys: StudyKeys, name: str, block: Mapping[str, Any]) -> list[Cell]:
    cells = []
    seeds = keys.seeds.most if isinstance(keys.seeds, UntilDecided) else keys.seeds
    left_out, labels = block.get("without", []), list(keys.methods)
    if not isinstance(left_out, list) or not all(label in labels for label in left_out):
        raise ConfigError(f"without = {short_repr(left_out)}: need a list of methods of the study")
    plain = {key: value for key, value in block.items() if key != "without"}
    for label, method_keys in (keys.methods or {"": {}}).items():
        if label in left_out:
            continue
        if label and isinstance(method_keys.get("method"), list):
            names = short_repr(method_keys["method"])
            raise ConfigError(f"methods.{label}.method = {names}: a label names one method; give each method a label")
        values = _over(plain, method_keys)
        method = method_keys.get("method", label) if label else values.get("method", "fedavg")
        methods = None if isinstance(method, list) else [method]
        for point in grid_points({**values, "method": method}, methods, seeds):
            listed_values = ",".join(f"{key.rpartition('.')[2]}={value}" for key, value in point.chosen.items())
            cells.append(Cell(name, label or point.config.method, listed_values, point.values, point.config))
    return cells


def _refuse_namesakes(cells: Sequence[Cell]) -> None:
    """Raise `ConfigError` if cells of different configs have one name, which tuning, display and tables rely on."""
    cells_by_name: dict[str, Cell] = {}
    for cell in cells:
        namesake = cells_by_name.setdefault(cell.name, cell)
        if namesake is not cell and namesake.folder != cell.folder:
            raise ConfigError(
                f"{cell.name}: two different cells have this name; settings, methods and lists must give each cell "
                "another one"
            )


def _fits(cell: Cell, pattern: str) -> bool:
    """Whether a pattern matches the name of a cell, or consecutive parts of it."""
    plain = pattern.replace("[", "[[]")  # a bracket is part of a name: FedDW [authors]
    return any(fnmatchcase(cell.name, shape) for shape in (plain, f"{plain}/*", f"*/{plain}", f"*/{plain}/*"))
