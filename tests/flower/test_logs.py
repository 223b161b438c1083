"""The log: lines of JSON with run, round and client, and the same lines as sentences for people."""

import io
import json
import logging
from datetime import UTC, timedelta, timezone

import pytest

from fedloom.flower import logs
from fedloom.flower.logs import as_json_line, log_sentence
from fedloom.flower.server import serve
from fedloom.flower.status import LOGGER
from fedloom.flower.wire import Message
from flower_world import DEALT, Faulty, config_of, forged


@pytest.fixture
def lines(monkeypatch):
    """What was logged since, as JSON."""
    stream = io.StringIO()
    monkeypatch.setattr(LOGGER, "handlers", [])
    monkeypatch.setattr("sys.stdout", stream)
    before = LOGGER.level, LOGGER.propagate
    logs.to_stdout()
    logs.to_stdout()  # a second app in one process prints nothing twice
    yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    LOGGER.setLevel(before[0])
    LOGGER.propagate = before[1]


def test_a_run_is_told_line_by_line(nodes_of, lines, tmp_path):
    """The accuracy of a round is that of all clients in the main protocol, and of no client that never trains."""
    keys = {"scenario": {**DEALT, "held_out": [0]}, "evaluation": {"protocols": ["personal/local", "personal/global"]}}
    config = config_of("fedper", rounds=2, **keys)
    lies = forged("train", 2, lambda request, answer: Message(answer.facts, b""))
    result = serve(config, Faulty(nodes_of(config), lies), out=tmp_path / "run")
    found, run = lines(), (tmp_path / "run" / "flower-run").read_text()
    assert {line["run"] for line in found} == {run}
    rounds = [line for line in found if line["event"] == "round"]
    assert [line["round"] for line in rounds] == [1, 2]
    assert sum(line["bytes_up"] for line in rounds) == result.numbers["bytes_up"]
    assert rounds[-1]["accuracy"] == result.numbers["accuracy"]
    refused = [line for line in found if line["event"] == "refused"]
    assert [tuple(line[key] for key in ("round", "client", "level")) for line in refused] == [
        (1, 2, "warning"), (2, 2, "warning"),
    ]  # fmt: skip
    trained = [(line["round"], line["client"]) for line in found if line["event"] == "trained"]
    assert sorted(trained) == [(round_, client) for round_ in (1, 2) for client in range(3)]
    assert found[-1]["event"] == "end"


def test_a_line_is_one_line_of_json_whatever_it_tells(lines):
    logs.log("note", {"run": "ab", "client": None, "loss": float("nan")}, 'two\n"lines" %s')
    LOGGER.warning("from %s", "elsewhere")
    first, second = lines()
    assert (first["text"], first["loss"], "client" in first) == ('two\n"lines" %s', None, False)
    assert (second["text"], second["level"]) == ("from elsewhere", "warning")


def test_without_apps_nothing_is_printed(capsys):
    logs.log("refused", {}, "hello", logging.WARNING)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("facts", "sentence"),
    [
        ({"event": "start", "run": "a", "round": 0, "rounds": 9}, "run a begins, with 9 rounds"),
        ({"event": "start", "run": "a", "round": 4, "rounds": 9}, "run a continues after round 4 of 9 rounds"),
        (
            {"event": "round", "round": 2, "rounds": 9, "accuracy": 0.5, "bytes_down": 8_385_200, "seconds_total": 1.8},
            "round 2 of 9: accuracy 50.0 %, 8.39 MB down, in 1.80 s",
        ),
        ({"event": "round", "round": 2, "rounds": 9, "accuracy": None}, "round 2 of 9"),
        ({"event": "refused", "round": 2, "client": 0, "text": "too large"}, "round 2, client 0: refused: too large"),
        ({"event": "note", "text": "a small set"}, "note: a small set"),
        ({"event": "trained", "round": 1, "client": 3}, "round 1, client 3: trained"),
        (
            {"event": "end", "run": "a", "round": 9, "accuracy": 0.75},
            "run a has finished round 9, the last one: accuracy 75.0 %",
        ),
        ({"event": "refused", "text": "red \x1b[31m"}, "refused: red \\x1b[31m"),
    ],
)
def test_each_event_is_a_sentence_with_the_time(facts, sentence):
    line = json.dumps({"time": 0.5, "level": "info", **facts})
    assert log_sentence(line, UTC) == f"00:00:00 {sentence}"
    assert log_sentence(line, timezone(timedelta(hours=2))) == f"02:00:00 {sentence}"
    assert as_json_line(line) == line


OTHER = ["keys/ca.crt ends on 2026-12-01, in 6 days", "[]", "{", "{}", '{"time": 1e99, "event": "round"}']


@pytest.mark.parametrize("line", [*OTHER, '{"time": 1, "event": "round"}'])
def test_any_other_line_stays_as_it_is_and_is_a_note_in_json(line):
    assert log_sentence(line, UTC) == line
    if not line.startswith("{"):
        assert json.loads(as_json_line(line)) == {"event": "note", "text": line}


def test_the_command_tells_people_sentences_and_programs_json(monkeypatch, capsys, tmp_path):
    import fedloom.flower.up as module
    from fedloom.cli.app import main

    def run(*_, say, **__):
        say('{"time": 0, "event": "note", "text": "hello"}')
        raise SystemExit(0)

    monkeypatch.setattr(module, "up", run)
    for words, told in (([], "note: hello"), (["--json"], '"event": "note"')):
        with pytest.raises(SystemExit):
            main(["flower", "up", "demo", "--out", str(tmp_path / "run"), *words])
        assert told in capsys.readouterr().err
