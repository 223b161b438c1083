"""The description of a run: one typed config behind every door (YAML file, `key=value`, Python)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import Any, Literal, get_args

import torch
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fedloom.core.errors import ConfigError, nearest
from fedloom.core.streams import Streams
from fedloom.data import PARTITIONS, SKEWS, SOURCES, OwnSplit, Scenario, make_scenario
from fedloom.data.augment import Augmentation
from fedloom.data.partitions.partition import Partition
from fedloom.data.skews.skew import Skew
from fedloom.data.sources.source import Source, Splits
from fedloom.engine.batched import WIDTH
from fedloom.engine.choose import EngineChoice
from fedloom.evaluation import EpisodeShape
from fedloom.methods import METHODS, Method
from fedloom.methods.method import PRESETS, Spec
from fedloom.methods.phases import OptimizerSpec
from fedloom.nets import MODELS
from fedloom.nets.blueprint import Blueprint
from fedloom.nets.groups import GROUPS

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
    `also`: other predictors of the method to test in the same way, e.g. Fed-CO2's online and offline. `ways`, `shots`,
    `queries` and `episodes` are for the protocol few-shot alone.
    """

    protocol: Literal["global/global", "global/local", "personal/global", "personal/local", "few-shot"] = (
        "global/global"
    )
    select: Literal["last", "best_val", "best_test", "mean_last_k"] = "last"
    every: int = Field(1, ge=1)
    last_k: int = Field(10, ge=1)
    also: tuple[str, ...] = ()
    ways: int = Field(5, ge=2)
    shots: int = Field(5, ge=1)
    queries: int = Field(15, ge=1)
    episodes: int = Field(600, ge=2)

    @model_validator(mode="after")
    def _no_validation_episodes(self) -> EvaluationConfig:
        if self.protocol == "few-shot" and self.also:
            raise ConfigError(f"evaluation.also = {list(self.also)}: few-shot tests the server's features alone")
        if self.protocol == "few-shot" and self.select == "best_val":
            raise ConfigError(
                "evaluation.select = 'best_val': few-shot tests one set of classes and has no validation split; use "
                "last, or tune on a source's validation classes (fc100: scenario.novel=val)"
            )
        return self

    def episode_shape(self) -> EpisodeShape:
        return EpisodeShape(self.ways, self.shots, self.queries, self.episodes)


class ModelConfig(BaseModel):
    """A model with options of its own: `{name: mlp, hidden: [100]}`."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str


class AugmentConfig(_Section):
    """What happens to training images: see `fedloom.data.augment.Augmentation`. Nothing unless asked for."""

    crop: int = Field(0, ge=0)
    flip: bool = False
    rotate: float = Field(0.0, ge=0, le=180, allow_inf_nan=False)
    per: Literal["sample", "batch"] = "sample"
    fill: Literal["black", "mean"] = "black"

    def spec(self) -> Augmentation:
        return Augmentation(self.crop, self.flip, self.rotate, self.per, self.fill)


class CheckpointConfig(_Section):
    """A checkpoint is written when `seconds` have passed since the last one, and at the end; `keep` are kept."""

    seconds: float = Field(5.0, ge=0)
    keep: int = Field(2, ge=1)


class EngineConfig(_Section):
    """What runs the clients, e.g. `engine: serial` or `{name: processes, workers: 8}`.

    name: serial; processes, with the same bits; batched, stacks of `stack` clients in each process, whose numbers agree
    to about 1e-5; or auto, the fastest of them in a trial. same_bits: auto leaves out batched, so that numbers do not
    depend on the machine's speed. workers: processes (one per core). client_seconds: longest time for one client, with
    more than one process (no limit). state_budget_mb: MiB of client states that stay in memory, the others go to disk
    (no limit). device: where clients are trained and tested: cpu, cuda or cuda:1; without processes on cuda.
    """

    name: Literal["auto", "serial", "processes", "batched"] = "auto"
    same_bits: bool = True
    workers: int | None = Field(None, ge=1)
    stack: int = Field(WIDTH, ge=2)
    client_seconds: float | None = Field(None, gt=0, allow_inf_nan=False)
    state_budget_mb: float | None = Field(None, gt=0, allow_inf_nan=False)
    device: str = Field("cpu", pattern=r"^(cpu|cuda(:\d+)?)$")

    @model_validator(mode="before")
    @classmethod
    def _by_name(cls, given: Any) -> Any:
        return {"name": given} if isinstance(given, str) else given

    def choice(self) -> EngineChoice:
        return EngineChoice(self.name, self.workers, self.client_seconds, self.stack, self.same_bits)

    def torch_device(self) -> torch.device:
        """The device. Raises `ConfigError` if it is not there, or if processes are to share it."""
        device = torch.device(self.device)
        if device.type == "cuda":
            found = torch.cuda.device_count()
            if (device.index or 0) >= found:
                raise ConfigError(
                    f"engine.device = '{self.device}': torch {torch.__version__} finds {found} CUDA devices here; use "
                    "cpu" + (f", or cuda:0 to cuda:{found - 1}" if found else "")
                )
            if self.name == "processes":
                raise ConfigError(
                    f"engine = processes on '{self.device}': processes do not help clients that share a device; use "
                    "serial, batched or auto"
                )
        return device

    def state_budget(self) -> int | None:
        """In bytes."""
        return None if self.state_budget_mb is None else int(self.state_budget_mb * 2**20)


class SplitConfig(_Section):
    """Every client's samples in these proportions: see `fedloom.data.OwnSplit`."""

    train: float = Field(gt=0, allow_inf_nan=False)
    val: float = Field(0.0, ge=0, allow_inf_nan=False)
    test: float = Field(gt=0, allow_inf_nan=False)
    pool: Literal["train", "all"] = "train"


class ScenarioConfig(BaseModel):
    """Who holds what. Beside these keys it takes those of the chosen source and partition (e.g. `alpha`, `path`).

    `val`: share of each client's training samples held out; `split` replaces it, and tests each client on samples of
    its own. `tests`: how test views match their client (`fedloom.data.assemble`). `skews`: a list of skews, each
    `{name: ..., its keys}`, in this order.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    source: str = "digits"
    partition: str = "dirichlet"
    clients: int = Field(10, ge=1)
    val: float = Field(0.1, ge=0, lt=1)
    split: SplitConfig | None = None
    tests: Literal["shares", "matched"] = "shares"
    skews: tuple[dict[str, Any], ...] = ()
    seed: int | None = None

    @model_validator(mode="after")
    def _route(self) -> ScenarioConfig:
        self.parts()
        self.build_skews()
        if self.split is not None and "val" in self.model_fields_set:
            raise ConfigError("scenario.val: split states the validation share too; leave val out")
        if self.split is not None and self.tests == "matched":
            raise ConfigError("scenario.tests = 'matched': with split, clients are tested on samples of their own")
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

    def build_skews(self) -> list[Skew]:
        """The skews with their keys. Raises `ConfigError` for unknown names and keys."""
        made = []
        for place, given in enumerate(self.skews):
            keys = {str(key): value for key, value in given.items() if key != "name"}
            if not isinstance(given.get("name"), str):
                raise ConfigError(f"scenario.skews[{place}]: need a name; known: {', '.join(SKEWS.names())}")
            kind = SKEWS.get(given["name"])
            try:
                made.append(kind(**keys))
            except ValidationError as error:
                raise ConfigError(explain(error, f"scenario.skews[{place}].", kind)) from None
        return made

    def resolved(self) -> dict[str, Any]:
        """All keys with their values, those of source, partition and skews included."""
        source, partition = self.parts()
        own = {name: getattr(self, name) for name in type(self).model_fields}
        own["skews"] = [{"name": skew.kind} | skew.model_dump(mode="json") for skew in self.build_skews()]
        if self.split is not None:
            own["split"] = self.split.model_dump(mode="json")
            del own["val"]
        return own | source.model_dump(mode="json") | partition.model_dump(mode="json")

    def build(self, run_seed: int, splits: Splits | None = None) -> Scenario:
        """Load the source (or take `splits`) and deal it; `seed` None takes the run's."""
        source, partition = self.parts()
        return make_scenario(
            self.source,
            source.load() if splits is None else splits,
            partition,
            clients=self.clients,
            val=self.val,
            streams=Streams(run_seed if self.seed is None else self.seed),
            split=None if self.split is None else OwnSplit(**self.split.model_dump()),
            tests=self.tests,
            skews=self.build_skews(),
        )


class RunConfig(_Section):
    """One run. A section named after a method (`fedsc: {tau: 0.1}`) holds options that override its preset.

    `model`: a model, a group of models (`fedssa-cnn`), or a list; of several, client k gets number k mod their count.
    """

    method: str = "fedavg"
    preset: Literal["paper", "authors", "sound"] = "sound"
    model: str | ModelConfig | tuple[str | ModelConfig, ...] | None = Field(None, union_mode="left_to_right")
    scenario: ScenarioConfig
    rounds: int = Field(30, ge=1)
    participation: float = Field(1.0, gt=0, le=1)
    local_epochs: int = Field(2, ge=1)
    batch_size: int = Field(32, ge=1)
    optimizer: OptimizerConfig = OptimizerConfig()
    augment: AugmentConfig = AugmentConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    seed: int = Field(0, ge=0, lt=2**63)
    engine: EngineConfig = EngineConfig()
    options: dict[str, dict[str, Any]] = Field(default_factory=dict)

    def build_method(self) -> Method:
        """The method with its preset and the options of its section."""
        return METHODS.get(self.method).configured(self.preset, self.options.get(self.method, {}))

    def models(self) -> list[tuple[str, dict[str, Any]]]:
        """Name and own options (e.g. `hidden` of `mlp`) of the models: one, or several for groups of clients."""
        given = SOURCES.get(self.scenario.source).model if self.model is None else self.model
        each = given if isinstance(given, tuple) else (given,)
        found: list[tuple[str, dict[str, Any]]] = []
        for one in each:
            if isinstance(one, ModelConfig):
                found.append((one.name, dict(one.model_extra or {})))
            else:
                found += [(name, {}) for name in GROUPS.get(one, (one,))]
        return found

    def model_name(self) -> str:
        """What the model is called in tables: its name, or those of the group's."""
        return self.model if isinstance(self.model, str) else ", ".join(name for name, _ in self.models())

    def blueprints(self, input_shape: tuple[int, ...], num_classes: int, spec: Spec) -> list[Blueprint]:
        """How to build the nets, one for each model, as a method with `spec` wants them."""
        return [
            Blueprint(name, input_shape, num_classes, options, spec.head_bias, spec.nets)
            for name, options in self.models()
        ]

    def resolved(self) -> dict[str, Any]:
        """Everything that defines the run, defaults and preset spelled out: plain YAML values."""
        plain = self.model_dump(mode="json", exclude={"options", "scenario"})
        named = [{"name": name, **options} if options else name for name, options in self.models()]
        plain["model"] = named if len(named) > 1 else named[0]
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
    if not config.models():
        raise ConfigError("model = []: need a model, a group of models, or a list with one or more")
    for model, own in config.models():
        if model not in MODELS:
            raise ConfigError(f"unknown model '{model}': {nearest(model, {*MODELS.names(), *GROUPS})}")
        known = signature(MODELS.get(model)).parameters.keys() - {"input_shape", "num_classes"}
        for key in own:
            if key not in known:
                raise ConfigError(f"unknown key 'model.{key}' of {model}: {nearest(key, known)}")
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
        sections = [a for a in (annotation, *get_args(annotation)) if isinstance(a, type) and issubclass(a, BaseModel)]
        if not sections:
            return set()
        model = sections[0]
    return set(model.model_fields)
