"""Differences between the config of a run folder and another config, as a short text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fedloom.runs.config.execution_keys import changes_numbers

_UNNAMED = "settings.."  # before the keys of a study that names no setting
_LISTED, _LONGEST = 3, 40


def difference(stored: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    """Return the first keys that differ, with both values; empty if a run of `stored` may be resumed with `config`."""
    stored_values, values = dict(_leaves(stored)), dict(_leaves(config))
    keys = [key for key in sorted({*stored_values, *values}) if stored_values.get(key) != values.get(key)]
    keys = [key for key in keys if changes_numbers(key)]
    differences = [
        f"{key.removeprefix(_UNNAMED)}: {_short(stored_values.get(key))} there, {_short(values.get(key))} here"
        for key in keys[:_LISTED]
    ]
    return "; ".join([*differences, *([f"{len(keys) - _LISTED} more"] if len(keys) > _LISTED else [])])


def _leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _short(value: Any) -> str:
    text = "nothing" if value is None else str(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
