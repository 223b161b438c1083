"""The description of a run: one typed config behind every door (YAML file, `key=value`, Python)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fedloom.core.errors import ConfigError, nearest
from fedloom.core.streams import Streams
from fedloom.data import PARTITIONS, SOURCES, Scenario, make_scenario
from fedloom.data.partitions.partition import Partition
from fedloom.data.sources.source import Source
from fedloom.methods import METHODS, Method
from fedloom.methods.method import PRESETS
from fedloom.methods.phases import OptimizerSpec
from fedloom.nets import MODELS

# Keys that change how a run is executed or kept, but none of its numbers.
_NOT_IN_FINGERPRINT = {"engine", "checkpoint"}


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class OptimizerConfig(_Section):
    """Local optimiser, made afresh each round. `lr` and `weight_decay` per step; `momentum` is for sgd."""

    name: Literal["sgd", "adam"] = "sgd"
    lr: float = Field(0.05, gt=0, allow_inf_nan=False)
    momentum: float = Field(0.9, ge=0, lt=1)
    weight_decay: float = Field(0.0, ge=0, allow_inf_nan=False)

    def spec(self) -> OptimizerSpec:
        return OptimizerSpec(self.name, self.lr, self.momentum, self.weight_decay)


class EvaluationConfig(_Section):
    """What is tested, when, and which round's accuracy counts.

    `select`: last; best_val (test accuracy at the round of best validation accuracy); best_test (the papers' habit:
    it looks at the test set); mean_last_k (mean over the last `last_k` evaluated rounds).
    """

    protocol: Literal["global/global", "global/local", "personal/global", "personal/local"] = "global/global"
    select: Literal["last", "best_val", "best_test", "mean_last_k"] = "last"
    every: int = Field(1, ge=1)
    last_k: int = Field(10, ge=1)


class CheckpointConfig(_Section):
    """A checkpoint is written when `seconds` have passed since the last one, and at the end; `keep` are kept."""

    seconds: float = Field(5.0, ge=0)
    keep: int = Field(2, ge=1)


class ScenarioConfig(BaseModel):
    """Who holds what. Beside these keys it takes those of the chosen source and partition (e.g. `alpha`, `path`)."""

    model_config = ConfigDict(extra="allow", frozen=True)

    source: str = "digits"
    partition: str = "dirichlet"
    clients: int = Field(10, ge=1)
    val: float = Field(0.1, ge=0, lt=1)
    seed: int | None = None

    @model_validator(mode="after")
    def _route(self) -> ScenarioConfig:
        self.parts()
        return self

    def parts(self) -> tuple[Source, Partition]:
        """The source and the partition with their own keys. Raises `ConfigError` for keys that neither knows."""
        source, partition = SOURCES.get(self.source), PARTITIONS.get(self.partition)
        extra = dict(self.model_extra or {})
        for key in extra:
            if key not in {*source.model_fields, *partition.model_fields}:
                known = {*type(self).model_fields, *source.model_fields, *partition.model_fields}
                raise ConfigError(f"unknown key 'scenario.{key}': {nearest(key, known)}")
        made = []
        for kind in (source, partition):
            keys = {key: value for key, value in extra.items() if key in kind.model_fields}
            try:
                made.append(kind(**keys))
            except ValidationError as error:
                raise ConfigError(explain(error, "scenario.", kind)) from None
        return made[0], made[1]  # type: ignore[return-value]

    def resolved(self) -> dict[str, Any]:
        """All keys with their values, those of source and partition included."""
        source, partition = self.parts()
        own = {name: getattr(self, name) for name in type(self).model_fields}
        return own | source.model_dump(mode="json") | partition.model_dump(mode="json")

    def build(self, run_seed: int) -> Scenario:
        """Load the source and deal it; `seed` None takes the run's."""
        source, partition = self.parts()
        streams = Streams(run_seed if self.seed is None else self.seed)
        return make_scenario(self.source, source.load(), partition, clients=self.clients, val=self.val, streams=streams)


class RunConfig(_Section):
    """One run. A section named after a method (`fedsc: {tau: 0.1}`) holds options that override its preset."""

    method: str = "fedavg"
    preset: Literal["paper", "authors", "sound"] = "sound"
    model: str | None = None
    scenario: ScenarioConfig
    rounds: int = Field(30, ge=1)
    participation: float = Field(1.0, gt=0, le=1)
    local_epochs: int = Field(2, ge=1)
    batch_size: int = Field(32, ge=1)
    optimizer: OptimizerConfig = OptimizerConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    seed: int = Field(0, ge=0, lt=2**63)
    engine: Literal["auto", "serial"] = "auto"
    options: dict[str, dict[str, Any]] = Field(default_factory=dict)

    def build_method(self) -> Method:
        """The method with its preset and the options of its section."""
        return METHODS.get(self.method).configured(self.preset, self.options.get(self.method, {}))

    def model_name(self) -> str:
        """The model, or the one that goes with the source."""
        return self.model or SOURCES.get(self.scenario.source).model

    def resolved(self) -> dict[str, Any]:
        """Everything that defines the run, defaults and preset spelled out: plain YAML values."""
        plain = self.model_dump(mode="json", exclude={"options", "scenario"})
        plain["model"] = self.model_name()
        plain["scenario"] = self.scenario.resolved()
        plain[self.method] = self.build_method().options.model_dump(mode="json")
        return plain

    def fingerprint(self) -> str:
        """Hash (16 hex digits) of every setting that can change a result."""
        relevant = {key: value for key, value in self.resolved().items() if key not in _NOT_IN_FINGERPRINT}
        return hashlib.sha256(json.dumps(relevant, sort_keys=True).encode()).hexdigest()[:16]


def parse(values: Mapping[str, Any]) -> RunConfig:
    """A checked config from plain values. Raises `ConfigError` with one line for the first thing that is wrong."""
    plain = dict(values)
    options = dict(plain.pop("options", {}))
    for key in [k for k in plain if k not in RunConfig.model_fields and k in METHODS]:
        options[key] = plain.pop(key)
        if not isinstance(options[key], Mapping):
            raise ConfigError(f"{key} = {options[key]!r}: the section of a method holds its options, as {{key: value}}")
    try:
        config = RunConfig(**plain, options=options)
    except ValidationError as error:
        raise ConfigError(explain(error, "", RunConfig)) from None
    except TypeError:
        raise ConfigError(f"config keys must be words, got {sorted(map(str, plain))}") from None
    if config.model_name() not in MODELS:
        MODELS.get(config.model_name())
    for name, section in options.items():
        METHODS.get(name).configured(config.preset if config.preset in PRESETS else "sound", section)
    config.build_method()
    return config


def load(path: Path | None, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Plain values of a YAML file with `key=value` words on top (dots go into sections, values are YAML)."""
    values: dict[str, Any] = {}
    if path is not None:
        try:
            values = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
        except FileNotFoundError:
            raise ConfigError(f"{path}: no such config file") from None
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise ConfigError(f"{path}: not readable as YAML: {' '.join(str(error).split())}") from None
        if not isinstance(values, dict):
            raise ConfigError(f"{path}: a config is a mapping of keys to values, this is a {type(values).__name__}")
    for word in overrides:
        key, equals, text = word.partition("=")
        if not equals or not key:
            raise ConfigError(f"'{word}' is no override; write key=value, e.g. rounds=10 or scenario.alpha=0.5")
        *sections, last = key.split(".")
        place = values
        for section in sections:
            place = place.setdefault(section, {})
            if not isinstance(place, dict):
                raise ConfigError(f"'{word}': {section} is a value, not a section")
        try:
            place[last] = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ConfigError(f"'{word}': the value is not YAML: {' '.join(str(error).split())}") from None
    return values


def explain(error: ValidationError, prefix: str, model: type[BaseModel]) -> str:
    """One line for the first problem pydantic found: the key, the value, why, and what is near."""
    first = error.errors()[0]
    location = [str(part) for part in first["loc"]]
    key = prefix + ".".join(location)
    if first["type"] == "extra_forbidden":
        known = _fields_at(model, location[:-1])
        if not prefix and len(location) == 1:
            known |= set(METHODS.names())
        return f"unknown key '{key}': {nearest(location[-1], known)}"
    if first["type"] == "missing":
        return f"{key} is missing: {model.__name__} needs it"
    return f"{key} = {first['input']!r}: {first['msg'][0].lower()}{first['msg'][1:]}"


def _fields_at(model: type[BaseModel], path: Sequence[str]) -> set[str]:
    for part in path:
        annotation = model.model_fields[part].annotation
        if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            return set()
        model = annotation
    return set(model.model_fields)
