"""Bad links: parts that are lost, replies that do not come, nodes that stand still, and nodes that lie about it."""

import itertools
import json
import threading
import time

import pytest

from fedloom.flower.in_process import run_in_process
from fedloom.flower.inbox import Inbox
from fedloom.flower.links import Links, Stalled
from fedloom.flower.node_registry import FederationError
from fedloom.flower.server import serve
from fedloom.flower.status import StatusWriter, read_status
from fedloom.flower.transport import InProcessTransport
from fedloom.flower.wire import ErrorReply, Message, Parts, ProgressReply, Request, read
from fedloom.runs.run import run
from flower_world import Faulty, Notes, config_of

PARTS = {"part_bytes": 4096, "heartbeat": 0.05, "stall_seconds": 0.6}


class Line(InProcessTransport):
    """A line to nodes with a process each. `lose(request, order)`: whether the request, or its reply, is lost."""

    in_process = False

    def __init__(self, nodes, folder, lose=lambda request, reply: False, answer=None) -> None:
        super().__init__(nodes)
        self.inboxes = {name: Inbox(node, folder, resident=True) for name, node in nodes.items()}
        for inbox in self.inboxes.values():
            threading.Thread(target=inbox.work, daemon=True).start()
        self._lose, self._answer, self.requests, self.largest = lose, answer, [], 0

    def receive(self, names):
        for name in [*names]:
            if name not in self._waiting:
                continue
            node, message = self._waiting.pop(name)
            self.largest = max(self.largest, len(message.body))
            request = read(message, Request, 1 << 24)
            self.requests.append(request)
            if self._lose(request, None):
                continue
            reply = self.inboxes[node].answer(message)
            self.largest = max(self.largest, len(reply.body))
            if self._answer is not None:
                reply = self._answer(request, reply)
            if not self._lose(request, reply):
                yield name, reply


def federation(method, nodes_of, tmp_path, *, flower=PARTS, **line):
    config = config_of(method, flower=flower, rounds=2, evaluation={"every": 2})
    transport, notes = Line(nodes_of(config), tmp_path / "states", **line), Notes()
    return config, transport, notes, serve(config, transport, callbacks=[notes], out=tmp_path / "out")


def final(out):
    return (out / "checkpoint" / "round-000002" / "server.safetensors").read_bytes()


def simulated(config, tmp_path):
    run(config, out=tmp_path / "simulated")
    return final(tmp_path / "simulated")


@pytest.mark.parametrize("method", ["fedavg", "scaffold"])
def test_small_parts_give_the_bits_of_the_simulation(method, nodes_of, tmp_path):
    config, transport, _, _ = federation(method, nodes_of, tmp_path)
    assert final(tmp_path / "out") == simulated(config, tmp_path)
    assert transport.largest <= PARTS["part_bytes"]
    assert all(node.bytes_up and node.bytes_down for node in read_status(tmp_path / "out").nodes)


def test_nodes_of_one_process_get_whole_payloads(tmp_path):
    config = config_of(flower=PARTS, rounds=2, evaluation={"every": 2})
    run_in_process(config, out=tmp_path / "out")
    assert final(tmp_path / "out") == simulated(config, tmp_path)


def once_each(of, when):
    """Loses, once for each kind of message, what `when(request, reply)` says."""
    lost = set()

    def lose(request, reply):
        kind = of(request)
        if kind in lost or not when(request, reply):
            return False
        lost.add(kind)
        return True

    return lose


@pytest.mark.parametrize("on_the_way", ["there", "back"])
def test_one_lost_message_of_each_kind_loses_no_round(on_the_way, nodes_of, tmp_path):
    lose = once_each(
        lambda request: (request.do, request.part, request.fetch),
        lambda request, reply: (
            request.client == 1 and request.do != "join" and (reply is None) == (on_the_way == "there")
        ),
    )
    flower = {**PARTS, "round_timeout": 120.0, "part_bytes": 1 << 14}
    config, _, notes, _ = federation("fedavg", nodes_of, tmp_path, flower=flower, lose=lose)
    assert final(tmp_path / "out") == simulated(config, tmp_path)
    assert not [text for text in notes.texts if "continues without" in text or "is lost" in text]


def test_a_node_that_does_not_answer_is_asked_twice_and_named(nodes_of, tmp_path):
    flower = {**PARTS, "round_timeout": 60.0}
    silent = {"lose": lambda request, reply: (request.client, request.round, request.do) == (2, 1, "train")}
    _, transport, notes, _ = federation("fedavg", nodes_of, tmp_path, flower=flower, **silent)
    assert any(
        t.startswith("round 1: the upload of client 2 is lost: it did not answer within 1.") for t in notes.texts
    )
    sent = [request.part for request in transport.requests if (request.client, request.round) == (2, 1)]
    assert sent == [0, 0]


def test_a_node_that_flower_loses_again_and_again_goes_on_where_it_was(nodes_of, tmp_path):
    errors = iter(["Flower: Error: Node Unavailable"] * 4)

    def answer(request, reply):
        is_it = (request.client, request.round, request.do) == (2, 1, "train") and request.fetch
        return next(errors, reply) if is_it else reply

    config, transport, notes, _ = federation("fedavg", nodes_of, tmp_path, answer=answer)
    assert final(tmp_path / "out") == simulated(config, tmp_path)
    assert sum("client 2 is lost, and is sent once more" in text for text in notes.texts) >= 2
    asked = [
        request for request in transport.requests if (request.client, request.round, request.do) == (2, 1, "train")
    ]
    assert len({request.job for request in asked}) == 1  # so it trains once


@pytest.mark.parametrize("digest", ["same", "other"])
def test_parts_of_a_lost_result_count_if_the_next_result_is_the_same(digest):
    """A node that was killed trains again, and on some devices its result is another one."""
    bodies = [b"a" * 5000, (b"a" if digest == "same" else b"b") * 5000]
    fetched = []

    def reply(message):
        request = read(message, Request)
        body = bodies[-1] if len(fetched) >= 2 else bodies[0]
        parts = Parts.of(body, 2000)
        if fetched[:2] == [0, 1] and len(fetched) == 2:
            fetched.append("lost")
            return "Flower: Error: Node Unavailable"
        fetched.append(request.fetch)
        facts = {"kind": "trained", "run": "ab", "parts": parts.model_dump(), "part": request.fetch}
        return Message(json.dumps(facts), body[parts.span(request.fetch)])

    links = Links(Replies(reply), config_of(flower=PARTS).flower, StatusWriter(config_of(), None))
    links.allow(10_000)
    results = []
    while not (results and isinstance(results[-1], Message)):
        name = links.send(1, Request(do="train", run="ab", fingerprint="", version="", client=1, round=1))
        results.append(None)
        while results[-1] is None:
            results[-1:] = [result for _, result in links.receive([name])] or [None]
    assert results[-1].body == bodies[-1]
    assert fetched == [0, 1, "lost", 0, 2] if digest == "same" else fetched[:3] == [0, 1, "lost"]


def test_one_part_that_is_lost_while_others_move_is_sent_again_and_its_late_error_ignored(nodes_of, tmp_path):
    class Expires(Line):
        lost = ""

        def receive(self, names):
            for name, reply in super().receive(names):
                request = self.requests[-1]
                is_it = (request.client, request.round, request.do, request.fetch) == (2, 1, "train", 1)
                if is_it and not self.lost:
                    self.lost = name
                else:
                    yield name, reply
                    if is_it and self.lost in names:
                        yield self.lost, "Flower: Error: Message Unavailable"

    config, notes = config_of(flower=PARTS, rounds=2, evaluation={"every": 2}), Notes()
    serve(config, Expires(nodes_of(config), tmp_path / "states"), callbacks=[notes], out=tmp_path / "out")
    assert final(tmp_path / "out") == simulated(config, tmp_path)
    assert not any("is lost" in text for text in notes.texts)


def test_a_node_whose_request_to_join_is_lost_is_asked_again_by_stall_seconds(nodes_of, tmp_path):
    lose = once_each(lambda request: request.do, lambda request, reply: reply is None and request.do == "join")
    began = time.monotonic()
    config, _, notes, _ = federation("fedavg", nodes_of, tmp_path, lose=lose)
    assert final(tmp_path / "out") == simulated(config, tmp_path)
    assert time.monotonic() - began < config.flower.node_timeout / 2
    assert not any("left out" in text for text in notes.texts)


def test_without_a_deadline_who_stands_still_is_dropped_and_a_needed_node_may_come_back(nodes_of, tmp_path):
    flower = {**PARTS, "round_timeout": None, "join_timeout": 1.0}
    silent = {"lose": lambda request, reply: (request.client, request.round, request.do) == (2, 1, "train")}
    _, _, notes, result = federation("fedavg", nodes_of, tmp_path, flower=flower, **silent)
    assert any(text.startswith("round 1: the upload of client 2 is lost: it did not answer") for text in notes.texts)
    assert result.numbers["rounds"] == 2
    config = config_of(flower={"round_timeout": None, "join_timeout": 1.0, "min_clients": 4}, rounds=2)
    transport = Faulty(nodes_of(config))
    leave = Notes(lambda round_: transport.gone.add(1))
    with pytest.raises(FederationError, match=r"3 of 4 clients sent a usable reply, and flower\.min_clients = 4"):
        serve(config, transport, callbacks=[leave], out=tmp_path / "away")
    assert read_status(tmp_path / "away").round == 1


def stuck(fractions):
    """A client that says for ever that it trains."""

    def answer(request, reply):
        if (request.client, request.round, request.do) != (2, 1, "train"):
            return reply
        facts = {"phase": "training\n", "fraction": next(fractions), "detail": "epoch 1 of 2", "work": 1.0}
        return ProgressReply(run=request.run, seconds=9.0, **facts).to_message()

    return {"answer": answer}


def test_a_node_that_says_it_works_and_does_not_move_is_dropped(nodes_of, tmp_path):
    flower = {**PARTS, "round_timeout": 60.0}
    lies = stuck(itertools.repeat(0.43))
    _, _, notes, result = federation("fedavg", nodes_of, tmp_path, flower=flower, **lies)
    (text,) = [text for text in notes.texts if "the upload of client 2 is lost" in text]
    assert "it has not moved for 1 s (training" in text
    assert "43 %, epoch 1 of 2)" in text
    assert result.numbers["rounds"] == 2


def test_a_node_that_moves_by_nothing_holds_no_round_beyond_its_timeout(nodes_of, tmp_path):
    flower = {**PARTS, "round_timeout": 3.0, "stall_seconds": 30.0}
    lies = stuck(itertools.count(0.43, 1e-9))
    _, _, notes, _ = federation("fedavg", nodes_of, tmp_path, flower=flower, **lies)
    assert any(
        "continues without clients 2 (training" in text and "no answer within 3 s" in text for text in notes.texts
    )


def test_work_that_is_lost_with_its_process_is_done_once_more(nodes_of, tmp_path):
    broken = iter([ErrorReply(run="", error="its process ended\n", lost=True).to_message()])

    def answer(request, reply):
        is_it = (request.client, request.round, request.do) == (2, 1, "train")
        return next(broken, reply) if is_it and not isinstance(reply, str) and request.part is None else reply

    config, _, notes, _ = federation("fedavg", nodes_of, tmp_path, answer=answer)
    assert final(tmp_path / "out") == simulated(config, tmp_path)
    assert any("the request to client 2 is lost, and is sent once more: its process ended" in t for t in notes.texts)


def test_an_answer_after_its_round_is_named_with_its_seconds(nodes_of, tmp_path):
    class Late(Line):
        kept = None

        def receive(self, names):
            for name, reply in super().receive(names):
                request = self.requests[-1]
                if (request.client, request.round, request.do) == (2, 1, "train") and self.kept is None:
                    self.kept = name, reply
                else:
                    yield name, reply
            if self.kept and self.requests[-1].round == 2 and self.kept[0] in names:
                yield self.kept
                self.kept = "", None

    flower = {"round_timeout": 1.5, "heartbeat": 30.0, "min_clients": 3}
    config = config_of(flower=flower, rounds=2, evaluation={"every": 2})
    notes = Notes()
    serve(config, Late(nodes_of(config), tmp_path / "states"), callbacks=[notes])
    assert any(text.startswith("client 2 answered too late (2 s of 1.5 s)") for text in notes.texts)


class Replies(InProcessTransport):
    """Answers with what it is given."""

    in_process = False

    def __init__(self, replies) -> None:
        super().__init__({})
        self._replies = replies

    def receive(self, names):
        for name in [*names]:
            if name in self._waiting:
                yield name, self._replies(self._waiting.pop(name)[1])


@pytest.mark.parametrize(
    ("parts", "body"),
    [
        ({"size": 10**9, "digest": "0" * 64, "part_bytes": 10**6}, b"0" * 10),
        ({"size": 100, "digest": "0" * 64, "part_bytes": 10}, b"0" * 10),
        ({"size": 100, "digest": "0" * 64, "part_bytes": 10}, b"0" * 11),
        ({"size": 1000, "digest": "0" * 64, "part_bytes": 10**9}, b"0" * 10),
    ],
)
def test_results_in_parts_that_cannot_be_are_refused_before_they_are_kept(parts, body):
    config = config_of(flower=PARTS)

    def reply(message):
        facts = {"kind": "trained", "parts": parts, "part": read(message, Request).fetch}
        return Message(
            ProgressReply(run="ab", phase="x").to_message().facts[:-1] + "," + str(facts)[1:].replace("'", '"'), body
        )

    links = Links(Replies(reply), config.flower, StatusWriter(config, None))
    links.allow(2000)
    name = links.send(1, Request(do="join", run="ab", fingerprint="", version=""))
    results = []
    while not results:
        results = [*links.receive([name])]
    assert "an unusable reply" in read(results[0][1], ErrorReply).error


def test_a_request_for_parts_that_never_ends_is_given_up():
    config = config_of(flower={**PARTS, "stall_seconds": 0.2})
    reply = ProgressReply(run="ab", phase="downloading", needs=[0]).to_message()
    links = Links(Replies(lambda message: reply), config.flower, StatusWriter(config, None))
    name = links.send(1, Request(do="join", run="ab", fingerprint="", version=""), b"1" * 9000)
    results = []
    while not results:
        results = [*links.receive([name])]
    assert isinstance(results[0][1], Stalled)
