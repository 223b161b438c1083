"""The scenario section of a config: skews, splits, and the lines for mistakes."""

from typing import Any

import pytest
import yaml

from fedloom.core.errors import ConfigError
from fedloom.data.scenario import describe_scenario
from fedloom.runs.config.run_config import parse

BASE: dict[str, Any] = {"source": "digits", "partition": "dirichlet", "alpha": 0.5, "clients": 4}
SKEWS = [{"name": "long-tail", "rho": 5}, {"name": "label-noise", "share": 0.2}, {"name": "transforms"}]


def scenario(**keys: Any) -> Any:
    return parse({"scenario": BASE | keys}).scenario


def test_skews_are_listed_with_their_keys_and_reach_the_data() -> None:
    config = scenario(skews=SKEWS, val=0.0)
    assert [type(skew).__name__ for skew in config.build_skews()] == ["LongTail", "LabelNoise", "Transforms"]
    made = config.build(0)
    assert len(made.train.order) < 1442
    assert not (made.train_set.y == scenario(val=0.0).build(0).train_set.y).all()


def test_own_splits_reach_the_data() -> None:
    made = scenario(split={"train": 8, "val": 1, "test": 1, "pool": "all"}).build(0)
    assert len(made.train_set) == 1797
    assert made.test_origin == "train+test"


@pytest.mark.parametrize(
    "keys", [{}, {"skews": SKEWS}, {"split": {"train": 8, "val": 1, "test": 1}}, {"tests": "matched"}], ids=str
)
def test_the_resolved_section_gives_the_same_scenario_again(keys: dict[str, Any]) -> None:
    first = parse({"scenario": BASE | keys})
    again = parse(yaml.safe_load(yaml.safe_dump(first.resolved())))
    assert again.resolved() == first.resolved()
    assert again.fingerprint() == first.fingerprint()
    assert again.scenario.build(0).digest() == first.scenario.build(0).digest()
    if keys:
        assert first.fingerprint() != parse({"scenario": BASE}).fingerprint()


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"skews": [{"name": "longtail", "rho": 5}]}, "unknown skew 'longtail': did you mean 'long-tail'?"),
        ({"skews": [{"rho": 5}]}, "scenario.skews[0]: need a name; known: label-noise, long-tail"),
        ({"skews": [{"name": "long-tail"}]}, "scenario.skews[0].rho is missing"),
        ({"skews": [{"name": "long-tail", "rho": 0.5}]}, "scenario.skews[0].rho = 0.5: input should be greater"),
        ({"skews": [{"name": "ratio", "ratios": 1}]}, "scenario.skews[0].ratio is missing"),
        ({"skews": [{"name": "noise", "sigma": 1, "sgma": 2}]}, "unknown key 'scenario.skews[0].sgma': did you mean"),
        ({"skews": "long-tail"}, "scenario.skews = 'long-tail': "),
        ({"split": {"train": 8}}, "scenario.split.test is missing"),
        ({"split": {"train": 8, "test": 0}}, "scenario.split.test = 0: input should be greater than 0"),
        ({"split": {"train": 8, "test": 1, "pol": "all"}}, "unknown key 'scenario.split.pol': did you mean 'pool'?"),
        ({"split": {"train": 8, "test": 1}, "val": 0.1}, "scenario.val: split states the validation share too"),
        ({"split": {"train": 8, "test": 1}, "tests": "matched"}, "scenario.tests = 'matched': with split"),
        ({"tests": "global"}, "scenario.tests = 'global': input should be 'shares' or 'matched'"),
        ({"partition": "nid3"}, "unknown partition 'nid3': did you mean 'nid2'?"),
    ],
    ids=str,
)
def test_one_clear_line_for_each_mistake(keys: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        scenario(**keys)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_description_counts_without_the_whole_table() -> None:
    config = parse({"scenario": {"source": "digits", "partition": "iid", "clients": 400}}).scenario
    described = describe_scenario(config.build(0))
    assert len(described["class_counts"]) == 200
    assert described["train_samples"] + described["val_samples"] == 1442
    assert described["acceptance"] == 1.0
