"""Refuses true and false where a config needs a number: Python reads them as 1 and 0."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedloom.core.errors import ConfigError


def refuse_booleans(written: Any, read: Any, path: str = "") -> None:
    """Raise `ConfigError` for the first true or false that was read as a number.

    Args:
        written: values as they were written: mappings, lists and single values.
        read: the same values after their check, at the same places; more may stand beside them.
        path: the key of both with dots, for the message.

    Example:
        >>> refuse_booleans({"rounds": [True]}, {"rounds": (1,)})
        Traceback (most recent call last):
        fedloom.core.errors.ConfigError: rounds.0 = True: need a number, as 1; true would be read as 1
        >>> refuse_booleans({"mask": True}, {"mask": True})
    """
    if isinstance(written, bool):
        if isinstance(read, int | float) and not isinstance(read, bool):
            word = str(written).lower()
            raise ConfigError(f"{path} = {written}: need a number, as {read:g}; {word} would be read as {read:g}")
    elif isinstance(written, Mapping) and isinstance(read, Mapping):
        for key, value in written.items():
            refuse_booleans(value, read.get(key), f"{path}.{key}" if path else str(key))
    elif _is_list(written) and _is_list(read):
        for index, (value, found) in enumerate(zip(written, read, strict=False)):
            refuse_booleans(value, found, f"{path}.{index}")


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)
