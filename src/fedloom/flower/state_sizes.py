"""How long the facts of a test may be: what the states of its metrics need at most, which grows with the classes."""

from __future__ import annotations

from typing import Any

from fedloom.core.errors import ConfigError
from fedloom.core.records import to_plain
from fedloom.evaluation import Evaluator
from fedloom.flower.wire import MAX_FACTS

_FLOAT = 26  # characters of a number in JSON, with a comma: "-1.7976931348623157e+308, "
_COUNT = 19  # of a count up to 2^53: "9007199254740992, "
_BRACKETS = 4  # around a list or a mapping, with a comma
_MOST = 1 << 28  # characters that the server reads of one test: a quarter of a GiB


def facts_limit(evaluator: Evaluator, tests: int | None = None) -> int:
    """Return how many characters the facts of a client's test may have.

    Args:
        evaluator: says which metrics a test has.
        tests: number of tests in one reply; None for one of each predictor.

    Raises `ConfigError` if the metrics need more than the server reads.
    """
    by_metric = {name: _characters(to_plain(state)) for name, state in evaluator.example_states().states.items()}
    limit = MAX_FACTS + (tests or len(evaluator.names)) * sum(by_metric.values())
    if limit > _MOST:
        name, need = max(by_metric.items(), key=lambda entry: entry[1])
        raise ConfigError(
            f"evaluation.metrics: a test may need {limit:,} characters over Flower, {need:,} of them for {name} with "
            f"{evaluator.scenario.num_classes:,} classes, and {_MOST:,} are allowed; leave this metric out"
        )
    return limit


def _characters(plain: Any) -> int:
    """Return the most characters of a value in JSON that has the shape of `plain`."""
    if isinstance(plain, dict):
        return _BRACKETS + sum(len(name) + _BRACKETS + _characters(value) for name, value in plain.items())
    if isinstance(plain, list):
        if plain and not isinstance(plain[0], list | dict):
            return _BRACKETS + _characters(plain[0]) * len(plain)
        return _BRACKETS + sum(map(_characters, plain))
    return _FLOAT if isinstance(plain, float) else _COUNT
