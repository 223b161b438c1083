"""Keys by section, for hints on misplaced keys, and the check of a model's options."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Annotated, Any

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

from fedloom.core.errors import UnknownKeyError
from fedloom.data import PARTITIONS, SOURCES
from fedloom.methods import METHODS
from fedloom.nets import MODELS
from fedloom.nets.options import model_options
from fedloom.runs.config.explain import explain_validation_error, keys_with_sections


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
        except PydanticUserError:  # a type of which pydantic knows nothing
            continue


@cache  # slow to make, and every config asks for it; a factory may be replaced under its name
def _adapter_of(factory: Callable[..., Any], model: str, option: str) -> TypeAdapter[Any]:
    field = model_options(model)[option]
    constrained: Any = Annotated[field.annotation, field]
    return TypeAdapter(constrained)


def sections_by_key(config: type[BaseModel], method: str) -> dict[str, list[str]]:
    """Return the sections that know a key, by its name: the config's first, then the scenario's, `method`'s and the
    models'. Other methods only count for keys that no other section knows."""
    sections_of_key: dict[str, list[str]] = {}
    for section, key in _every_key(config, method):
        _add_section(sections_of_key, section, key)
    sections_of_other_methods: dict[str, list[str]] = {}
    for name, kind in METHODS:
        for section, key in keys_with_sections(kind.Options, name):
            _add_section(sections_of_other_methods, section, key)
    return sections_of_other_methods | sections_of_key


def _add_section(sections_of_key: dict[str, list[str]], section: str, key: str) -> None:
    if section not in sections_of_key.setdefault(key, []):
        sections_of_key[key].append(section)


def _every_key(config: type[BaseModel], method: str) -> Iterator[tuple[str, str]]:
    yield from keys_with_sections(config)
    for registry in (SOURCES, PARTITIONS):
        for _, kind in registry:
            yield from keys_with_sections(kind, "scenario")
    if method in METHODS:
        yield from keys_with_sections(METHODS.get(method).Options, method)
    for model in MODELS.names():
        yield from (("model", key) for key in model_options(model))
