"""`fedloom flower status`: for people, for machines, of dead and of finished runs."""

import json
import math
import socket
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from command_line import call
from fedloom.flower.status import LogRecord, NodeStatus, StatusWriter
from flower_world import config_of

CONFIG = """
method: fedavg
model: mlp
scenario: {source: digits, partition: dirichlet, alpha: 0.5, clients: 2}
rounds: 1
"""


@pytest.fixture
def board(tmp_path: Path) -> StatusWriter:
    """Of a run that waits since an hour, and whose server was last heard of then."""
    then = datetime.now(UTC).timestamp() - 3600.0
    made = StatusWriter(config_of(), tmp_path / "run", clock=lambda: then)
    made.begin("ab12", 1)
    made.set_nodes(
        [
            NodeStatus(client=0, node="7", online=True, samples=30),
            NodeStatus(client=1, node="8", online=False, samples=40),
        ]
    )
    made.on_note(
        config_of(), LogRecord("round 2: the upload of client 1 is refused: NaN", "refused", round=2, client=1)
    )
    made.set_wait("uploads of round 2", [1], 600.0)
    return made


def test_a_page_for_people(board, tmp_path, capsys):
    code, out, _ = call(capsys, "flower", "status", str(tmp_path / "run"))
    assert code == 0
    assert "fedavg, run ab12: running, round 1 of 3" in out
    assert "last written 360" in out  # seconds; a slow machine needs some for the imports
    assert "the server has died, or a step takes long" in out
    assert "waits for uploads of round 2 of clients 1: since 0 s, at most 600 s more" in out
    assert "refused: 1; exceptions of clients: 0" in out
    board.set_wait("tests of round 2", [1], math.inf)  # round_timeout: null
    assert (
        "waits for tests of round 2 of clients 1: since 0 s\n"
        in call(capsys, "flower", "status", str(tmp_path / "run"))[1]
    )
    assert "the upload of client 1 is refused: NaN" in out
    assert [line.split()[:3] for line in out.splitlines() if line.split()[2:3] in (["30"], ["40"])] == [
        ["0", "yes", "30"],
        ["1", "no", "40"],
    ]


def test_a_failed_start_and_what_a_client_does_are_named(board, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")  # a narrow terminal breaks cells
    board.set_scores(0, {"cosine": -0.5, "outlier": True})
    board.set_progress(1, "training", 0.5, "epoch 1 of 2", bytes_down=2_000_000)
    board.set_wait("tests of round 2", [1], 600.0)
    failure = {"error": "client 1 failed", "traceback": "in train\n  ZeroDivisionError: \x1b[2J", "exit_code": 1}
    (tmp_path / "run" / "flower-failed.json").write_text(json.dumps(failure))
    _, out, _ = call(capsys, "flower", "status", str(tmp_path / "run"))
    assert "flower-failed.json: client 1 failed; ZeroDivisionError: \\x1b[2J" in out
    words = " ".join(out.split())
    assert "stands out, cosine -0.5" in words
    assert "training 50 %, epoch 1 of 2, for 0 s" in words
    assert "2.00 MB" in words
    (tmp_path / "run" / "flower-status.json").unlink()
    code, _, err = call(capsys, "flower", "status", str(tmp_path / "run"))
    assert code == 2
    assert "the run failed before it began: client 1 failed" in err


def test_json_for_machines(board, tmp_path, capsys):
    code, out, _ = call(capsys, "flower", "status", str(tmp_path / "run"), "--json")
    told = json.loads(out)
    assert (code, told["round"], told["wait"]["clients"], told["refused"]) == (0, 1, [1], 1)
    assert told["age_seconds"] == pytest.approx(3600.0, abs=60.0)
    assert told["certificates"] == []


def test_watching_ends_with_the_run(board, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("fedloom.cli.flower._WATCH_SECONDS", 0.05)
    timer = threading.Timer(1.0, board.set_failed, [RuntimeError("no disk")])
    timer.start()
    code, out, _ = call(capsys, "flower", "status", str(tmp_path / "run"), "--watch", "--json")
    timer.join()
    states = [json.loads(line)["state"] for line in out.splitlines()]
    assert code == 0
    assert states[:2] == ["running", "running"]
    assert states[-1] == "failed"


def test_certificates_near_their_end_are_named(board, tmp_path, capsys, monkeypatch):
    pytest.importorskip("cryptography", reason="needs the extra flower")
    from fedloom.flower import certificates

    monkeypatch.setattr(certificates, "_DAYS", 10)
    certificates.create(tmp_path / "run.flower" / "keys", ["127.0.0.1"], 0)
    _, out, _ = call(capsys, "flower", "status", str(tmp_path / "run"))
    end = datetime.now(UTC) + timedelta(days=10, minutes=-5)
    assert f"server.crt ends on {end:%Y-%m-%d}, in 9 days" in out


def test_a_folder_without_a_status_is_named(tmp_path, capsys):
    for command in ("status", "metrics"):
        code, _, err = call(capsys, "flower", command, str(tmp_path))
        assert code in (1, 2)
        assert err.startswith("error: ")
        assert len(err.splitlines()) == 1


def test_a_run_with_its_page_names_the_address_or_the_port_in_use(tmp_path, capsys):
    (tmp_path / "c.yaml").write_text(CONFIG)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        words = ["run", str(tmp_path / "c.yaml"), "--watch", "--port", port, "--out", str(tmp_path / "run")]
        code, _, err = call(capsys, *words)
        assert (code, len(err.splitlines())) == (2, 1)
        assert f"port {port} of 127.0.0.1 cannot be used" in err
        assert not (tmp_path / "run").exists()
    code, _, err = call(capsys, *words)
    assert code == 0
    assert f"http://127.0.0.1:{port}/ shows this run" in err


def test_a_federation_ends_with_the_report_of_a_simulation(tmp_path, capsys):
    (tmp_path / "c.yaml").write_text(CONFIG)
    out = tmp_path / "run"
    code, _, _ = call(capsys, "flower", "up", str(tmp_path / "c.yaml"), "--in-process", "--out", str(out), "--json")
    assert code == 0
    page = (out / "report.html").read_bytes()
    call(capsys, "report", str(out))
    assert (out / "report.html").read_bytes() == page


def test_an_exception_of_a_client_ends_with_its_traceback_and_a_code(tmp_path, capsys, monkeypatch):
    from fedloom.methods import METHODS

    def broken(self, *given):
        raise ZeroDivisionError("in the hospital")

    (tmp_path / "c.yaml").write_text(CONFIG)
    monkeypatch.setattr(METHODS.get("fedavg"), "end", broken)
    words = ["flower.max_failures=0", "--in-process", "--out", str(tmp_path / "run")]
    code, _, err = call(capsys, "flower", "up", str(tmp_path / "c.yaml"), *words)
    assert code == 1
    assert "in broken" in err
    assert err.splitlines()[-1].startswith("error: fedavg: client 0 failed in round 1")
    assert "in the hospital" in call(capsys, "flower", "status", str(tmp_path / "run"))[1]
