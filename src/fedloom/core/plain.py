"""Dataclasses as the values that JSON has."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor


def to_plain(value: Any) -> Any:
    """Return dataclasses and mappings as dicts, sequences and tensors as lists, and other values as they are."""
    if dataclasses.is_dataclass(value):
        return {field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: to_plain(element) for key, element in value.items()}
    if isinstance(value, Tensor):
        return value.tolist()
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [to_plain(element) for element in value]
    return value
