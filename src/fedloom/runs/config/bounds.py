"""Upper bounds for the numbers of a config or a study. A larger number is a typing error: its run would not end."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from fedloom.core.errors import ConfigError

MAX_RUNS = 100_000  # of a comparison, of a study, and of its tuning
MAX_TRIES = 10_000  # of each group of cells in tuning

_LARGEST_INTEGER = 2**31 - 1  # rounds are stored as 32-bit integers
_LARGEST = 1e38  # of what nets compute with
# By the last word of a key. Rounds may be many where early stopping ends a run.
_BY_WORD: dict[str, float] = {
    "rounds": 10_000_000,
    "every": 10_000_000,
    "k": 10_000_000,
    "patience": 10_000_000,
    "steps": 10_000_000,
    "epochs": 100_000,
    "pretraining": 100_000,
    "episodes": 10_000_000,
    "keep": 1_000_000,
    "workers": 100_000,
    "stack": 1_000_000,
    "seconds": 1e9,
    "timeout": 1e9,
}
# Seeds are large by intention; more clients than samples are refused with the number of samples.
_FREE = ("seed", "clients")


def refuse_absurd(values: Mapping[str, Any]) -> None:
    """Raises `ConfigError` for the first number of a config's plain values that is larger than any run needs."""
    for key, value in _numbers(values):
        last_name = key.rpartition(".")[2]
        largest = _BY_WORD.get(last_name.rpartition("_")[2], _LARGEST if isinstance(value, float) else _LARGEST_INTEGER)
        if last_name not in _FREE and math.isfinite(value) and abs(value) > largest:
            raise ConfigError(f"{key} = {value!r:.40}: need a number up to {largest:,.0f}")


def refuse_many(subject: str, counts: Iterable[int], largest: int = MAX_RUNS) -> None:
    """Raise `ConfigError` for too many combinations.

    Args:
        subject: name of what is counted, for the message.
        counts: numbers of values, whose product is the number of combinations.
        largest: the largest product that is allowed.
    """
    count = math.prod(counts)
    if count > largest:
        raise ConfigError(f"{subject}: {count:,} combinations, more than {largest:,}; shorten a list, or split them up")


def _numbers(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, int | float]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{prefix}{key}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{prefix}{key}", value
