"""How two configs differ, and which keys cannot change a number."""

from typing import Any

import pytest

from fedloom.runs.config.run_config import RunConfig, parse
from fedloom.runs.storage.schemas import EXECUTION, changes_numbers, difference
from fedloom.runs.studies.plan import relevant

HERE = {"rounds": 3, "optimizer": {"lr": 0.1, "name": "sgd"}, "engine": {"workers": 2}, "scenario": {"alpha": 0.1}}


def test_single_keys_are_named() -> None:
    there = {**HERE, "optimizer": {"lr": 0.5, "name": "sgd"}, "engine": {"workers": 3}}
    assert difference(there, HERE) == "optimizer.lr: 0.5 there, 0.1 here"
    assert difference(HERE, HERE | {"engine": "serial", "checkpoint": {"keep": 9}}) == ""


def test_keys_of_a_study_without_named_settings_are_told_as_it_has_them() -> None:
    def settings(name: str, rounds: int) -> dict[str, Any]:
        return {"settings": {name: {"rounds": rounds}}}

    assert difference(settings("", 12), settings("", 10)) == "rounds: 12 there, 10 here"
    assert difference(settings("a", 12), settings("a", 10)) == "settings.a.rounds: 12 there, 10 here"


def test_a_key_that_is_missing() -> None:
    assert (
        difference(HERE, HERE | {"scenario": {}})
        == "scenario: nothing there, {} here; scenario.alpha: 0.1 there, nothing here"
    )


def test_long_ones_are_short() -> None:
    plain = {"scenario": {"source": "digits", "partition": "iid", "clients": 3}}
    skews = [{"name": "noise", "sigma": 0.5}] * 30
    one = parse(plain | {"method": "fedsc"}).resolved()
    other = parse(
        {"scenario": {**plain["scenario"], "partition": "dirichlet", "alpha": 1.0, "skews": skews}, "rounds": 7}
    ).resolved()
    told = difference(one, other)
    assert len(told) < 250
    assert told.endswith(" more")


CONFIG = {"scenario": {"source": "digits", "partition": "iid", "clients": 4}}
OTHER = {"engine": "serial", "checkpoint": {"seconds": 9}, "flower": {"round_timeout": 9.0}}


def test_every_section_is_one_of_a_config():
    assert set(RunConfig.model_fields) >= EXECUTION
    assert set(OTHER) == EXECUTION


@pytest.mark.parametrize("section", sorted(OTHER))
def test_a_section_that_changes_no_number_is_no_difference_anywhere(section):
    plain, changed = parse(CONFIG), parse({**CONFIG, section: OTHER[section]})
    assert plain.fingerprint() == changed.fingerprint()
    assert difference(plain.resolved(), changed.resolved()) == ""
    assert relevant({"settings": {"a": {section: OTHER[section]}}}) == relevant({"settings": {"a": {}}})


def test_a_key_whose_name_begins_like_a_section_changes_numbers():
    assert changes_numbers("engineering")
    assert not changes_numbers("engine.workers")
