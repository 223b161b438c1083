"""What tuning tries: combinations of lists, or points of ranges that are the same for every method."""

import builtins
from typing import Any

import pytest

from fedloom.core.errors import ConfigError
from fedloom.runs.studies.plan import parse_study
from fedloom.runs.studies.search_space import read_space, tried_in
from fedloom.runs.studies.tuning import trials_of

RATE = {"optimizer.lr": {"low": 0.001, "high": 0.1, "log": True}}


def test_lists_are_combined() -> None:
    space = read_space({"a": [1, 2], "b": [None, "x"]})
    assert tried_in(space, None) == [{"a": a, "b": b} for a in (1, 2) for b in (None, "x")]


def test_keys_may_stand_in_sections_as_in_a_config() -> None:
    nested = {"optimizer": {"lr": RATE["optimizer.lr"], "momentum": [0, 0.9]}, "a": {"b": {"low": [1, 2]}}, "c": [3]}
    dotted = {**RATE, "optimizer.momentum": [0, 0.9], "a.b.low": [1, 2], "c": [3]}
    assert read_space(nested) == read_space(dotted)


def test_points_spread_over_a_logarithmic_range() -> None:
    rates = [point["optimizer.lr"] for point in tried_in(read_space(RATE), 32)]
    assert len(set(rates)) == 32
    assert all(0.001 <= rate <= 0.1 for rate in rates)
    assert 12 <= sum(rate < 0.01 for rate in rates) <= 20  # half of them below the middle of the exponents
    assert all(rate == float(f"{rate:.4g}") for rate in rates)


def test_few_points_are_spread_too() -> None:
    points = tried_in(read_space({"batch_size": [32, 64], **RATE}), 4)
    assert sorted(point["batch_size"] for point in points) == [32, 32, 64, 64]
    assert sum(point["optimizer.lr"] < 0.01 for point in points) == 2


def test_ranges_go_with_lists_and_whole_numbers() -> None:
    space = read_space({"local_epochs": {"low": 1, "high": 3}, "batch_size": [16, 32], **RATE})
    points = tried_in(space, 24)
    assert {point["local_epochs"] for point in points} == {1, 2, 3}
    assert {point["batch_size"] for point in points} == {16, 32}
    assert points == tried_in(space, 24)  # the same on every machine
    assert points[:5] == tried_in(space, 5)  # more tries go on from fewer


def test_every_method_tries_the_same_points() -> None:
    study = parse_study(
        {
            "scenario": {"source": "digits", "partition": "iid", "clients": 2, "val": 0.1},
            "methods": ["fedavg", "fedsc"],
            "tune": RATE,
            "tries": 6,
            "seeds": 1,
        }
    )
    fedavg, fedsc = ([trial.tried for trial in trials_of(study, cell)] for cell in study.cells)
    assert len(fedavg) == 6
    assert fedavg == fedsc
    again = parse_study(study.values)
    assert (again.hash, again.tried) == (study.hash, study.tried)


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"tune": RATE}, "tune.optimizer.lr is a range: say with tries"),
        ({"tune": {"optimizer.lr": [0.1]}, "tries": 4}, "tries = 4: there is no range in tune"),
        ({"tune": RATE, "tries": 0}, "tries = 0"),
        ({"tune": {"optimizer.lr": 0.1}}, "tune.optimizer.lr = 0.1: need a list of values, or a range"),
        ({"tune": {"optimizer.lr": {"low": 0.1, "high": 0.1}}, "tries": 4}, "low = 0.1, high = 0.1: need two numbers"),
        ({"tune": {"optimizer.lr": {"low": 0, "high": 1, "log": True}}, "tries": 4}, "begins above 0"),
        ({"tune": {"optimizer.lr": {"low": 0.1}}, "tries": 4}, "tune.optimizer.lr.high is missing"),
        ({"tune": {"optimizer.lr": {"low": 0.1, "high": 1, "logs": True}}, "tries": 4}, "logs"),
        ({"tune": {"optimizer.lr": {"low": 0.1, "high": 1, 3: True}}, "tries": 4}, "tune.optimizer.lr.3 = "),
        ({"tune": {"optimizer": {"lr": 0.1}}}, "tune.optimizer.lr = 0.1: need a list of values, or a range"),
        ({"tune": {"optimizer": {}}}, "tune.optimizer = {}: need a list of values, or a range"),
        (
            {"tune": {"optimizer.lr": [0.1], "optimizer": {"lr": [0.2]}}},
            "tune.optimizer.lr stands twice, with dots and in a section; name it once",
        ),
    ],
)
def test_what_cannot_be_tried_is_one_line(keys: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_study({"methods": ["fedavg"], "scenario": {"source": "digits"}} | keys)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_ranges_without_optuna_name_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    imported = builtins.__import__

    def missing(name: str, *rest: Any, **named: Any) -> Any:
        if name.partition(".")[0] == "optuna":
            raise ImportError(name)
        return imported(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(ConfigError, match=r"pip install 'fedloom\[tune\]'"):
        tried_in(read_space(RATE), 2)
