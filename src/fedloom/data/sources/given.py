"""Splits from data that Python code passes."""

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from fedloom.core.errors import DataError
from fedloom.data.sources.hf import from_huggingface
from fedloom.data.sources.python import from_arrays, from_clients, from_torch, is_pair
from fedloom.data.sources.source import Source, Splits, source

_SUPPORTED_DATA = (
    "the name of a source, a pair of arrays (x, y), a torch Dataset of (sample, label), a list of such datasets (one a "
    "client), a Hugging Face Dataset, or the result of fedloom.data.from_arrays and its like"
)


def splits_from(data: Any) -> Splits:
    """Recognise the data passed to `fedloom.scenario` by their type. Raises `DataError` for unsupported types."""
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
    raise DataError(f"fl.scenario: cannot read a {type(data).__name__} as data; need {_SUPPORTED_DATA}")


def _is_dataset(data: Any) -> bool:
    """Whether `data` is indexed by row, as a torch Dataset is; texts, arrays and tables are not counted."""
    by_row = hasattr(data, "__getitem__") and not hasattr(data, "keys") and not hasattr(data, "shape")
    return by_row and not isinstance(data, Sequence)


@source("given")
class InMemory(Source):
    """A `Scenario` made in Python and passed to `fedloom.run`. It cannot be read again from its config."""

    digest: str = Field(description="Fingerprint of the scenario; a run folder can only be resumed with the same data.")

    def load(self) -> Splits:
        raise DataError(
            "source given: this run used a scenario made in Python; pass the same scenario to fedloom.run to resume it"
        )
