"""Lines of the log for people: local time and sentences, whatever the line."""

import json
from datetime import UTC, timedelta, timezone
from typing import Any

import pytest

from fedloom.flower.logs import as_json_line, log_sentence


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
def test_each_event_is_a_sentence_with_the_time(facts: dict[str, Any], sentence: str) -> None:
    line = json.dumps({"time": 0.5, "level": "info", **facts})
    assert log_sentence(line, UTC) == f"00:00:00 {sentence}"
    assert log_sentence(line, timezone(timedelta(hours=2))) == f"02:00:00 {sentence}"
    assert as_json_line(line) == line


@pytest.mark.parametrize(
    "line",
    [
        "keys/ca.crt ends on 2026-12-01, in 6 days",
        "{",
        "[]",
        "{}",
        '{"time": 1e99, "event": "round"}',
        '{"time": 1, "event": "round"}',
    ],
)
def test_any_other_line_stays_as_it_is_and_is_a_note_in_json(line: str) -> None:
    assert log_sentence(line, UTC) == line
    if not line.startswith("{"):
        assert json.loads(as_json_line(line)) == {"event": "note", "text": line}


def test_the_command_tells_people_sentences_and_programs_json(monkeypatch, capsys, tmp_path) -> None:
    import fedloom.flower.up as module
    from fedloom.cli.app import main

    def run(*_: Any, say: Any, **__: Any) -> None:
        say('{"time": 0, "event": "note", "text": "hello"}')
        raise SystemExit(0)

    monkeypatch.setattr(module, "up", run)
    for words, told in (([], "note: hello"), (["--json"], '"event": "note"')):
        with pytest.raises(SystemExit):
            main(["flower", "up", "demo", "--out", str(tmp_path / "run"), *words])
        assert told in capsys.readouterr().err
