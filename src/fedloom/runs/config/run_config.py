"""The config of a run. YAML files, words `key=value` and Python calls all end in one `RunConfig`."""

import copy
import functools
import hashlib
import json
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

import yaml
from pydantic import Field, ValidationError, field_validator, model_validator

from fedloom.core import plugins
from fedloom.core.errors import ConfigError, UnknownKeyError, short_repr
from fedloom.core.files import one_line, parse_yaml, read_yaml
from fedloom.data import SOURCES
from fedloom.data.augment import Augmentation
from fedloom.engine.choose import EngineChoice
from fedloom.engine.clock import Devices
from fedloom.engine.jobs import extra_of
from fedloom.methods import METHODS, Method, OptimizerSpec
from fedloom.nets.blueprint import Blueprint
from fedloom.runs.config import keys as checks
from fedloom.runs.config import sections
from fedloom.runs.config.keys import ModelConfig, model_configs
from fedloom.runs.config.kinds import at, drop_keys_of_former_kinds, is_dropped_by_null
from fedloom.runs.config.scenario_config import ScenarioConfig
from fedloom.runs.config.sections import Section
from fedloom.runs.storage.schemas import changes_numbers

_log = logging.getLogger(__name__)  # without configured handlers, a warning is one line on stderr
# Sections that may be given as a word, their `name`.
_NAMED_SECTIONS = ("engine", "model", "optimizer", "attack")
_LIMIT = 2**31  # rounds are stored as 32-bit integers; more passes or larger batches are slips of the pen


# The local optimiser unless a config says otherwise, key by key.
_OPTIMIZER: dict[str, Any] = {"lr": 0.05, "momentum": 0.9}
_LR_OF_ADAM = 0.001  # Kingma & Ba 2015
# Keys that runs of earlier versions do not know, by section. At their defaults they are left out of the resolved
# config, and so of the fingerprint: folders of those versions resume.
_LATER_KEYS = {
    "optimizer": ("betas", "eps", "decay"),
    "": ("early_stopping", "drift", "flower", "share", "plugins", "devices"),
    "checkpoint": ("keep_clients", "keep_clients_mib", "predictions"),
    "evaluation": ("metrics", "protocols", "scores_mib", "select_by", "decision", "intervals"),
}


class RunConfig(Section):
    """One run. A section named after a method (`fedsc: {tau: 0.1}`) holds options that override its preset."""

    method: str = Field("fedavg", examples=["fedsc", "fedprox+dw"])
    preset: str = "sound"
    model: str | ModelConfig | tuple[str | ModelConfig, ...] | None = Field(
        None, union_mode="left_to_right", examples=["mlp", {"name": "mlp", "hidden": [100]}]
    )
    share: Literal["all", "trainable"] = "all"
    scenario: ScenarioConfig = Field(description="Section of the data and their partition.")
    rounds: int = Field(30, ge=1, lt=_LIMIT, description="Number of rounds of communication.")
    participation: float = Field(1.0, gt=0, le=1)
    local_epochs: int = Field(2, ge=1, lt=_LIMIT)
    batch_size: int = Field(32, ge=1, lt=_LIMIT, description="Number of samples in a batch of local training.")
    optimizer: OptimizerSpec = Field(OptimizerSpec(**_OPTIMIZER))
    augment: Augmentation = Field(Augmentation(), description="Section of random changes of training images.")
    precision: Literal["float32", "tf32", "bfloat16"] = "float32"
    evaluation: sections.EvaluationConfig = Field(sections.EvaluationConfig())
    early_stopping: sections.EarlyStoppingConfig | None = None
    drift: sections.DriftConfig | None = Field(None, examples=[{"decompose_every": 5}])
    devices: Devices | None = Field(None, examples=[{"slow_share": 0.3}])
    checkpoint: sections.CheckpointConfig = Field(sections.CheckpointConfig(), description="Section of checkpoints.")
    seed: int = Field(0, ge=0, lt=2**63, description="Seed of everything random in the run.")
    engine: EngineChoice = Field(EngineChoice())
    flower: sections.FlowerConfig = Field(sections.FlowerConfig(), description="Section of a federation over Flower.")
    plugins: dict[str, str] = Field({})
    options: dict[str, dict[str, Any]] = Field(default_factory=dict, examples=[{"fedsc": {"tau": 0.1}}])

    @field_validator("model", mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        for entry in value if isinstance(value, list | tuple) else [value]:
            is_section = isinstance(entry, Mapping) and all(isinstance(key, str) for key in entry)
            if not (
                entry is None
                or isinstance(entry, str | ModelConfig)
                or (is_section and isinstance(entry.get("name"), str))
            ):
                problem = "need a name, {name: mlp, its keys}, or a list of these"
                raise ConfigError(f"model = {short_repr(entry)}: {problem}")
        return value

    @field_validator("optimizer", mode="before")
    @classmethod
    def _optimizer(cls, value: Any) -> Any:
        value = {"name": value} if isinstance(value, str) else value
        if isinstance(value, Mapping) and value.get("name") == "adam" and "lr" not in value:
            _note_rate_of_adam()
            value = {"lr": _LR_OF_ADAM, **value}
        return {**_OPTIMIZER, **value} if isinstance(value, Mapping) else value

    @field_validator("optimizer")
    @classmethod
    def _moving(cls, optimizer: OptimizerSpec) -> OptimizerSpec:
        """Refuse what only a phase of a method may have: a rate of 0."""
        if not optimizer.lr:
            raise ConfigError("optimizer.lr = 0: input should be greater than 0: nothing would be trained")
        return optimizer

    @field_validator("drift", "devices", mode="before")
    @classmethod
    def _by_word(cls, value: Any) -> Any:
        return ({} if value else None) if isinstance(value, bool) else value

    @model_validator(mode="after")
    def _kept_rounds_exist(self) -> Self:
        if beyond := [round_ for round_ in self.checkpoint.keep_clients if round_ > self.rounds]:
            raise ConfigError(f"checkpoint.keep_clients = {beyond}: the run has {self.rounds} rounds")
        return self

    @model_validator(mode="after")
    def _imputes_within_budget(self) -> Self:
        keys = self.scenario.model_extra or {}
        if "dp" in self.method.split("+") and (keys.get("incomplete") == "impute" or keys.get("impute") is not None):
            raise ConfigError("scenario.impute: values over training rows are outside the budget of +dp; drop the rows")
        return self

    def build_method(self) -> Method:
        """Build the method with its preset and the options of its section."""
        return METHODS.get(self.method).configured(self.preset, self.options.get(self.method, {}))

    def models(self) -> list[ModelConfig]:
        """Return the models: one, or several for groups of clients. Without a model, the source's usual one."""
        return model_configs(SOURCES.get(self.scenario.source).model if self.model is None else self.model)

    def model_name(self) -> str:
        """Return the title of the model in tables: its name, or the names of a group, separated by commas."""
        return self.model if isinstance(self.model, str) else ", ".join(model.title for model in self.models())

    def blueprints(self, input_shape: tuple[int, ...], num_classes: int, method: Method) -> list[Blueprint]:
        """Return a blueprint for each model of the run, for samples of `input_shape`, as the `method` needs them."""
        spec = method.spec
        extra = functools.partial(extra_of, method)
        needs: Any = {"head_bias": spec.head_bias, "nets": spec.nets, "extra": extra, "share": self.share}
        return [
            Blueprint(model.title, input_shape, num_classes, model.options(), factory=model.factory, **needs)
            for model in self.models()
        ]

    def resolved(self) -> dict[str, Any]:
        """Return all settings of the run as plain YAML values, defaults and preset spelled out."""
        plain = self.model_dump(mode="json", exclude={"options", "scenario"})
        for section, keys in _LATER_KEYS.items():
            part, values = (getattr(self, section), plain[section]) if section else (self, plain)
            for key in keys:
                if getattr(part, key) == checks.fields_of(type(part))[key].default:
                    del values[key]
        models = [fields if len(fields := model.model_dump()) > 1 else model.name for model in self.models()]
        plain["model"] = models if len(models) > 1 else models[0]
        plain["scenario"] = self.scenario.resolved()
        given = self.scenario.source == "given"  # such a scenario may hold clients out itself
        if self.scenario.held_out is None and (not given or self.evaluation.newcomers == sections.NewcomersConfig()):
            del plain["evaluation"]["newcomers"]

        plain[self.method] = self.build_method().options.resolved()
        return plain

    @property
    def keeps_scores(self) -> bool:
        """Whether tests keep the scores of single samples."""
        return self.evaluation.intervals is not None or self.checkpoint.predictions

    def fingerprint(self) -> str:
        """Return a hash (16 hex digits) of every setting that can change a result."""
        # engine, checkpoints and Flower's waiting times change no number, so a run may resume with others
        relevant = {key: value for key, value in self.resolved().items() if changes_numbers(key)}
        relevant["scenario"] = self.scenario.for_fingerprint()
        return hashlib.sha256(json.dumps(relevant, sort_keys=True).encode()).hexdigest()[:16]


@functools.cache  # once, since a study parses a config for each cell
def _note_rate_of_adam() -> None:
    _log.warning(
        "note: optimizer adam comes with lr %g; earlier versions took the %g of sgd, and optimizer.lr=%g repeats them",
        *(_LR_OF_ADAM, _OPTIMIZER["lr"], _OPTIMIZER["lr"]),
    )


def parse(values: Mapping[str, Any]) -> RunConfig:
    """Check plain values and return the config. Raises `ConfigError`, in one line, for the first that is wrong."""
    try:
        return _parsed(values)
    except UnknownKeyError as error:
        method = str(values.get("method", ""))
        raise checks.with_hint_across_sections(error, checks.sections_by_key(RunConfig, method), method) from None


def _parsed(values: Mapping[str, Any]) -> RunConfig:
    plain = _with_preset_settings(values)
    plugins.require_loaded(plain.get("plugins"))
    options = plain.pop("options", {})
    if not isinstance(options, Mapping):
        raise ConfigError(f"options = {short_repr(options)}: need {{method: {{key: value}}}}")
    options = dict(options)
    for key in [k for k in plain if k not in RunConfig.model_fields and k in METHODS]:
        options[key] = plain.pop(key)
        if not isinstance(options[key], Mapping):
            problem = "the section of a method holds its options, as {key: value}"
            raise ConfigError(f"{key} = {short_repr(options[key])}: {problem}")
    try:
        config = RunConfig(**plain, options=options)
    except ValidationError as error:
        raise checks.explain_validation_error(error, "", RunConfig, METHODS.names()) from None
    except TypeError:
        raise ConfigError(f"config keys must be words, got {short_repr(sorted(map(str, plain)))}") from None
    if not config.models():
        raise ConfigError("model = []: need a model, a group of models, or a list with one or more")
    for model in config.models():
        model.check()
    config.build_method()
    checks.refuse_absurd(config.model_dump(exclude={"model", "options"}) | options)
    for name, section in options.items():
        kind = METHODS.get(name)
        # A method that lacks the preset is asked with its first.
        preset = config.preset if config.preset in kind.presets else next(iter(kind.presets), config.preset)
        configured = kind.configured(preset, section)
        checks.refuse_booleans(section, configured.options.model_dump(), name)
    read = config.model_dump(exclude={"model", "options", "scenario"})
    checks.refuse_booleans(plain, read | {"scenario": config.scenario.resolved()})
    return config


def _with_preset_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Put the values over the settings of the method's preset (`Method.settings`); sections are joined key by key."""
    method, preset = (values.get(key, RunConfig.model_fields[key].default) for key in ("method", "preset"))
    is_method = isinstance(method, str) and isinstance(preset, str) and method in METHODS
    joined = dict(METHODS.get(method).settings.get(preset, {})) if is_method else {}
    for key, value in values.items():
        are_sections = isinstance(value, Mapping) and isinstance(joined.get(key), Mapping)
        joined[key] = {**joined[key], **value} if are_sections else value
    return joined


def note_unused_options(
    keys: Iterable[str], methods: Collection[str], say: Callable[[str], object] = _log.warning
) -> None:
    """Note the dotted keys that are options of other methods than those that run."""
    section_by_key = {key: key.removeprefix("options.").partition(".")[0] for key in keys}
    running = {*RunConfig.model_fields, *methods}
    unused = [key for key, section in section_by_key.items() if section not in running and section in METHODS]
    runs = f"methods that run: {', '.join(sorted(methods))}"
    if unused:
        say(f"note: without effect, since their method does not run: {', '.join(unused)}; {runs}")


def load(path: Path | None, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Read a YAML file, and change it by words `key=value`: dots lead into sections, or to an index of a list; values
    are YAML, and null drops a key that takes no null. Another kind (partition, source, model, optimiser, attack,
    method) drops the keys of the file that only the former kind knows, and one warning says which. Raises `ConfigError`
    for a file or a word that cannot be read."""
    values = {} if path is None else read_yaml(path) or {}
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: a config is a mapping of keys to values, this is a {type(values).__name__}")
    former, typed = copy.deepcopy(values), set[str]()
    for assignment in overrides:
        key, equals, text = assignment.partition("=")
        if not equals or not key:
            remedy = "write key=value, e.g. rounds=10 or scenario.alpha=0.5"
            if assignment.partition("+")[0] in METHODS:
                remedy = f"a method is method={assignment}, and for `fedloom compare` --methods {assignment}"
            raise ConfigError(f"{short_repr(assignment)} is no override; {remedy}")
        if not text.strip():  # an empty variable of a shell, as a rule
            raise ConfigError(f"{short_repr(assignment)}: the value is empty; write {key}=null to take the key out")
        try:
            value = parse_yaml(text)
        except yaml.YAMLError as error:
            raise ConfigError(f"{short_repr(assignment)}: the value is not YAML: {one_line(error)}") from None
        typed.add(key)
        if value is None and is_dropped_by_null(values, key.split(".")):
            section = at(values, key.split(".")[:-1])
            section.pop(key.rpartition(".")[2], None) if isinstance(section, dict) else None
        else:
            _set_value(values, key.split("."), value, assignment)
    phrases = drop_keys_of_former_kinds(former, values, typed)
    if phrases:
        _log.warning("note: %s", "; ".join(phrases))
    return plugins.with_plugins(values, Path() if path is None else path.parent)


def _set_value(values: dict[str, Any], path: Sequence[str], value: Any, assignment: str) -> None:
    """Set the value at `path`; sections that are missing are created."""
    container: Any = values
    for section, name in zip(path, [*path[1:], None], strict=True):
        index: Any = section
        if isinstance(container, list):
            if not section.isdecimal() or int(section) >= len(container):
                problem = f"'{section}' is no place in a list of {len(container)}; the first is 0"
                raise ConfigError(f"{short_repr(assignment)}: {problem}")
            index = int(section)
        elif not isinstance(container, dict):
            problem = f"{short_repr(container)} is a value, not a section with '{section}'"
            raise ConfigError(f"{short_repr(assignment)}: {problem}")
        if name is None:
            container[index] = value
            return
        inner = container.get(index) if isinstance(container, dict) else container[index]
        if isinstance(inner, str) and (index in _NAMED_SECTIONS or isinstance(container, list)):
            inner = {"name": inner}
        container[index] = {} if inner is None else inner
        container = container[index]
