"""One list says which keys cannot change a number, and everything that compares configs goes by it."""

import pytest

from fedloom.runs.config.run_config import RunConfig, parse
from fedloom.runs.storage.schemas import EXECUTION, changes_numbers, difference
from fedloom.runs.studies.plan import relevant

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
