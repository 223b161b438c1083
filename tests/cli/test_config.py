"""The command `config` names every key, for people and for programs, and leaves the start-up light."""

import json

from command_line import call
from fedloom.runs.config.reference import config_keys


def test_every_key_is_printed_with_its_meaning(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "2000")  # no line is broken
    code, out, _ = call(capsys, "config")
    assert code == 0
    for key in config_keys():
        assert key.path in out
        assert key.meaning in out


def test_a_narrow_terminal_cuts_nothing_off(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert "…" not in call(capsys, "config", "scenario.path")[1]


def test_a_key_is_explained_alone_in_words_and_as_json(capsys):
    code, out, _ = call(capsys, "config", "optimizer.lr")
    assert code == 0
    assert "0.05" in out
    assert "optimizer.momentum" not in out
    (key,) = json.loads(call(capsys, "config", "participation", "--json")[1])["keys"]
    assert (key["path"], key["default"], key["required"], key["part"]) == ("participation", 1.0, False, "")


def test_the_schema_is_of_a_whole_config(capsys):
    code, out, _ = call(capsys, "config", "--schema")
    assert code == 0
    assert json.loads(out)["properties"]["rounds"]["default"] == 30
