"""Drops keys that stop applying when a config is overridden: switching `scenario.partition` from `dirichlet` to `iid`
removes `alpha`. One key of a section names the kind, and the same section has the keys of that kind."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from fedloom.core.errors import ConfigError, short_repr
from fedloom.core.files import copied
from fedloom.data import ATTACKS, PARTITIONS, SKEWS, SOURCES
from fedloom.data.sources.nodes import Nodes
from fedloom.methods import METHODS, OptimizerSpec
from fedloom.nets import MODELS
from fedloom.nets.blocks import model_options
from fedloom.runs.config.keys import check_options, fields_at, fields_of, sections_by_key
from fedloom.runs.config.scenario_config import PublicConfig, ScenarioConfig
from fedloom.runs.storage.schemas import leaves

_Path = tuple[str, ...]
# For a section: its common keys, and by the key that names a kind, the registry of the kinds and the default name.
_Kinds = tuple[Collection[str], dict[str, tuple[Any, str]]]
_PARTS_OF_SCENARIO = {
    "source": (SOURCES, ScenarioConfig.model_fields["source"].default),
    "partition": (PARTITIONS, ScenarioConfig.model_fields["partition"].default),
}
_NOT_WITH_NODES = ("partition", "skews", "attack", "tests", "public", "held_out", "group")
_OPTIMIZERS = {"sgd": ("momentum",), "adam": ("betas", "eps")}  # keys that one optimiser alone uses
KIND_KEYS = ("scenario.source", "scenario.partition", "scenario.attack.name", "scenario.public.source", "model.name")
"""Keys that name a kind, outside lists."""


def drop_keys_of_former_kinds(former: Mapping[str, Any], values: dict[str, Any], typed: Collection[str]) -> list[str]:
    """Drop the keys that only former kinds know from `values`, and return one phrase for each change from `former`. The
    dotted keys `typed` for the change stay, with all below them; `parse` refuses those that do not fit."""
    phrases = []
    for path, cause, unfit in _unfit_keys(former, values):
        section, prefix = at(values, path), "".join(f"{name}." for name in path)
        if any(".".join(path[: end + 1]) in typed for end in range(len(path))):
            continue
        dropped = [
            f"{prefix}{key}={short_repr(section.pop(key))}"
            for key in dict.fromkeys(unfit)
            if key in section and not any(f"{word}.".startswith(f"{prefix}{key}.") for word in typed)
        ]
        phrases += [f"{cause} drops {', '.join(dropped)} of the config"] if dropped else []
    return phrases + list(_sections_that_became_words(former, values))


def put_over(values: Mapping[str, Any], over: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Put `over` on top of `values`, where null drops a key that takes none, and drop the keys of kinds that it
    replaces. Returns the joined values and the phrases of `drop_keys_of_former_kinds`."""
    joined = overlaid(values, over, nulls_of=values)
    return joined, drop_keys_of_former_kinds(values, joined, {key for key, _ in leaves(over)})


def overlaid(
    values: Mapping[str, Any], over: Mapping[str, Any], nulls_of: Mapping[str, Any] | None = None, path: _Path = ()
) -> dict[str, Any]:
    """Put `over` on top of `values`, joining sections key by key. A section that is a word is its `name`.
    nulls_of: the whole config; null then drops a key that takes no null in it. path: where `values` are in it."""
    joined = dict(values)
    for key, value in over.items():
        section, here = joined.get(key), (*path, str(key))
        if isinstance(value, Mapping) and isinstance(section, str) and "name" not in value:
            section = {"name": section}
        if isinstance(value, Mapping) and isinstance(section, Mapping):
            joined[key] = overlaid(section, value, nulls_of, here)
        elif value is None and nulls_of is not None and key in joined and is_dropped_by_null(nulls_of, here):
            del joined[key]
        else:
            joined[key] = value
    return joined


def is_dropped_by_null(values: Mapping[str, Any], path: Sequence[str]) -> bool:
    """Whether null at `path` takes the key out of the config, because the key's type has no null."""
    field = _field_at(values, path)
    if field is not None:
        return type(None) not in get_args(field.annotation)
    parent = at(values, path[:-1])
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
            *path, last = key.split(".")
            at(others, path)[last] = list(compared[key])
            drop_keys_of_former_kinds(others, fitted, ())
    return fitted


def at(values: Any, path: Sequence[str]) -> Any:
    """Return the value at `path` of nested sections and lists; None if there is none."""
    for name in path:
        if isinstance(values, Mapping):
            values = values.get(name)
        elif isinstance(values, list) and name.isdecimal() and int(name) < len(values):
            values = values[int(name)]
        else:
            return None
    return values


def _unfit_keys(former: Mapping[str, Any], values: dict[str, Any]) -> Iterator[tuple[_Path, str, list[str]]]:
    """Yield sections with the change that keys of theirs do not fit, and these keys; dropped before the next look."""
    yield from _unfit_for_nodes(former, values)
    for path, (common, kinds) in _sections_with_kinds(values):
        section, before = at(values, path), at(former, path)
        if not isinstance(section, dict) or not isinstance(before, Mapping):
            continue
        names = {key: _names(section.get(key, default)) for key, (_, default) in kinds.items()}
        names_before = {key: _names(before.get(key, default)) for key, (_, default) in kinds.items()}
        changed = [key for key in kinds if names[key] != names_before[key]]
        if not changed or not all(name in kinds[key][0] for key in kinds for name in names[key]):
            continue
        fitting = {field for key in kinds for name in names[key] for field in _fields(kinds[key][0], name)}
        old = {field for key in changed for name in names_before[key] for field in _fields(kinds[key][0], name)}
        unfit = [key for key in section if key in old and key not in {*common, *fitting}]
        for key in changed:
            if len(names[key]) == 1:
                registry, name = kinds[key][0], names[key][0]
                unfit += [field for field in section if field in old and _is_refused(registry, name, field, section)]
        if path == ("scenario",) and names["partition"] == ["natural"] != names_before["partition"]:
            # owners decide the number of clients, unless it asks for a sample of them
            unfit += ["clients"] if not section.get("sample_ids") and names["source"] != [Nodes.kind] else []
        yield path, ", ".join(f"{'.'.join([*path, key])}={','.join(names[key])}" for key in changed), unfit
    yield from _unfit_elsewhere(former, values)


def _sections_with_kinds(values: Mapping[str, Any]) -> Iterator[tuple[_Path, _Kinds]]:
    yield ("scenario",), (ScenarioConfig.model_fields, _PARTS_OF_SCENARIO)
    yield ("scenario", "attack"), (("name",), {"name": (ATTACKS, "")})
    yield ("scenario", "public"), (PublicConfig.model_fields, {"source": (SOURCES, "")})
    yield ("model",), (("name",), {"name": (MODELS, "")})
    yield ("optimizer",), (("name",), {"name": (_OPTIMIZERS, OptimizerSpec().name)})
    for path, registry in ((("scenario", "skews"), SKEWS), (("model",), MODELS)):
        entries = at(values, path)
        for index in range(len(entries) if isinstance(entries, list) else 0):
            yield (*path, str(index)), (("name",), {"name": (registry, "")})


def _names(value: Any) -> list[str]:
    """The kinds that a key names: one, or those that are compared."""
    return [str(name) for name in (value if isinstance(value, list | tuple) else [value])]


def _fields(registry: Any, name: str) -> Mapping[str, Any]:
    if name not in registry:
        return {}
    if registry is _OPTIMIZERS:
        return {key: fields_of(OptimizerSpec)[key] for key in _OPTIMIZERS[name]}
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


def _unfit_for_nodes(former: Mapping[str, Any], values: dict[str, Any]) -> Iterator[tuple[_Path, str, list[str]]]:
    """Keys that the source `nodes` does not take when a change switches to it, or `partition` when one leaves it."""
    section, before = values.get("scenario"), former.get("scenario")
    if not isinstance(section, dict) or not isinstance(before, Mapping):
        return
    is_nodes, was_nodes = (scenario.get("source") == Nodes.kind for scenario in (section, before))
    if is_nodes != was_nodes:
        unfit = list(_NOT_WITH_NODES) if is_nodes else ["partition"]
        yield ("scenario",), f"scenario.source={section.get('source', 'digits')}", unfit
    if is_nodes and not was_nodes:
        section.setdefault("partition", "natural")


def _unfit_elsewhere(former: Mapping[str, Any], values: Mapping[str, Any]) -> Iterator[tuple[_Path, str, list[str]]]:
    """Keys that do not fit a method, a split or a protocol which has changed."""
    method, preset = values.get("method"), values.get("preset")
    if isinstance(method, str) and method != former.get("method", "fedavg") and method in METHODS:
        known_presets = METHODS.get(method).presets
        yield (), f"method={method}", ["preset"] if preset is not None and preset not in known_presets else []
    if at(values, ("scenario", "split")) is not None and at(former, ("scenario", "split")) is None:
        matched = at(values, ("scenario", "tests")) == "matched"
        yield ("scenario",), "scenario.split", ["val", "tests"] if matched else ["val"]
    protocol, protocol_before = (at(config, ("evaluation", "protocol")) for config in (values, former))
    if protocol == "few-shot" != protocol_before:
        on_validation = at(values, ("evaluation", "select")) == "best_val"
        yield ("evaluation",), "evaluation.protocol=few-shot", ["metrics", "also", *["select"] * on_validation]
    listed, listed_before = (at(config, ("evaluation", "protocols")) for config in (values, former))
    if isinstance(listed, list) and listed and listed != listed_before and protocol not in (None, listed[0]):
        yield ("evaluation",), "evaluation.protocols", ["protocol"]
    elif listed and listed == listed_before and protocol != protocol_before:
        yield ("evaluation",), f"evaluation.protocol={protocol}", ["protocols"]


def _sections_that_became_words(former: Mapping[str, Any], values: Mapping[str, Any]) -> Iterator[str]:
    """Yield a phrase for each section that the change replaces by a name, which drops the section's keys."""
    for path in (("optimizer",), ("model",), ("scenario", "attack")):
        name, before = at(values, path), at(former, path)
        lost = {key: value for key, value in before.items() if key != "name"} if isinstance(before, Mapping) else {}
        if isinstance(name, str) and lost:
            prefix = ".".join(path)
            dropped = ", ".join(f"{prefix}.{key}={short_repr(value)}" for key, value in lost.items())
            yield f"{prefix}={name} drops {dropped} of the config"


def _field_at(values: Mapping[str, Any], path: Sequence[str]) -> Any:
    path = path[1:] if len(path) > 1 and path[0] == "options" else path
    section, key = tuple(path[:-1]), path[-1]
    entry = at(values, section)
    for kinds_path, (_, kinds) in _sections_with_kinds(values) if isinstance(entry, Mapping) else ():
        for kind_key, (registry, default) in kinds.items() if kinds_path == section else ():
            for name in _names(entry.get(kind_key, default)):
                if key in (fields := _fields(registry, name)):
                    return fields[key]
    if len(section) == 1 and section[0] in METHODS:
        return METHODS.get(section[0]).Options.model_fields.get(key)
    return fields_at(_run_config(), section).get(key)


def _run_config() -> type[BaseModel]:
    from fedloom.runs.config.run_config import RunConfig  # which uses this module

    return RunConfig
