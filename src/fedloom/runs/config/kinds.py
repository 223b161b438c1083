"""Drops keys that stop applying when a config is overridden: switching `scenario.partition` from `dirichlet` to `iid`
removes `alpha`.

One key of a section names the kind (a partition, a source, a model, an optimiser), and the same section has the keys of
that kind.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, get_args, get_type_hints

from pydantic import BaseModel, ValidationError, create_model

from fedloom.core.errors import ConfigError, short_repr
from fedloom.data import ATTACKS, PARTITIONS, SKEWS, SOURCES
from fedloom.data.sources.nodes import Nodes
from fedloom.methods import METHODS, OptimizerSpec
from fedloom.nets import MODELS
from fedloom.nets.blocks import model_options
from fedloom.runs.config.keys import check_options, fields_of, sections_by_key
from fedloom.runs.config.scenario_config import PublicConfig, ScenarioConfig
from fedloom.runs.storage.schemas import leaves

_Path = tuple[str, ...]
# For a section: its common keys, and by the key that names a kind, the registry of the kinds and the default name.
_Kinds = tuple[Collection[str], dict[str, tuple[Any, str]]]
_PARTS_OF_SCENARIO = {
    "source": (SOURCES, ScenarioConfig.model_fields["source"].default),
    "partition": (PARTITIONS, ScenarioConfig.model_fields["partition"].default),
}
_NOT_WITH_NODES = ("partition", "skews", "attack", "tests", "public", "held_out")


def _fields_of_optimizer(*names: str) -> type[BaseModel]:
    """A model of the keys of `OptimizerSpec` that one kind of optimiser alone uses."""
    hints = get_type_hints(OptimizerSpec, include_extras=True)
    defaults = {field.name: field.default for field in dataclasses.fields(OptimizerSpec)}
    fields: dict[str, Any] = {name: (hints[name], defaults[name]) for name in names}
    return create_model("OptimizerKeys", **fields)


_OPTIMIZERS = {"sgd": _fields_of_optimizer("momentum"), "adam": _fields_of_optimizer("betas", "eps")}
KIND_KEYS = ("scenario.source", "scenario.partition", "scenario.attack.name", "scenario.public.source", "model.name")
"""Keys that name a kind, outside lists."""


def drop_keys_of_former_kinds(former: Mapping[str, Any], values: dict[str, Any], typed: Collection[str]) -> list[str]:
    """Drop the keys that only former kinds know, and return one phrase for each change.

    Args:
        former: the values before the change.
        values: the values after it, from which keys are removed.
        typed: dotted keys that the user gave for the change. They stay, with all keys below them, and `parse` refuses
            those that do not fit. It also refuses kinds that do not exist.
    """
    phrases = []
    for path, (common, kinds) in _sections_with_kinds(values):
        section, before = _at(values, path), _at(former, path)
        if not isinstance(section, dict) or not isinstance(before, Mapping):
            continue
        phrases += _dropped_for_nodes(section, before, typed) if path == ("scenario",) else []
        names = {key: _names(section.get(key, default)) for key, (_, default) in kinds.items()}
        names_before = {key: _names(before.get(key, default)) for key, (_, default) in kinds.items()}
        changed = [key for key in kinds if names[key] != names_before[key]]
        if not changed or not all(name in kinds[key][0] for key in kinds for name in names[key]):
            continue
        now = [_fields(kinds[key][0], name) for key in kinds for name in names[key]]
        old = {field for key in changed for name in names_before[key] for field in _fields(kinds[key][0], name)}
        fitting = {field for fields in now for field in fields}
        unfit = [key for key in section if key in old and key not in {*common, *fitting}]
        for key in changed:
            if len(names[key]) == 1:
                registry, name = kinds[key][0], names[key][0]
                unfit += [field for field in section if field in old and _is_refused(registry, name, field, section)]
        unfit += _unfit_beside(names, names_before, section) if path == ("scenario",) else []
        change = ", ".join(f"{'.'.join([*path, key])}={','.join(names[key])}" for key in changed)
        phrases += _dropped(section, path, unfit, typed, change)
    phrases += _sections_that_became_words(former, values)
    for path, cause, unfit in _unfit_elsewhere(former, values):
        section = _at(values, path)
        phrases += _dropped(section, path, unfit, typed, cause)
    return phrases


def put_over(values: Mapping[str, Any], over: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Put `over` on top of `values`, joining sections key by key, and drop the keys of kinds that `over` replaces.

    A section that is a word is its `name`. Null drops a key that does not take null. Returns the joined values and the
    phrases of `drop_keys_of_former_kinds`.
    """
    joined = _joined(values, over, (), values)
    return joined, drop_keys_of_former_kinds(values, joined, {key for key, _ in leaves(over)})


def is_dropped_by_null(values: Mapping[str, Any], path: Sequence[str]) -> bool:
    """Whether null at `path` takes the key out of the config, because the key's type has no null."""
    field = _field_at(values, path)
    if field is not None:
        return type(None) not in get_args(field.annotation)
    parent = _at(values, tuple(path[:-1]))
    if isinstance(parent, Mapping) and path[-1] in parent:
        return True
    sections = sections_by_key(_run_config(), str(values.get("method", "")))
    return ".".join(path[:-1]) in sections.get(path[-1], ())


def fitted_to_kinds(values: Mapping[str, Any], compared: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """Return values without the keys that only other compared kinds know."""
    fitted: dict[str, Any] = copied(values)
    for key in KIND_KEYS:
        if key in compared:
            others = copied(values)
            path = tuple(key.split("."))
            _at(others, path[:-1])[path[-1]] = list(compared[key])
            drop_keys_of_former_kinds(others, fitted, ())
    return fitted


def has_key(values: Mapping[str, Any], key: str) -> bool:
    """Whether there is a dotted key."""
    *path, last = key.split(".")
    section = _at(values, tuple(path))
    return isinstance(section, Mapping) and last in section


def _sections_with_kinds(values: Mapping[str, Any]) -> Iterator[tuple[_Path, _Kinds]]:
    yield ("scenario",), (ScenarioConfig.model_fields, _PARTS_OF_SCENARIO)
    yield ("scenario", "attack"), (("name",), {"name": (ATTACKS, "")})
    yield ("scenario", "public"), (PublicConfig.model_fields, {"source": (SOURCES, "")})
    yield ("model",), (("name",), {"name": (MODELS, "")})
    yield ("optimizer",), (("name",), {"name": (_OPTIMIZERS, OptimizerSpec().name)})
    for path, registry in ((("scenario", "skews"), SKEWS), (("model",), MODELS)):
        entries = _at(values, path)
        for index in range(len(entries) if isinstance(entries, list) else 0):
            yield (*path, str(index)), (("name",), {"name": (registry, "")})


def _names(value: Any) -> list[str]:
    """The kinds that a key names: one, or those that are compared."""
    return [str(name) for name in (value if isinstance(value, list | tuple) else [value])]


def _fields(registry: Any, name: str) -> Mapping[str, Any]:
    if name not in registry:
        return {}
    fields: Mapping[str, Any] = model_options(name) if registry is MODELS else registry.get(name).model_fields
    return fields


def _is_refused(registry: Any, name: str, key: str, section: Mapping[str, Any]) -> bool:
    """Whether the kind `name` knows `key` and refuses the value that it has in `section`."""
    if key not in _fields(registry, name) or isinstance(section[key], list):  # of values that may be compared
        return False
    try:
        if registry is MODELS:
            check_options(name, {key: section[key]})
        else:
            registry.get(name)(**{key: section[key]})
    except ConfigError:
        return True
    except ValidationError as error:
        return any(problem["loc"][:1] == (key,) for problem in error.errors())
    return False


def _unfit_beside(
    names: Mapping[str, list[str]], names_before: Mapping[str, list[str]], section: Mapping[str, Any]
) -> list[str]:
    """Return `clients` if the change switches to the partition `natural`, because owners decide their number."""
    by_owners = names["partition"] == ["natural"] != names_before["partition"] and not section.get("sample_ids")
    return ["clients"] if by_owners and names["source"] != [Nodes.kind] else []


def _dropped_for_nodes(section: dict[str, Any], before: Mapping[str, Any], typed: Collection[str]) -> list[str]:
    """Drop keys that the source `nodes` does not take when a change switches to it, or `partition` when one leaves it.

    The nodes own their data, so there is nothing to partition.
    """
    is_nodes, was_nodes = (values.get("source") == Nodes.kind for values in (section, before))
    if is_nodes == was_nodes:
        return []
    unfit = _NOT_WITH_NODES if is_nodes else ["partition"]
    phrases = _dropped(section, ("scenario",), unfit, typed, f"scenario.source={section.get('source', 'digits')}")
    if is_nodes:
        section.setdefault("partition", "natural")
    return phrases


def _unfit_elsewhere(former: Mapping[str, Any], values: Mapping[str, Any]) -> Iterator[tuple[_Path, str, list[str]]]:
    """Sections with keys that do not fit a method, a split or a protocol which has changed."""
    method, preset = values.get("method"), values.get("preset")
    if isinstance(method, str) and method != former.get("method", "fedavg") and method in METHODS:
        known_presets = METHODS.get(method).presets
        yield (), f"method={method}", ["preset"] if preset is not None and preset not in known_presets else []
    split = _at(values, ("scenario", "split"))
    if split is not None and _at(former, ("scenario", "split")) is None:
        matched = _at(values, ("scenario", "tests")) == "matched"
        yield ("scenario",), "scenario.split", ["val", "tests"] if matched else ["val"]
    protocols = [_at(section, ("evaluation", "protocol")) for section in (values, former)]
    if protocols[0] == "few-shot" != protocols[1]:
        on_validation = _at(values, ("evaluation", "select")) == "best_val"
        unfit = ["metrics", "also", "select"] if on_validation else ["metrics", "also"]
        yield ("evaluation",), "evaluation.protocol=few-shot", unfit
    listed, listed_before = (_at(section, ("evaluation", "protocols")) for section in (values, former))
    if isinstance(listed, list) and listed and listed != listed_before and protocols[0] not in (None, listed[0]):
        yield ("evaluation",), "evaluation.protocols", ["protocol"]
    elif listed and listed == listed_before and protocols[0] != protocols[1]:
        yield ("evaluation",), f"evaluation.protocol={protocols[0]}", ["protocols"]


def _sections_that_became_words(former: Mapping[str, Any], values: Mapping[str, Any]) -> Iterator[str]:
    """Yield a phrase for each section that the change replaces by a name, which drops the section's keys."""
    for path in (("optimizer",), ("model",), ("scenario", "attack")):
        name, before = _at(values, path), _at(former, path)
        lost = {key: value for key, value in before.items() if key != "name"} if isinstance(before, Mapping) else {}
        if isinstance(name, str) and lost:
            key_path = ".".join(path)
            yield (
                f"{key_path}={name} drops {', '.join(f'{key_path}.{key}={short_repr(lost[key])}' for key in lost)} "
                + ("of the config")
            )


def _dropped(section: Any, path: _Path, unfit: Sequence[str], typed: Collection[str], cause: str) -> list[str]:
    """Drop the keys `unfit` from a section unless the user typed them, and return a phrase that names them."""
    prefixes = ["", *(".".join(path[: end + 1]) for end in range(len(path)))]
    if any(prefix in typed for prefix in prefixes if prefix):
        return []
    dropped = [
        f"{'.'.join([*path, key])}={short_repr(section.pop(key))}"
        for key in dict.fromkeys(unfit)
        if key in section and not _is_typed(".".join([*path, key]), typed)
    ]
    return [f"{cause} drops {', '.join(dropped)} of the config"] if dropped else []


def _is_typed(key: str, typed: Collection[str]) -> bool:
    return any(typed_key == key or typed_key.startswith(f"{key}.") for typed_key in typed)


def _field_at(values: Mapping[str, Any], path: Sequence[str]) -> Any:
    """The field of a key, which has an annotation; None for a key that is not known."""
    path = path[1:] if len(path) > 1 and path[0] == "options" else path
    section, key = tuple(path[:-1]), path[-1]
    for kinds_path, (_, kinds) in _sections_with_kinds(values):
        entry = _at(values, section)
        if kinds_path == section and isinstance(entry, Mapping):
            for kind_key, (registry, default) in kinds.items():
                for name in _names(entry.get(kind_key, default)):
                    if key in (fields := _fields(registry, name)):
                        return fields[key]
    if len(section) == 1 and section[0] in METHODS:
        return METHODS.get(section[0]).Options.model_fields.get(key)
    fields_here = fields_of(_run_config()) or {}
    for name in section:
        annotation = fields_here[name].annotation if name in fields_here else None
        inner = [kind for kind in (annotation, *get_args(annotation)) if fields_of(kind) is not None]
        fields_here = (fields_of(inner[0]) if inner else None) or {}
    return fields_here.get(key)


def _run_config() -> type[BaseModel]:
    from fedloom.runs.config.run_config import RunConfig  # which uses this module

    return RunConfig


def _joined(
    values: Mapping[str, Any], over: Mapping[str, Any], path: _Path, whole: Mapping[str, Any]
) -> dict[str, Any]:
    joined = dict(values)
    for key, value in over.items():
        section, here = joined.get(key), (*path, str(key))
        if isinstance(value, Mapping) and isinstance(section, str) and "name" not in value:
            section = {"name": section}
        if isinstance(value, Mapping) and isinstance(section, Mapping):
            joined[key] = _joined(section, value, here, whole)
        elif value is None and key in joined and is_dropped_by_null(whole, here):
            del joined[key]
        else:
            joined[key] = value
    return joined


def _at(values: Any, path: _Path) -> Any:
    """Return the value at `path` of nested sections and lists; None if there is none."""
    for name in path:
        if isinstance(values, Mapping):
            values = values.get(name)
        elif isinstance(values, list) and name.isdecimal() and int(name) < len(values):
            values = values[int(name)]
        else:
            return None
    return values


def copied(value: Any) -> Any:
    """Copy sections and lists; the values in them are shared, as models and scenarios may be objects."""
    if isinstance(value, Mapping):
        return {key: copied(entry) for key, entry in value.items()}
    return [copied(entry) for entry in value] if isinstance(value, list) else value
