"""The reference of all config keys, made from the fields that check a config, and the ready configs in `configs/`."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, TypeAdapter
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo

from fedloom.core.errors import ConfigError, short_repr, suggest_name
from fedloom.core.files import json_text, shipped_folder
from fedloom.data import ATTACKS, PARTITIONS, SKEWS, SOURCES
from fedloom.methods import METHODS, WRAPPERS
from fedloom.nets import MODELS
from fedloom.nets.blocks import model_options
from fedloom.runs.config.run_config import RunConfig

_TYPES = {"integer": "integer", "number": "number", "string": "text", "boolean": "true or false", "null": "null"}
_BOUNDS = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}
# Sections that a config may also give as a word, their name.
_NAMED_SECTIONS = ("engine", "optimizer")


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """One key of a config. path: with dots (`optimizer.lr`); N is the index in a list. part: the part that knows it,
    e.g. `partition dirichlet`. values: type and range, or choices. default: None also for a `required` key."""

    path: str
    part: str
    values: str
    required: bool
    default: Any
    meaning: str
    examples: tuple[Any, ...] = ()

    @property
    def default_text(self) -> str:
        if self.required:
            return "required"
        if isinstance(self.default, dict) and self.default:
            return "that of its keys"
        return self.default if isinstance(self.default, str) else json_text(self.default, default=str)


def matching_keys(name: str) -> list[ConfigKey]:
    """Return the keys of a section, the key of a path, or else all keys whose last word is `name`. Keys of a section
    that a last word names come with it. Raises `ConfigError` with the nearest name if there is none."""
    keys = config_keys()
    is_path = any(f"{key.path}.".startswith(f"{name}.") for key in keys)
    paths = {key.path for key in keys if key.path.rpartition(".")[2] == name}
    roots = {name} if is_path else paths
    matching = [key for key in keys if any(f"{key.path}.".startswith(f"{root}.") for root in roots)]
    if not matching:
        names = {word for key in keys for word in (key.path, key.path.rpartition(".")[2])}
        raise ConfigError(f"no config key {short_repr(name)}: {suggest_name(name, names, 'key')}")
    return matching


def config_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a run's YAML file, by which editors check and complete it."""
    schema = RunConfig.model_json_schema(ref_template="#/$defs/{model}")
    sections = schema["$defs"]
    for key in _NAMED_SECTIONS:
        section = schema["properties"][key]
        name = sections[section.pop("$ref").rpartition("/")[2]]["properties"]["name"]
        reference = {"$ref": RunConfig.model_json_schema()["properties"][key]["$ref"]}
        section["anyOf"] = [reference, {k: v for k, v in name.items() if k in ("type", "enum")}]
    attack = sections["ScenarioConfig"]["properties"]["attack"]
    attack["anyOf"] = [*attack["anyOf"], {"type": "string", "enum": ATTACKS.names()}]
    sections["ScenarioConfig"]["properties"]["source"]["enum"] = SOURCES.names()
    sections["ScenarioConfig"]["properties"]["partition"]["enum"] = PARTITIONS.names()
    for name, method in METHODS:
        properties = _described(method.Options)
        schema["properties"][name] = {
            "type": "object",
            "description": f"Options of the method {name}.",
            "properties": properties["properties"],
            "additionalProperties": False,
        }
        sections |= properties.get("$defs", {})
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def config_keys() -> list[ConfigKey]:
    """Return every key: those of all runs first, then those of sources, partitions, skews, attacks, models, methods."""
    keys = list(_keys_of_schema(RunConfig.model_json_schema()))
    for registry, noun, prefix in (
        (SOURCES, "source", "scenario."),
        (PARTITIONS, "partition", "scenario."),
        (SKEWS, "skew", "scenario.skews.N."),
        (ATTACKS, "attack", "scenario.attack."),
    ):
        for name, kind in registry:
            keys += _keys_of_schema(kind.model_json_schema(), prefix, f"{noun} {name}")
    for model in MODELS.names():
        for option, field in model_options(model).items():
            keys.append(_key(f"model.{option}", f"model {model}", _schema_of_option(field), {}, field.is_required()))
    for name, method in METHODS:
        keys += _keys_of_schema(_described(method.Options), f"{name}.", f"method {name}")
    base = METHODS.get("fedavg")
    for wrapper in WRAPPERS.names():
        schema = _described(METHODS.get(f"fedavg+{wrapper}").Options)
        for option in base.Options.model_fields:
            del schema["properties"][option]
        keys += _keys_of_schema(schema, f"METHOD+{wrapper}.", f"wrapper {wrapper}")
    return keys


def _described(options: type[BaseModel]) -> dict[str, Any]:
    """The schema of a method's options, with `properties` also where there are none."""
    return {"properties": {}, **options.model_json_schema()}


def _schema_of_option(field: FieldInfo) -> dict[str, Any]:
    constrained: Any = Annotated[field.annotation, field]
    try:
        schema = TypeAdapter(constrained).json_schema()
    except PydanticUserError:  # pydantic has no schema for this type
        schema = {"description": field.description or ""}
    return schema if field.is_required() else {**schema, "default": field.default}


def _keys_of_schema(
    schema: Mapping[str, Any], prefix: str = "", part: str = "", defaults: Mapping[str, Any] | None = None
) -> Iterator[ConfigKey]:
    """The keys of an object's schema and of the sections in it. defaults: those that the section above sets."""
    definitions = schema.get("$defs", {})
    for name, value in schema.get("properties", {}).items():
        path = f"{prefix}{name}"
        if defaults is not None and name in defaults:
            value = {**value, "default": defaults[name]}
        yield _key(path, part, value, definitions, name in schema.get("required", ()))
        default = value.get("default")
        for section in _alternatives(value, definitions):
            if "properties" in section:
                inner_defaults = default if isinstance(default, dict) else None
                yield from _keys_of_schema({**section, "$defs": definitions}, f"{path}.", part, inner_defaults)


def _alternatives(value: Mapping[str, Any], definitions: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The alternative schemas of a value, with references resolved."""
    if "$ref" in value:
        return [definitions[value["$ref"].rpartition("/")[2]]]
    return [schema for part in value.get("anyOf", ()) for schema in _alternatives(part, definitions)] or [value]


def _key(path: str, part: str, value: Mapping[str, Any], definitions: Mapping[str, Any], required: bool) -> ConfigKey:
    alternatives = _alternatives(value, definitions)
    values = " or ".join(dict.fromkeys(_values(alternative, definitions) for alternative in alternatives))
    meaning = " ".join(str(value.get("description") or "").split())
    return ConfigKey(path, part, values, required, value.get("default"), meaning, tuple(value.get("examples", ())))


def _values(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    if "properties" in schema:
        return "section"
    if choices := schema.get("enum", [schema["const"]] if "const" in schema else None):
        return ", ".join(map(str, choices))
    if schema.get("type") == "array":
        elements = " or ".join(_values(a, definitions) for a in _alternatives(schema.get("items", {}), definitions))
        return f"list of: {elements}" if schema.get("items") else "list"
    if schema.get("type") == "object":
        return "{key: value}"
    kind = _TYPES.get(str(schema.get("type")), "any value")
    return ", ".join([kind, *(f"{words} {schema[key]:,}" for key, words in _BOUNDS.items() if key in schema)])


_NAMED = 5  # names in a message


@dataclass(frozen=True, slots=True)
class ReadyConfig:
    """A config file that comes with fedloom. Its first comment line describes it."""

    name: str
    path: Path
    text: str

    @property
    def summary(self) -> str:
        return self.text.partition("\n")[0].lstrip("# ")


def ready_configs() -> list[ReadyConfig]:
    """All of them, by name."""
    return [ReadyConfig(name, path, path.read_text(encoding="utf-8")) for name, path in _paths().items()]


def find_ready(name: str) -> ReadyConfig:
    """The one called `name`, or the only one that starts so. Raises `ConfigError` with the nearest name."""
    ready = {r.name: r for r in ready_configs()}
    starting = [name] if name in ready else [key for key in ready if key.startswith(name)]
    if len(starting) != 1:
        more = f" and {len(starting) - _NAMED} more" if len(starting) > _NAMED else ""
        several = f"{', '.join(starting[:_NAMED])}{more} start so; write more of it"
        raise ConfigError(f"unknown scenario {short_repr(name)}: {several if starting else _hint(name, ready)}")
    return ready[starting[0]]


def find_config(path: Path) -> Path:
    """The config file that a person means: `path` itself, or the ready one of that name, with or without `configs/` and
    `.yaml`, where there is no such file. Raises `ConfigError` that says where configs are."""
    if path.exists() and not path.is_dir():
        return path
    ready = _paths()
    name = path.as_posix().removeprefix("configs/").removesuffix(".yaml")
    if name in ready:
        return ready[name]
    if (path / "config.yaml").is_file():
        raise ConfigError(f"{path} is a folder; for the config of the run there, give {path / 'config.yaml'}")
    if path.is_dir():
        raise ConfigError(f"{path} is a folder; give a YAML file, or a name that `fedloom scenarios` lists")
    raise ConfigError(f"{short_repr(path.as_posix())[1:-1]}: no such config file; {_hint(name, ready)}")


def _paths() -> dict[str, Path]:
    folder = shipped_folder("configs")
    return {str(path.relative_to(folder).with_suffix("")): path for path in sorted(folder.rglob("*.yaml"))}


def _hint(name: str, ready: Mapping[str, object]) -> str:
    hint = suggest_name(name, ready)
    if name.partition("+")[0] in METHODS:
        return f"a method goes with a config, as in `fedloom run demo method={name}`"
    if name in SOURCES:
        return f"a data set gets a config by `fedloom init --from {name}`"
    return "`fedloom scenarios` lists the ready ones" if hint.startswith("known") else hint
