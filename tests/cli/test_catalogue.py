"""The command `datasets` explains the keys of a source."""

import json

import pytest

from fedloom.cli.app import main


def test_a_source_is_shown_with_the_meaning_of_each_key(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["datasets", "csv", "--json"])
    assert ended.value.code == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["meanings"].keys() == facts["keys"].keys()
    assert facts["meanings"]["owner"].startswith("Column of the owner of a row")
