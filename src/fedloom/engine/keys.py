"""When two clients do the same: keys of phases, whose functions are made anew for every client."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from torch import Tensor

from fedloom.methods.phases import Collect, Phase, Statistic


def phase_key(phase: Phase) -> Hashable:
    """Equal for phases that do the same, as long as both are alive."""
    if isinstance(phase, Collect):
        return ("collect", _statistics_key(phase.statistics))
    functions = (_function_key(f) for f in (phase.loss, phase.grad_map, phase.project))
    statistics = (_statistics_key(phase.refresh), _statistics_key(phase.collect))
    return ("train", *functions, *statistics, phase.epochs, phase.trains, phase.nets, phase.optimizer)


def _statistics_key(statistics: Mapping[str, Statistic]) -> Hashable:
    return tuple((name, type(statistic), _function_key(statistic.of)) for name, statistic in statistics.items())


def _function_key(function: Any) -> Hashable:
    """Equal for functions that compute the same: methods of one object, or closures over the same values."""
    if function is None or isinstance(function, str):
        return function
    bound = getattr(function, "__self__", None)
    function = getattr(function, "__func__", function)
    code = getattr(function, "__code__", None)
    if code is None:
        return id(function)
    cells = tuple(_value_key(cell.cell_contents) for cell in function.__closure__ or ())
    return id(bound), code, cells, tuple(map(_value_key, function.__defaults__ or ()))


def _value_key(value: Any) -> Hashable:
    return value if isinstance(value, Hashable) and not isinstance(value, Tensor) else id(value)
