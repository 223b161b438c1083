"""Checks of config keys: one line for each mistake, hints on misplaced keys, bounds, and no booleans for numbers; and
the key `model`: a registered model, a group of them, a list, or a model that came as a Python object."""

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Literal, TypeVar, get_args

import torch
from pydantic import BaseModel, Field, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from torch import nn

from fedloom.core.errors import ConfigError, UnknownKeyError, nearest_name, short_repr, suggest_name
from fedloom.core.key_models import Keys
from fedloom.core.registry import Registry
from fedloom.core.streams import Streams
from fedloom.core.synonyms import meant_by
from fedloom.core.text import lists_by_key
from fedloom.data import PARTITIONS, SOURCES
from fedloom.data.dataset import Dataset
from fedloom.methods import METHODS
from fedloom.nets import MODELS
from fedloom.nets.blocks import model_options
from fedloom.nets.loaded_net import MODEL_GROUPS
from fedloom.nets.net import Net
from fedloom.nets.probe import check_classifies, find_head
from fedloom.nets.user_model import UserModel, class_name, model_digest
from fedloom.runs.storage.schemas import leaves

T = TypeVar("T", bound=BaseModel)
# Replaces pydantic's message "Input should be a valid dictionary or instance of ...", which means nothing in YAML.
_SECTION = "a section holds keys with values, as {key: value} or key.name=value"
_UNION_MEMBER = re.compile(
    r"str|int|float|bool|ModelConfig|constrained-\w+|literal\[.*|(list|dict|tuple)\[.*|function-.*"
)
_MESSAGES = {
    "model_type": _SECTION,
    "dataclass_type": _SECTION,
    "dict_type": _SECTION,
    "tuple_type": "need a list, as [a, b]",
}


def explain_validation_error(
    error: ValidationError, section: str, model: type[Any], more_keys: Sequence[str] = ()
) -> ConfigError:
    """Return the first problem that pydantic found, when it built `model` for a dotted `section`, as a `ConfigError`.
    more_keys: further keys of the section, to suggest for a misspelt one."""
    first = error.errors()[0]
    is_unknown = first["type"] in ("extra_forbidden", "unexpected_keyword_argument")
    typed = first["loc"][-1:] if is_unknown else ()  # may have the name of a kind of value
    # pydantic puts the members of a union that it tried between the keys of its path
    path = map(str, first["loc"][: len(first["loc"]) - len(typed)])
    location = [*(part for part in path if not _UNION_MEMBER.fullmatch(part)), *map(str, typed)]
    key = ".".join([*filter(None, [section]), *location])
    if is_unknown:
        allowed = {*fields_at(model, location[:-1])}
        if len(location) == 1 and not nearest_name(location[-1], [*allowed]):
            allowed |= {nearest_name(location[-1], more_keys)} - {""}  # one alone: a list shows the section's keys
        return UnknownKeyError(key.rpartition(".")[0], location[-1], allowed)
    if first["type"] == "missing":
        return ConfigError(f"{key} is missing: {model.__name__} needs it")
    message = _MESSAGES.get(first["type"], f"{first['msg'][0].lower()}{first['msg'][1:]}")
    if first["type"] == "literal_error" and (hint := meant_by("value", str(first["input"]), key)):
        message = f"{hint} {message}" if hint.endswith("?") else hint
    elif first["type"] in ("int_type", "float_type", "string_type") and isinstance(first["input"], list | tuple):
        message = "need a single value; fl.compare and `fedloom compare` take lists of them"
    if first["type"] in ("too_short", "too_long"):  # pydantic names a Python type, and counts after a validation
        bound, limit = ("at least", "min_length") if first["type"] == "too_short" else ("at most", "max_length")
        count = first.get("ctx", {}).get(limit, 1)
        message = f"need {bound} {count:,} item{'' if count == 1 else 's'}"
    return ConfigError(f"{key} = {short_repr(first['input'])}: {message}")


def with_hint_across_sections(
    error: UnknownKeyError, sections: Mapping[str, Sequence[str]], method: str
) -> ConfigError:
    """Give the error the hint that fits best: the key's name here, for a word of another library; else the sections
    that know the key, or one spelt alike. sections: those of `sections_by_key` for `method`."""
    hint = "" if method in sections.get(error.key, ()) else meant_by("key", error.key, error.section)
    near = "" if error.key in sections else nearest_name(error.key, [*error.known_keys, *sections])
    name = near or error.key
    # who names a section means none of another method
    strangers = {*METHODS.names()} - {method} if error.section else set()
    owners = [section for section in sections.get(name, ()) if section != error.section and section not in strangers]
    if not hint and (not owners or (near and name in error.known_keys)):
        return error
    if others := [section for section in owners if section in METHODS and section != method]:
        of_methods = ", ".join(others[:3]) + (f" and {len(others) - 3} more" if len(others) > 3 else "")
        hint = hint or f"an option of {of_methods}, written as {others[0]}.{name} where that method runs"
    # a namesake deep in another section is rarely meant
    close = [section for section in owners if "." not in section or section.startswith(f"{error.section}.")]
    paths = [f"{section}.{name}" if section else name for section in close]
    hint = hint or (f"did you mean {' or '.join(map(repr, paths[:3]))}?" if paths else "")
    return ConfigError(error.message_with(hint)) if hint else error


def build_named(kinds: Registry[Any], values: Mapping[str, Any], path: str) -> Any:
    """Build the object that an entry `{name: ..., further keys}` at the dotted key `path` describes, by the registry
    `kinds`. Raises `ConfigError` for an unknown name or key, and for a refused value."""
    if not isinstance(values.get("name"), str):
        raise ConfigError(f"{path}: need a name; known: {', '.join(kinds.names())}")
    return built(kinds.get(values["name"]), {str(key): value for key, value in values.items() if key != "name"}, path)


def built(kind: type[T], keys: Mapping[str, Any], section: str) -> T:
    """Build `kind` from the keys of a dotted section. Raises `ConfigError` for the first that it refuses."""
    try:
        return kind.model_validate(dict(keys))
    except ValidationError as error:
        raise explain_validation_error(error, section, kind) from None


def keys_with_sections(model: Any, section: str = "") -> Iterator[tuple[str, str]]:
    """Yield section and name of every key below a model or a pydantic dataclass."""
    for name, field in fields_of(model).items():
        yield section, name
        for kind in (field.annotation, *get_args(field.annotation)):
            yield from keys_with_sections(kind, f"{section}.{name}" if section else name)


def fields_at(model: Any, path: Sequence[str]) -> Mapping[str, Any]:
    """Return the fields of the section at `path` of a pydantic model or dataclass; none where there is no section."""
    fields = fields_of(model)
    for part in path:
        annotation = fields[part].annotation if part in fields else None
        fields = next(filter(None, map(fields_of, (annotation, *get_args(annotation)))), {})
    return fields


def fields_of(kind: Any) -> Mapping[str, Any]:
    """Return the fields of a pydantic model or dataclass by the name in a config; none for anything else."""
    fields = kind.model_fields if isinstance(kind, type) and issubclass(kind, BaseModel) else None
    fields = fields or getattr(kind, "__pydantic_fields__", None) or {}
    return {field.alias or name: field for name, field in fields.items()}


def check_options(model: str, options: Mapping[str, Any]) -> None:
    """Raises `ConfigError` for keys that a model does not take, and for values of another type than it says."""
    allowed = model_options(model)
    for key, value in options.items():
        if key not in allowed:
            raise UnknownKeyError("model", key, allowed, f" of {model}")
        try:
            adapter = _adapter_of(MODELS.get(model), model, key)
            adapter.validate_json(json.dumps(value, default=str), strict=True)  # as JSON, where a list may be a tuple
        except ValidationError as error:
            raise explain_validation_error(error, f"model.{key}", BaseModel) from None
        except PydanticUserError:  # pydantic cannot validate this type
            continue


@cache  # slow to make, and every config asks for it; a factory may be replaced under its name
def _adapter_of(factory: Callable[..., Any], model: str, option: str) -> TypeAdapter[Any]:
    field = model_options(model)[option]
    constrained: Any = Annotated[field.annotation, field]
    return TypeAdapter(constrained)


def sections_by_key(config: type[BaseModel], method: str) -> dict[str, list[str]]:
    """Return the sections that know a key, by its name: those of `config` first, then the scenario's, `method`'s and
    the models'. Other methods only count for keys that no other section knows."""
    of_methods = (pair for name, kind in METHODS for pair in keys_with_sections(kind.Options, name))
    fewest, every = (dict.fromkeys(pairs) for pairs in (of_methods, _every_key(config, method)))
    return lists_by_key((key, section) for section, key in fewest) | lists_by_key((k, section) for section, k in every)


def _every_key(config: type[BaseModel], method: str) -> Iterator[tuple[str, str]]:
    yield from keys_with_sections(config)
    for registry in (SOURCES, PARTITIONS):
        for _, kind in registry:
            yield from keys_with_sections(kind, "scenario")
    if method in METHODS:
        yield from keys_with_sections(METHODS.get(method).Options, method)
    for model in MODELS.names():
        yield from (("model", key) for key in model_options(model))


MAX_RUNS = 100_000  # of a comparison, of a study, and of its tuning
MAX_TRIES = 10_000  # of each group of cells in tuning

_LARGEST_INTEGER = 2**31 - 1  # rounds are stored as 32-bit integers
_LARGEST = 1e38  # of what nets compute with
# By the last word of a key. Rounds may be many where early stopping ends a run.
_BY_WORD: dict[str, float] = {
    **dict.fromkeys(("rounds", "every", "k", "patience", "steps", "episodes"), 10_000_000),
    **dict.fromkeys(("epochs", "pretraining", "workers"), 100_000),
    **dict.fromkeys(("keep", "stack"), 1_000_000),
    **dict.fromkeys(("seconds", "timeout"), 1e9),
}
# Seeds are large by intention; more clients than samples are refused with the number of samples.
_FREE = ("seed", "clients")


def refuse_absurd(values: Mapping[str, Any]) -> None:
    """Raises `ConfigError` for the first number of a config's plain values that is larger than any run needs."""
    for key, value in leaves(values):
        if not isinstance(value, int | float) or isinstance(value, bool):
            continue
        last_name = key.rpartition(".")[2]
        largest = _BY_WORD.get(last_name.rpartition("_")[2], _LARGEST if isinstance(value, float) else _LARGEST_INTEGER)
        if last_name not in _FREE and math.isfinite(value) and abs(value) > largest:
            raise ConfigError(f"{key} = {value!r:.40}: need a number up to {largest:,.0f}")


def refuse_many(subject: str, counts: Iterable[int], largest: int = MAX_RUNS) -> None:
    """Raise `ConfigError` if lists of `counts` values make more than `largest` combinations; `subject` opens it."""
    count = math.prod(counts)
    if count > largest:
        raise ConfigError(f"{subject}: {count:,} combinations, more than {largest:,}; shorten a list, or split them up")


def refuse_booleans(written: Any, read: Any, path: str = "") -> None:
    """Raise `ConfigError` for the first true or false in `written` that pydantic `read` as a number; `path` is its key.

    >>> refuse_booleans({"rounds": [True]}, {"rounds": (1,)})
    Traceback (most recent call last):
    fedloom.core.errors.ConfigError: rounds.0 = True: need a number, as 1; true would be read as 1"""
    if isinstance(written, bool):
        if isinstance(read, int | float) and not isinstance(read, bool):
            word = str(written).lower()
            raise ConfigError(f"{path} = {written}: need a number, as {read:g}; {word} would be read as {read:g}")
    elif isinstance(written, Mapping) and isinstance(read, Mapping):
        for key, value in written.items():
            refuse_booleans(value, read.get(key), f"{path}.{key}" if path else str(key))
    elif isinstance(written, list | tuple) and isinstance(read, list | tuple):
        for index, (value, found) in enumerate(zip(written, read, strict=False)):
            refuse_booleans(value, found, f"{path}.{index}")


class ModelConfig(Keys, extra="allow", frozen=True):
    """A model with options: `{name: mlp, hidden: [100]}`."""

    name: str = Field(examples=["mlp"])

    @property
    def title(self) -> str:
        return self.name

    @property
    def factory(self) -> UserModel | None:
        """The user's model that makes the nets; None for a registered model."""
        return None

    def options(self) -> dict[str, Any]:
        """Return the options that its factory takes in addition to the shapes."""
        return dict(self.model_extra or {})

    def check(self) -> None:
        if self.name == "given":
            raise ConfigError("model = given: this run used a model from Python; pass it to fedloom.run to continue")
        if self.name not in MODELS:
            problem = suggest_name(self.name, {*MODELS.names(), *MODEL_GROUPS}, "model")
            raise ConfigError(f"unknown model {short_repr(self.name)}: {problem}")
        check_options(self.name, self.options())


class UserModelConfig(ModelConfig, extra="forbid", frozen=True, arbitrary_types_allowed=True):
    """A model that was passed as a Python object, described by these fields. The object itself is stored nowhere."""

    name: Literal["given"] = Field("given", description="Mark of a model from Python.")
    module: str = Field(description="Class of the module.")
    weights: Literal["own", "drawn"]
    head: str | None = Field(description="Name of the last linear layer; null if the model does not end in one.")
    digest: str
    user_model: UserModel = Field(exclude=True, repr=False, description="Factory of the nets.")

    @staticmethod
    def from_object(source: Any, data: Dataset) -> "UserModelConfig":
        """Describe the user's model `source` for `data`. Raises `ConfigError` for one that does not fit."""
        user_model, shape, classes = UserModel(source), data.input_shape, data.num_classes
        with Streams(0).isolated("init"):
            module = user_model.module(shape, classes)
        x = data.gather(torch.arange(min(2, len(data))))
        check_classifies(module, x, classes, class_name(module))
        return UserModelConfig(
            module=class_name(module),
            weights="own" if isinstance(source, nn.Module) else "drawn",
            head=None if isinstance(module, Net) else find_head(module, x),
            digest=model_digest(module),
            user_model=user_model,
        )

    @property
    def title(self) -> str:
        return self.module

    @property
    def factory(self) -> UserModel:
        return self.user_model

    def options(self) -> dict[str, Any]:
        return {"head": self.head}

    def check(self) -> None:
        """Nothing to check: the user's model was called once when the config was built."""


def model_configs(key: str | ModelConfig | Sequence[str | ModelConfig]) -> list[ModelConfig]:
    """Return the models that the key names, groups replaced by their models."""
    configs: list[ModelConfig] = []
    for model in [key] if isinstance(key, str | ModelConfig) else key:
        names = MODEL_GROUPS.get(model, (model,)) if isinstance(model, str) else ()
        configs += [ModelConfig(name=name) for name in names] or [model]  # type: ignore[list-item]
    return configs


def with_user_models(model: Any, data: Dataset) -> Any:
    """`model` with a `UserModelConfig` in place of each object. Raises what `UserModelConfig.from_object` raises."""
    if _is_list(model):
        return [with_user_models(entry, data) for entry in model]
    return UserModelConfig.from_object(model, data) if is_python_object(model) else model


def is_python_object(model: Any) -> bool:
    """Return whether a value of the key is a Python object, or a list that holds one."""
    if _is_list(model):
        return any(map(is_python_object, model))
    return isinstance(model, nn.Module) or (callable(model) and not isinstance(model, ModelConfig))


def _is_list(model: Any) -> bool:
    return isinstance(model, Sequence) and not isinstance(model, str | Mapping | nn.Module)
