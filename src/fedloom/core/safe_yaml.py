"""YAML from people, read in bounded time: plain values only, no key twice, no bombs.

PyYAML's safe loader builds no objects, but it recurses as deep as its input, unfolds aliases without limit, keeps the
last of two equal keys, and reads the words off, on, no and yes as truth values. Options are called `off`.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from fedloom.core.errors import ConfigError

_LETTERS = 1 << 16  # of a text: read within seconds
_DEPTH = 30
_NODES = 100_000  # after aliases are unfolded


class _Refused(yaml.YAMLError):
    """Valid YAML that no config needs."""


_TRUTH = "tag:yaml.org,2002:bool"


class _Loader(yaml.SafeLoader):
    """The safe loader, which refuses a key that comes twice. Truth values are true and false, as in YAML 1.2."""

    yaml_implicit_resolvers = {  # noqa: RUF012
        first: [(tag, pattern) for tag, pattern in known if tag != _TRUTH]
        for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if isinstance(key, yaml.ScalarNode) and key.value != "<<":
                if key.value in seen:
                    raise _Refused(f"the key '{key.value}' comes twice, again in line {key.start_mark.line + 1}")
                seen.add(key.value)
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(_TRUTH, re.compile("^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF"))


def parse_yaml(text: str, longest: int = _LETTERS) -> Any:
    """Plain values from one YAML document of at most `longest` characters; what stands behind aliases is copied.

    Raises `yaml.YAMLError` for what is no YAML, holds a key twice, or is larger or deeper than any config.
    """
    if len(text) > longest:
        raise _Refused(f"more than {longest:,} characters; no config is that long")
    try:
        return _apart(_loaded(text))
    except (ValueError, OverflowError) as error:  # a date such as 2024-99-99, a number of 5,000 digits
        raise _Refused(str(error)) from None


def read_yaml(path: Path) -> Any:
    """Plain values from a YAML file. Raises `ConfigError`, one line that names the file."""
    try:
        with path.open("rb") as stream:
            raw = stream.read(4 * _LETTERS + 1)  # no more of a file without end
        return parse_yaml(raw.decode("utf-8-sig"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such config file") from None
    except OSError as error:
        raise ConfigError(f"{path}: not readable: {error.strerror}") from None
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: not readable as YAML: {one_line(error)}") from None


def one_line(error: BaseException) -> str:
    """The message of an error without its line breaks."""
    return " ".join(str(error).split())


@lru_cache(64)  # the settings of a study share their files
def _loaded(text: str) -> Any:
    _check(text)
    return yaml.load(text, _Loader)  # a safe loader


def _apart(value: Any) -> Any:
    """The value, whose parts are nobody else's."""
    if isinstance(value, dict):
        return {key: _apart(one) for key, one in value.items()}
    return [_apart(one) for one in value] if isinstance(value, list) else value


def _check(text: str) -> None:
    """Refuse depth, aliases within themselves, and what unfolds to too much, before anything recurses into it."""
    sizes: dict[str | None, int] = {}
    under_way: list[tuple[str | None, int]] = []  # anchor, and size before, of each open collection
    size = 0
    for event in yaml.parse(text, yaml.SafeLoader):
        if isinstance(event, yaml.AliasEvent):
            if any(anchor == event.anchor for anchor, _ in under_way):
                raise _Refused(f"the alias *{event.anchor} stands within itself")
            size += sizes.get(event.anchor, 1)
        elif isinstance(event, yaml.ScalarEvent):
            size += 1
            sizes[event.anchor] = 1
        elif isinstance(event, yaml.CollectionStartEvent):
            under_way.append((event.anchor, size))
            size += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = under_way.pop()
            sizes[anchor] = size - before
        if len(under_way) > _DEPTH:
            raise _Refused(f"nested more than {_DEPTH} deep")
        if size > _NODES:
            raise _Refused(f"aliases unfold to more than {_NODES:,} values")
