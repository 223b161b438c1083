"""What one node with a valid key may try: it costs that node its place or its round, never the run."""

import json
import math

import pytest
import torch

from command_line import call
from fedloom._version import __version__
from fedloom.core.errors import ClientError
from fedloom.core.records import from_bytes, to_bytes
from fedloom.flower.bindings import NodeBindings
from fedloom.flower.in_process import run_in_process
from fedloom.flower.links import Links
from fedloom.flower.node_registry import FederationError, NodeRegistry
from fedloom.flower.server import serve
from fedloom.flower.status import StatusWriter, read_status
from fedloom.flower.wire import MAX_FACTS, ErrorReply, JoinRequest, Message, TrainReply, read
from fedloom.results.report import write_report
from fedloom.runs.run import run
from flower_world import Faulty, Notes, config_of, forged
from support import same_bits

CLEAR = "\x1b[2J\x1b]0;owned\x07\u202e\nerror: all is well"


def facts(**changes):
    """Facts of an answer, changed, whatever the types allow."""
    return lambda request, answer: Message(json.dumps(json.loads(answer.facts) | changes), answer.body)


JOINS = {
    "another run": (facts(run="dead"), "it joins the run 'dead'"),
    "a client that the run does not have": (facts(client=4), "the run has clients 0 .. 3"),
    "a negative client": (facts(client=-1), "no message of version 3"),
    "other classes": (facts(classes=["0", CLEAR]), r"client 1 has the classes ['0', '\x1b[2J"),
    "no token": (facts(token=""), "a token is 16 hexadecimal digits"),
    "a token of control characters": (facts(token=CLEAR), r"with the token '\x1b[2J"),
    "an upload in place of it": (facts(kind="trained"), "no message of version 3"),
    "an empty message": (lambda request, answer: Message(""), "no message of version 3"),
    "an empty object": (lambda request, answer: Message("{}"), "no message of version 3"),
    "facts without end": (lambda request, answer: Message(" " * (MAX_FACTS + 1)), "characters; 1048576 at most"),
    "a key of control characters": (facts(**{CLEAR: 1}), r"\x1b[2J"),
    "a word of Flower": (lambda request, answer: CLEAR, r"left out: \x1b[2J"),
    "an exception": (
        lambda request, answer: ErrorReply(run=request.run, client=1, error=CLEAR, raised="T" * 60_000).to_message(),
        r"left out: client 1: \x1b[2J",
    ),
    "nothing": (
        lambda request, answer: None,
        "it did not answer within 0.2 s when asked to join (flower.node_timeout)",
    ),
}


@pytest.mark.parametrize("case", JOINS)
def test_a_node_that_joins_with_nonsense_is_named_and_the_run_goes_on(case, nodes_of, tmp_path):
    change, reason = JOINS[case]
    config = config_of(rounds=1, evaluation={"every": 1}, flower={"join_timeout": 0.6, "node_timeout": 0.2})
    notes, transport = Notes(), Faulty(nodes_of(config), forged("join", 1, change))
    result = serve(config, transport, out=tmp_path / "run", callbacks=[notes])
    lines = [text for text in notes.texts if text.startswith("node 1 is left out: ")]
    assert len(lines) == 1
    assert reason in lines[0]
    assert all(text.isprintable() for text in notes.texts)
    status = read_status(tmp_path / "run")
    assert [(absence.node, absence.reason.isprintable()) for absence in status.absent] == [("1", True)]
    assert [seat.client for seat in status.nodes] == [0, 2, 3]
    (told,) = result.numbers["degenerate"]
    assert told.startswith("client 1 never took part: ")


def with_bias(answer, value, size=10):
    record = from_bytes(answer.body)
    return Message(
        answer.facts, to_bytes(record | {"model": {**record["model"], "head.bias": torch.full((size,), value)}})
    )


UPLOADS = {
    "of another round": (facts(round=1), "it is of round 1 of client 1"),
    "of another run": (facts(run="dead"), "in run dead"),
    "of another client": (facts(client=2), "it is of round 2 of client 2"),
    "of another kind": (facts(kind="scored"), "no message of version 3"),
    "an empty message": (lambda request, answer: Message(""), "no message of version 3"),
    "an empty body": (lambda request, answer: Message(answer.facts), "header"),
    "another record": (lambda request, answer: Message(answer.facts, to_bytes({"x": 1})), "it lacks"),
    "its own order": (lambda request, answer: request.to_message(), "no message of version 3"),
    "not finite": (lambda request, answer: with_bias(answer, math.nan), "head.bias: not all numbers are finite"),
    "too long": (lambda request, answer: with_bias(answer, 0.0, 10_000_000), "at most"),
    "an excuse with control characters": (lambda request, answer: failed(request, error=CLEAR), r"\x1b[2J"),
}


@pytest.mark.parametrize("case", UPLOADS)
def test_an_upload_of_nonsense_costs_its_node_the_round(case, nodes_of):
    change, reason = UPLOADS[case]
    config, notes = config_of(), Notes()
    transport = Faulty(nodes_of(config), forged("train", 1, change, rounds=(2,)))
    without = Faulty(nodes_of(config), forged("train", 1, lambda request, answer: "gone", rounds=(2,)))
    result, expected = serve(config, transport, callbacks=[notes]), serve(config, without)
    (line,) = [text for text in notes.texts if text.startswith("round 2: the upload of client 1 is refused: ")]
    assert reason in line
    assert line.isprintable()
    assert same_bits(result.memory.weights[3].server, expected.memory.weights[3].server)


def failed(request, **facts):
    """An error of client 1, whatever the bounds allow."""
    facts = {"kind": "failed", "run": request.run, "client": request.client, "round": request.round, **facts}
    return Message(json.dumps(facts))


def test_an_answer_that_comes_twice_counts_once(nodes_of):
    """Also one to join, and one whose name nobody asked for."""
    config = config_of()
    transport = Faulty(nodes_of(config))
    receive = transport.receive

    def twice(names):
        answers = receive(names)
        return answers * 2 + [("nobody's", Message("{}"))] if answers else []

    transport.receive = twice
    result = serve(config, transport)
    assert same_bits(result.memory.weights[3].server, run(config).memory.weights[3].server)


def test_a_node_that_joins_again_and_again_is_one_client(nodes_of):
    config = config_of()
    transport, flips = Faulty(nodes_of(config)), iter(range(10**6))
    nodes = transport.nodes
    transport.nodes = lambda: nodes() - ({1} if next(flips) % 2 else set())  # it is there at every second look
    config = config_of(flower={"round_timeout": 5.0, "min_clients": 4})
    result = serve(config, transport)
    assert len([request for request in transport.requests if request.do == "join"]) > 6
    assert same_bits(result.memory.weights[3].server, run(config).memory.weights[3].server)


def test_a_traceback_of_a_node_is_bounded_and_cannot_act(nodes_of, capsys):
    """The run ends with it where no client may fail; its text is shown and not obeyed."""
    config, notes = config_of(flower={"max_failures": 0}), Notes()
    error = {"error": CLEAR, "raised": f"Traceback{CLEAR}" + "x" * 60_000}
    transport = Faulty(nodes_of(config), forged("train", 1, lambda request, _: failed(request, **error)))
    with pytest.raises(ClientError):
        serve(config, transport, callbacks=[notes])
    assert all(text.isprintable() for text in notes.texts)


def test_a_traceback_without_end_is_no_message(nodes_of):
    config, notes = config_of(), Notes()
    fails = forged("train", 1, lambda request, _: failed(request, error="e" * 10**6, raised="x" * 10**6))
    serve(config, Faulty(nodes_of(config), fails), callbacks=[notes])
    refused = [text for text in notes.texts if "is refused: a message of " in text]
    assert len(refused) == 3
    assert max(map(len, notes.texts)) < 500


# -- thousands of nodes ------------------------------------------------------------------------------------------------
class Crowd:
    """Nodes that never answer, and four that do. asked: how often each was asked."""

    poll_seconds, reply_limit, in_process, resident = 0.0, 1 << 20, False, False

    def __init__(self, nodes, strangers):
        self._members, self._strangers, self.asked = nodes, strangers, {}
        self._out = {}

    def nodes(self):
        return {*self._members, *range(1000, 1000 + self._strangers)}

    def key_of(self, node):
        return ""

    def send(self, node, message, seconds):
        self.asked[node] = self.asked.get(node, 0) + 1
        name = f"{node}-{self.asked[node]}"
        self._out[name] = node, message
        return name

    def receive(self, names):
        for name in list(names):
            node, message = self._out[name]
            if node in self._members:
                yield name, self._members[node].answer(message)
            else:
                yield name, "Flower: error 1"


def registry_of(config, transport, board):
    identity = JoinRequest(run="ab", fingerprint=config.fingerprint(), version=__version__)
    scenario = config.scenario.build(config.seed)
    links = Links(transport, config.flower, board)
    return NodeRegistry(links, identity, scenario, lambda text: None, NodeBindings(None))


def test_thousands_of_strangers_are_asked_in_parts_and_seldom_again(nodes_of, tmp_path, monkeypatch):
    config = config_of()
    transport = Crowd(nodes_of(config), 5000)
    board = StatusWriter(config, tmp_path)
    board.begin("ab", 0)
    registry = registry_of(config, transport, board)
    looks = 0
    while len(transport.asked) < 5004:
        registry.poll()
        looks += 1
    assert (looks, max(transport.asked.values())) == (51, 1)  # a hundred at a look
    assert all(registry.node_of(client) is not None for client in range(4))
    status = read_status(tmp_path)
    assert len(status.absent) == 50
    assert (tmp_path / "flower-status.json").stat().st_size < 20_000
    for _ in range(20):
        registry.poll()
    assert max(transport.asked.values()) == 1  # nobody is asked again at once


def test_a_node_that_is_left_out_is_asked_again_after_growing_pauses(nodes_of, tmp_path, monkeypatch):
    config, clock = config_of(), [0.0]
    monkeypatch.setattr("fedloom.flower.node_registry.time.monotonic", lambda: clock[0])
    transport = Crowd({}, 1)
    registry = registry_of(config, transport, StatusWriter(config, None))
    times = []
    for second in range(3600):
        clock[0] = float(second)
        before = transport.asked.get(1000, 0)
        registry.poll()
        times += [second] if transport.asked[1000] > before else []
    assert times == [0, 30, 90, 210, 450, 930, 1530, 2130, 2730, 3330]


# -- one process -------------------------------------------------------------------------------------------------------
def test_a_node_of_this_process_that_cannot_join_ends_the_run(monkeypatch):
    """Nobody can mend it while the process waits, so it does not wait for its five minutes."""

    def broken(self, message):
        raise RuntimeError("no memory")

    monkeypatch.setattr("fedloom.flower.node.Node._join", broken)
    with pytest.raises(FederationError, match="client 0: RuntimeError: no memory"):
        run_in_process(config_of())


# -- what is shown -----------------------------------------------------------------------------------------------------
def test_no_page_terminal_or_status_obeys_a_nodes_text(nodes_of, tmp_path, capsys):
    """Diagnostics, excuses and reasons of a node, as the status, the report and the tables show them."""
    note = {"code": f"flower.{CLEAR}", "message": CLEAR, "figure": 1.0}
    config, out = config_of(), tmp_path / "run"

    def fault(request, answer):
        if request.do == "train" and request.client == 1:
            return facts(notes=[note])(request, answer)
        if request.do == "train" and request.client == 2:
            return failed(request, error=CLEAR)
        return answer

    result = serve(config, Faulty(nodes_of(config), fault), out=out)
    write_report([result], out / "report.html")
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "\\x1b[2J" in page
    assert acts_not(page)
    for words in (["status", str(out)], ["status", str(out), "--json"]):
        code, text, err = call(capsys, "flower", *words)
        assert code == 0
        assert acts_not(text + err)
    code, text, err = call(capsys, "table", str(out))
    assert code == 0
    assert acts_not(text + err)
    assert "error: all is well" not in [line.strip() for line in (text + err).splitlines()]


def acts_not(text):
    return all(line.replace("\u00a0", " ").replace("\t", " ").isprintable() for line in text.split("\n"))


def test_the_readers_of_uploads_still_read_honest_ones(nodes_of):
    """Trained messages as nodes write them pass every check of this file's kind."""
    config = config_of()
    seen = []
    serve(config, Faulty(nodes_of(config), lambda request, answer: seen.append(answer) or answer))
    kinds = {json.loads(answer.facts)["kind"] for answer in seen}
    assert kinds >= {"joined", "trained"}
    assert all(isinstance(read(answer, TrainReply), TrainReply) for answer in seen if '"trained"' in answer.facts)
