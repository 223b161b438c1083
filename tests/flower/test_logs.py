"""The log: lines of JSON with run, round and client."""

import io
import json
import logging

import pytest

from fedloom.flower import logs
from fedloom.flower.server import serve
from fedloom.flower.wire import Message
from flower_world import DEALT, Faulty, config_of


@pytest.fixture
def lines(monkeypatch):
    """What was logged since, as JSON."""
    stream = io.StringIO()
    monkeypatch.setattr(logs.LOGGER, "handlers", [])
    monkeypatch.setattr("sys.stdout", stream)
    before = logs.LOGGER.level, logs.LOGGER.propagate
    logs.to_stdout()
    logs.to_stdout()  # a second app in one process prints nothing twice
    yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    logs.LOGGER.setLevel(before[0])
    logs.LOGGER.propagate = before[1]


def test_a_run_is_told_line_by_line(nodes_of, lines, tmp_path):
    def lies(request, answer):
        return Message(answer.facts, b"") if (request.do, request.client) == ("train", 2) else answer

    config = config_of(rounds=2)
    result = serve(config, Faulty(nodes_of(config), lies), out=tmp_path / "run")
    found, run = lines(), (tmp_path / "run" / "flower-run").read_text()
    assert {line["run"] for line in found} == {run}
    rounds = [line for line in found if line["event"] == "round"]
    assert [line["round"] for line in rounds] == [1, 2]
    assert sum(line["bytes_up"] for line in rounds) == result.numbers["bytes_up"]
    refused = [line for line in found if line["event"] == "refused"]
    assert [(line["round"], line["client"], line["level"]) for line in refused] == [
        (1, 2, "warning"),
        (2, 2, "warning"),
    ]
    trained = [(line["round"], line["client"]) for line in found if line["event"] == "trained"]
    assert sorted(trained) == [(round_, client) for round_ in (1, 2) for client in range(4)]
    assert found[-1]["event"] == "end"


def test_a_round_s_accuracy_is_that_of_all_clients(nodes_of, lines):
    """Of the main protocol, and of no client that never trains."""
    keys = {"scenario": {**DEALT, "held_out": [0]}, "evaluation": {"protocols": ["personal/local", "personal/global"]}}
    config = config_of("fedper", rounds=1, **keys)
    result = serve(config, Faulty(nodes_of(config), lambda request, answer: answer))
    (told,) = [line for line in lines() if line["event"] == "round"]
    assert told["accuracy"] == result.numbers["accuracy"]


def test_a_line_is_one_line_of_json_whatever_it_tells(lines):
    logs.log("note", {"run": "ab", "client": None, "loss": float("nan")}, 'two\n"lines" %s')
    logs.LOGGER.warning("from %s", "elsewhere")
    first, second = lines()
    assert (first["text"], first["loss"], "client" in first) == ('two\n"lines" %s', None, False)
    assert (second["text"], second["level"]) == ("from elsewhere", "warning")


def test_without_apps_nothing_is_printed(capsys):
    logs.log("refused", {}, "hello", logging.WARNING)
    assert capsys.readouterr() == ("", "")
