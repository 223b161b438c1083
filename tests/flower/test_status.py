"""What a federation's server writes about itself while it runs, waits, ends and fails; and Prometheus' view of it."""

import errno
import itertools
import json

import pytest

from fedloom.core.errors import FedloomError, RunFolderError
from fedloom.flower import status
from fedloom.flower.node_registry import FederationError
from fedloom.flower.server import serve
from fedloom.flower.status import LogRecord, NodeStatus, Status, StatusWriter, read_status
from fedloom.flower.wire import Message
from fedloom.runs.storage.log import new_row
from flower_world import Faulty, Notes, config_of, forged


def test_a_finished_run_says_what_it_did(nodes_of, tmp_path):
    config, seen = config_of(), []
    watch = Notes(lambda round_: seen.append(read_status(tmp_path / "run")))
    result = serve(config, Faulty(nodes_of(config)), out=tmp_path / "run", callbacks=[watch])
    assert [(one.round, one.state) for one in seen] == [(1, "running"), (2, "running"), (3, "running")]
    now = read_status(tmp_path / "run")
    assert (now.state, now.round, now.rounds, now.wait, now.last_error) == ("finished", 3, 3, None, None)
    assert (now.bytes_up, now.bytes_down) == (result.numbers["bytes_up"], result.numbers["bytes_down"])
    assert [(node.client, node.online, node.round) for node in now.nodes] == [(k, True, 3) for k in range(4)]
    assert sum(node.samples for node in now.nodes) == result.numbers["samples"] // 3


def test_for_whom_the_server_waits_and_since_when(nodes_of, tmp_path):
    config, seen = config_of(flower={"round_timeout": 30.0}), []
    looks = forged("train", 1, lambda request, answer: seen.append(read_status(tmp_path / "run")) or answer, rounds=[2])
    serve(config, Faulty(nodes_of(config), looks), out=tmp_path / "run")
    wait = seen[0].wait
    assert (wait.purpose, 1 in wait.clients, seen[0].round) == ("uploads of round 2", True, 1)
    assert wait.since == pytest.approx(seen[0].written, abs=5.0)
    assert wait.until == pytest.approx(wait.since + 30.0, abs=1.0)


def test_refused_uploads_and_the_last_error_are_named(nodes_of, tmp_path):
    config, lies = config_of(), forged("train", 2, lambda request, answer: Message(answer.facts, b"nonsense"))
    serve(config, Faulty(nodes_of(config), lies), out=tmp_path / "run")
    now = read_status(tmp_path / "run")
    assert now.refused == 3
    error = now.last_error
    assert (error.event, error.round, error.client) == ("refused", 3, 2)
    assert "the upload of client 2 is refused" in error.text
    assert [node.round for node in now.nodes] == [3, 3, 0, 3]


def test_a_run_that_ends_without_a_result_says_why(nodes_of, tmp_path):
    config = config_of(flower={"round_timeout": 0.2})
    transport = Faulty(nodes_of(config), lambda request, answer: None if request.round == 2 else answer)
    with pytest.raises(FederationError, match=r"round 2: 0 of 4 clients .* flower.round_timeout = 0.2 s") as caught:
        serve(config, transport, out=tmp_path / "run")
    assert caught.value.exit_code == 1
    now = read_status(tmp_path / "run")
    assert (now.state, now.round) == ("failed", 1)
    assert now.last_error.text.startswith("round 2: 0 of 4 clients sent a usable reply")


@pytest.mark.parametrize("cause", [None, FederationError("too few")], ids=["alone", "beside another error"])
def test_a_full_disk_is_one_line_and_hides_no_other_error(nodes_of, tmp_path, monkeypatch, cause):
    def fills(round_):
        monkeypatch.setattr(status, "write_atomic", full)
        if cause:
            raise cause

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    config, expected = (
        config_of(),
        r"too few|flower-status.json: cannot be written \(No space left on device\); free space",
    )
    with pytest.raises(FedloomError, match=expected) as caught:
        serve(config, Faulty(nodes_of(config)), out=tmp_path / "run", callbacks=[Notes(fills)])
    assert cause in (None, caught.value)
    assert "\n" not in str(caught.value)
    monkeypatch.undo()
    assert serve(config, Faulty(nodes_of(config)), out=tmp_path / "run").numbers["rounds"] == 3


def test_a_run_that_goes_on_counts_the_bytes_before(nodes_of, tmp_path):
    def dies(round_):
        if round_ == 2:
            raise RuntimeError

    config = config_of()
    with pytest.raises(RuntimeError):
        serve(config, Faulty(nodes_of(config)), out=tmp_path / "run", callbacks=[Notes(dies)])
    result = serve(config, Faulty(nodes_of(config)), out=tmp_path / "run")
    now = read_status(tmp_path / "run")
    assert (now.state, now.bytes_up) == ("finished", result.numbers["bytes_up"])


def test_who_cannot_begin_leaves_the_status_of_the_other(nodes_of, tmp_path):
    config = config_of()
    serve(config, Faulty(nodes_of(config)), out=tmp_path / "run")
    before = (tmp_path / "run" / Status.FILE).read_bytes()
    with pytest.raises(RunFolderError, match="another config"):
        serve(config_of(rounds=2), Faulty(nodes_of(config)), out=tmp_path / "run")
    serve(config, Faulty(nodes_of(config)), out=tmp_path / "run")  # finished: nothing runs
    assert (tmp_path / "run" / Status.FILE).read_bytes() == before


def test_a_server_that_waits_gives_signs_of_life_but_not_at_every_look(tmp_path):
    times = iter(range(1000))
    board = StatusWriter(config_of(), tmp_path, clock=lambda: float(next(times)))
    board.begin("ab", 0)
    began, written = read_status(tmp_path).written, set()
    for _ in range(20):
        board.set_wait("nodes", [3], 10.0)
        written.add(read_status(tmp_path).written)
    assert 3 <= len(written - {began}) <= 5
    assert read_status(tmp_path).wait.since < min(written)


def test_words_on_waiting_are_no_error(tmp_path):
    board = StatusWriter(config_of(), tmp_path)
    board.begin("ab", 0)
    board.set_nodes([NodeStatus(client=0, node="7", online=True, samples=3)])
    board.on_note(config_of(), LogRecord("waiting for clients 1", "waiting", round=1))
    board.on_note(config_of(), "the method does nothing")
    assert read_status(tmp_path).last_error is None
    board.on_note(config_of(), LogRecord("round 1: no memory", "failed", round=1, client=0))
    now = read_status(tmp_path)
    assert (now.failures, now.last_error.client) == (1, 0)


def test_rounds_and_clients_have_their_tests_seconds_and_uploads(nodes_of, tmp_path):
    config = config_of(evaluation={"protocol": "personal/local"}, method="local")
    result = serve(config, Faulty(nodes_of(config)), out=tmp_path / "run")
    now = read_status(tmp_path / "run")
    assert [(entry.round, entry.uploads) for entry in now.history] == [(1, 4), (2, 4), (3, 4)]
    assert [entry.value for entry in now.history] == result.curve("accuracy", "test")[1]
    assert all(entry.seconds > 0 for entry in now.history)
    assert all(0 <= node.value <= 1 for node in now.nodes)
    assert now.spread.startswith("accuracy of 4 clients: lowest ")


def test_progress_is_written_at_most_once_a_second_and_cleared(tmp_path):
    clock = [100.0]
    board = StatusWriter(config_of(), tmp_path, clock=lambda: clock[0])
    board.begin("ab", 0)
    board.set_nodes([NodeStatus(client=0, node="7", online=True, samples=3)])
    board.set_progress(0, "downloading", 0.1, bytes_down=10)  # within the second of the last write
    assert read_status(tmp_path).nodes[0].progress is None
    clock[0] = 102.0
    board.set_progress(0, "downloading", 0.2, bytes_down=20)
    clock[0] = 104.0
    board.set_progress(0, "downloading", 0.2, bytes_down=20)  # it does not move
    assert read_status(tmp_path).written == 102.0
    clock[0] = 120.0
    assert board.named([0, 3]) == "0 (downloading 20 %, for 20 s, unchanged for 18 s), 3"
    board.set_progress(0, "training\x1b[2J" + 100 * "x", float("nan"), "epoch 1 of 2")
    now = read_status(tmp_path).nodes[0]
    assert (now.progress.fraction, now.progress.since, len(now.progress.phase)) == (None, 120.0, 80)
    assert "\x1b" not in now.progress.phase
    board.set_progress(0, "uploading", 0.5, bytes_up=5, bytes_down=20)
    clock[0] = 122.0
    board.clear_progress(0)
    now = read_status(tmp_path).nodes[0]
    assert (now.progress, now.bytes_up, now.bytes_down) == (None, 5, 20)


def test_scores_stay_when_the_nodes_are_set_again(tmp_path):
    board = StatusWriter(config_of(), tmp_path, clock=itertools.count(0.0, 2.0).__next__)
    board.begin("ab", 0)
    board.set_nodes([NodeStatus(client=0, node="7", online=True, samples=3)])
    board.set_scores(0, {"cosine": -0.98, "length": float("inf"), "outlier": True})
    board.set_nodes([NodeStatus(client=0, node="8", online=False, samples=3)])
    now = read_status(tmp_path).nodes[0]
    assert (now.node, now.scores, now.outlier) == ("8", {"cosine": -0.98, "length": None}, True)


def test_a_long_run_keeps_a_bounded_history(tmp_path):
    board = StatusWriter(config_of(), None)
    for round_ in range(1, 2001):
        board.on_round(config_of(), round_, [new_row(round_, "participants", 3.0)])
    rounds = [entry.round for entry in board.status.history]
    assert len(rounds) <= 500
    assert rounds == sorted(rounds)
    assert rounds[0] == 1
    assert rounds[-100:] == [*range(1901, 2001)]


def test_a_status_of_the_version_before_can_be_read(tmp_path):
    text = {"version": 2, "run": "ab", "method": "fedavg", "started": 1.0, "written": 2.0, "rounds": 3}
    node = {"client": 0, "node": "7", "online": True, "samples": 3, "round": 1}
    (tmp_path / "flower-status.json").write_text(json.dumps(text | {"nodes": [node]}))
    assert read_status(tmp_path).nodes[0].progress is None


def test_no_status_and_a_damaged_one_are_named(tmp_path):
    with pytest.raises(RunFolderError, match="name the folder of a run over Flower"):
        read_status(tmp_path)
    (tmp_path / Status.FILE).write_text(json.dumps({"version": 2}))
    with pytest.raises(RunFolderError, match="damaged; it may be of another version"):
        read_status(tmp_path)
