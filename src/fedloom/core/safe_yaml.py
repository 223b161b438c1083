"""Read YAML that people wrote, in bounded time: plain values, no duplicate keys, limited depth and size.

PyYAML's safe loader builds no objects, but it recurses as deep as its input, expands aliases without limit, keeps the
last of two equal keys, and follows YAML 1.1: it reads off, on, no and yes as truth values, although an option may be
called `off`, 010 as 8, and 1:30 as 90."""

import re
from collections.abc import Hashable
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from fedloom.core.errors import ConfigError

_MAX_LENGTH = 1 << 16  # characters; parsed within seconds
_MAX_DEPTH = 30
_MAX_VALUES = 100_000  # after aliases are expanded


class _RefusedYaml(yaml.YAMLError):
    """Valid YAML that no config needs."""


_BOOL_TAG, _INT_TAG, _FLOAT_TAG = (f"tag:yaml.org,2002:{kind}" for kind in ("bool", "int", "float"))


class _Loader(yaml.SafeLoader):
    """The safe loader without duplicate keys. Truth values are true and false, as in YAML 1.2. Numbers are written in
    decimal or hexadecimal digits; 1:30 and 010 are texts, of which a key that takes a number reads 010 as ten."""

    yaml_implicit_resolvers = {  # noqa: RUF012
        first_character: [entry for entry in resolvers if entry[0] not in (_BOOL_TAG, _INT_TAG, _FLOAT_TAG)]
        for first_character, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        names = set()
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if isinstance(key, yaml.ScalarNode) and key.value != "<<":
                if key.value in names:
                    raise _RefusedYaml(f"the key '{key.value}' comes twice, again in line {key.start_mark.line + 1}")
                names.add(key.value)
        return super().construct_mapping(node, deep)


def _whole_number(loader: _Loader, node: yaml.ScalarNode) -> int:
    digits = str(loader.construct_scalar(node)).replace("_", "")
    return int(digits, 16 if digits.startswith("0x") else 10)


_Loader.add_implicit_resolver(_BOOL_TAG, re.compile("^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF"))
_Loader.add_implicit_resolver(
    _FLOAT_TAG,
    re.compile(
        r"^(?:[-+]?[0-9][0-9_]*\.[0-9_]*(?:[eE][-+][0-9]+)?|\.[0-9][0-9_]*(?:[eE][-+][0-9]+)?"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
    ),
    list("-+0123456789."),
)
_Loader.add_implicit_resolver(
    _INT_TAG, re.compile("^(?:[-+]?(?:0|[1-9][0-9_]*)|0x[0-9a-fA-F]+)$"), list("-+0123456789")
)
_Loader.add_constructor(_INT_TAG, _whole_number)


def parse_yaml(text: str, max_length: int = _MAX_LENGTH) -> Any:
    """Parse one YAML document of at most `max_length` characters into plain values. Raises `yaml.YAMLError` for invalid
    YAML, duplicate keys, and documents that are larger or deeper than any config."""
    if len(text) > max_length:
        raise _RefusedYaml(f"more than {max_length:,} characters; no config is that long")
    try:
        return _copy_containers(_load(text))
    except (ValueError, OverflowError) as error:  # a date such as 2024-99-99, a number of 5,000 digits
        raise _RefusedYaml(str(error)) from None


def read_yaml(path: Path) -> Any:
    """Parse a YAML file into plain values. Raises `ConfigError`, one line that names the file."""
    try:
        with path.open("rb") as stream:
            raw = stream.read(4 * _MAX_LENGTH + 1)  # the file may be a device without end
        return parse_yaml(raw.decode("utf-8-sig"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such config file") from None
    except OSError as error:
        raise ConfigError(f"{path}: not readable: {error.strerror}") from None
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: not readable as YAML: {one_line(error)}") from None


def one_line(error: BaseException) -> str:
    """Return the message of an error without line breaks."""
    return " ".join(str(error).split())


@lru_cache(64)  # the settings of a study share their files
def _load(text: str) -> Any:
    _refuse_large(text)
    return yaml.load(text, _Loader)  # a safe loader


def _copy_containers(value: Any) -> Any:
    """Copy dicts and lists, because YAML aliases and cached documents would share mutable parts."""
    if isinstance(value, dict):
        return {key: _copy_containers(entry) for key, entry in value.items()}
    return [_copy_containers(entry) for entry in value] if isinstance(value, list) else value


def _refuse_large(text: str) -> None:
    """Refuse deep nesting, recursive aliases and aliases that expand to too much, before PyYAML recurses into them."""
    sizes: dict[str | None, int] = {}
    open_collections: list[tuple[str | None, int]] = []  # anchor, and number of values before it
    size = 0
    # Events come one at a time, so the limits end the parse before any value is built.
    for event in yaml.parse(text, yaml.SafeLoader):
        if isinstance(event, yaml.AliasEvent):
            if any(anchor == event.anchor for anchor, _ in open_collections):
                raise _RefusedYaml(f"the alias *{event.anchor} refers to itself")
            # An alias counts as much as its anchor, and aliases within aliases multiply.
            size += sizes.get(event.anchor, 1)
        elif isinstance(event, yaml.ScalarEvent):
            size += 1
            sizes[event.anchor] = 1
        elif isinstance(event, yaml.CollectionStartEvent):
            open_collections.append((event.anchor, size))
            size += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, size_before = open_collections.pop()
            sizes[anchor] = size - size_before
        if len(open_collections) > _MAX_DEPTH:
            raise _RefusedYaml(f"nested more than {_MAX_DEPTH} deep")
        if size > _MAX_VALUES:
            raise _RefusedYaml(f"aliases unfold to more than {_MAX_VALUES:,} values")
