"""States of metrics from another machine: plain numbers and lists, checked before they count."""

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor

from fedloom.evaluation.metric import Metric, MetricStates, field_names

_LARGEST = 2**53  # of a count; a float64 holds it exactly


def states_from_plain(plain: MetricStates, example: MetricStates) -> MetricStates:
    """Return the states that another machine sent as plain values of `core.records.to_plain`; types, dtypes and shapes
    must be those of `example`. Raises `ValueError` for others, and the errors of metrics that cannot use them."""
    reported, total = cast(Mapping[str, Mapping[str, Any]], plain.states), plain.total
    # States come from batches, so a test without samples has none.
    names = example.states.keys() if total else set[str]()
    if reported.keys() != names:
        raise ValueError(f"states of {', '.join(sorted(reported)) or 'no metric'}; need {', '.join(sorted(names))}")
    states = {name: _state(name, reported[name], example.states[name], total) for name in example.states if total}
    return MetricStates(total, states)


def _state(name: str, plain: Mapping[str, Any], example: Metric, total: int) -> Metric:
    keys = field_names(type(example))
    if tuple(plain) != keys:
        raise ValueError(f"{name}: need the fields {', '.join(keys)}")
    state = type(example)(*(_field(f"{name}.{key}", plain[key], getattr(example, key)) for key in keys))
    state.check(total)
    state.compute()  # a state that it cannot take would end the run later
    return state


def _field(name: str, value: Any, example: Any) -> Any:
    if isinstance(example, Tensor):
        if not isinstance(value, list):
            raise ValueError(f"{name}: need a list of numbers")
        tensor = torch.tensor(value, dtype=torch.float64)
        if not tensor.numel() and not example.numel():
            return example  # lists lose the shape of a tensor without entries
        if tensor.shape != example.shape:
            raise ValueError(f"{name}: shape {list(tensor.shape)}; need {list(example.shape)}")
        if not example.is_floating_point() and not bool((tensor.abs() <= _LARGEST).all() and (tensor % 1 == 0).all()):
            raise ValueError(f"{name}: need whole numbers up to {_LARGEST}")
        return tensor.to(example.dtype)
    kind = type(example)
    # Not isinstance, which takes a bool for an int.
    if type(value) is not kind and not (kind is float and type(value) is int):
        raise ValueError(f"{name}: need {kind.__name__}")
    if kind is str and value != example:
        raise ValueError(f"{name}: {value[:99]!r}; need {example!r}")
    if kind is int and abs(value) > _LARGEST:
        raise ValueError(f"{name}: need at most {_LARGEST}")
    return kind(value)
