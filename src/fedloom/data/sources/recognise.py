"""Any data that are at hand, recognised by what they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedloom.core.errors import DataError
from fedloom.data.sources.hf import from_huggingface
from fedloom.data.sources.python import from_arrays, from_clients, from_torch, is_pair
from fedloom.data.sources.source import Splits

_KNOWN = (
    "the name of a source, a pair of arrays (x, y), a torch Dataset of (sample, label), a list of such datasets (one a "
    "client), a Hugging Face Dataset, or what fedloom.data.from_arrays and its like give"
)


def splits_from(data: Any) -> Splits:
    """Splits from what `fedloom.scenario` is given. Raises `DataError` for what is none of the kinds it knows."""
    if isinstance(data, Splits):
        return data
    if type(data).__module__.partition(".")[0] == "datasets":
        return from_huggingface(data)
    if is_pair(data):
        return from_arrays(*data)
    if isinstance(data, list) and data and (is_pair(data[0]) or _is_dataset(data[0])):
        return from_clients(data)
    if isinstance(data, list) or _is_dataset(data):
        return from_torch(data)
    raise DataError(f"fl.scenario: a {type(data).__name__} is no data that it knows; need {_KNOWN}")


def _is_dataset(data: Any) -> bool:
    """Whether items are read by number, as of a torch Dataset; not so of words, arrays and tables."""
    items = hasattr(data, "__getitem__") and not hasattr(data, "keys") and not hasattr(data, "shape")
    return items and not isinstance(data, Sequence)
