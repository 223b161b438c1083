"""Over messages the bits are those of the simulation, for every method; and faults of a network, one by one."""

import re

import pytest

from fedloom.core.errors import ClientError, ConfigError, RunFolderError
from fedloom.core.records import from_bytes
from fedloom.flower.in_process import run_in_process
from fedloom.flower.node_registry import FederationError
from fedloom.flower.server import serve
from fedloom.flower.status import read_status
from fedloom.flower.wire import ErrorReply, JoinReply, Message, MessageError, read
from fedloom.runs.run import run
from fedloom.runs.storage.run_folder import RunFolder
from flower_world import DEALT, Faulty, Notes, config_of, forged, settings_of
from support import IN_ROUNDS, same_bits, sampled

WRAPPED = [
    "fedavg+geomedian",
    "fedprox+dw",
    "fedssa+median",
    "fedavg+normbound",
    "fedsc+int8",
    "fedavg+topk",
    "fedavg+sign",
    "feddw+dp",
    "fedsc+dp",
    "fedskc+dp",
]

SENDING = sampled([*IN_ROUNDS, *WRAPPED], "ccvr", "copa", "fd", "feddf", "fedgen", "fedkd", "fedproto", "scaffold")


@pytest.mark.parametrize("method", SENDING)
def test_every_method_has_the_bits_of_the_simulation(method, tmp_path):
    """Three rounds of two or three in four clients, private states on the nodes' disks."""
    config = config_of(method, **settings_of(method))
    here, there = run(config), run_in_process(config, states=tmp_path)
    assert same_bits(here.memory.weights[3].server, there.memory.weights[3].server)
    counts = ("accuracy", "test_loss", "bytes_up", "bytes_down", "samples", "flops", "degenerate")
    assert [here.numbers[key] for key in counts] == [there.numbers[key] for key in counts]
    assert there.numbers["engine"] == "flower"
    private = here.memory.weights[3].states
    kept = {client: max(tmp_path.glob(f"*/client-{client:06d}/round-*")).read_bytes() for client in private}
    assert all(same_bits(private[client], from_bytes(data)) for client, data in kept.items())


def test_the_success_of_an_attack_is_that_of_the_simulation():
    """Personal models are tested on the nodes, and what they say must be all that the simulation knows."""
    attacked = {**DEALT, "attack": {"name": "label-flip", "share": 0.25}}
    config = config_of("ditto", scenario=attacked, evaluation={"every": 3, "protocol": "personal/local"})
    here, there = run(config), run_in_process(config)
    assert here.numbers["attack"]["success"] is not None
    assert there.numbers["attack"] == here.numbers["attack"]


def test_personal_models_stay_on_their_nodes():
    result = run_in_process(config_of("fedper", evaluation={"every": 3, "protocol": "personal/local"}))
    with pytest.raises(ConfigError, match="its personal model stays on its own node"):
        result.model(client=1)


def test_drift_is_measured_from_what_nodes_upload():
    here, there = (execute(config_of("fedsc", rounds=1, drift=True)) for execute in (run, run_in_process))
    assert here.drift_rounds == there.drift_rounds
    assert "cosine" in {value.name for value in there.drift_rounds[0].values}


def test_several_architectures_have_the_bits_of_the_simulation():
    config = config_of(
        "fd", model=["mlp", {"name": "mlp", "hidden": [20]}], rounds=2, evaluation={"protocol": "personal/local"}
    )
    here, there = run(config), run_in_process(config)
    assert same_bits(here.memory.weights[2].server, there.memory.weights[2].server)
    assert here.numbers["accuracy"] == there.numbers["accuracy"]


# -- servers that start again ------------------------------------------------------------------------------------------
class Killed(BaseException):
    """As if the server's process had ended there."""


@pytest.mark.parametrize("method", ["fedavg", "fedssa", "scaffold", "fedkd", "moon"])
def test_a_server_that_starts_again_goes_on_with_the_same_bits(method, nodes_of, tmp_path):
    config = config_of(method, **settings_of(method))
    nodes = nodes_of(config)

    def dies(round_):
        if round_ == 2:
            raise Killed

    with pytest.raises(Killed):
        serve(config, Faulty(nodes), out=tmp_path / "run", callbacks=[Notes(dies)])
    transport = Faulty(nodes_of(config))  # nodes that started again, too
    result = serve(config, transport, out=tmp_path / "run")
    assert {request.round for request in transport.requests if request.do == "train"} == {3}
    whole = run(config, out=tmp_path / "simulation")
    assert result.numbers["accuracy"] == whole.numbers["accuracy"]
    server = (tmp_path / "run" / "checkpoint" / "round-000003" / "server.safetensors").read_bytes()
    assert server == (tmp_path / "simulation" / "checkpoint" / "round-000003" / "server.safetensors").read_bytes()


def test_a_server_killed_before_its_summary_has_the_whole_result(nodes_of, tmp_path, monkeypatch):
    """Training is done and saved; what its last test found beside the scores is asked for once more."""
    config = config_of("fedper", evaluation={"every": 1, "protocol": "personal/local"})
    transport = Faulty(nodes_of(config))
    whole = serve(config, transport, out=tmp_path / "whole")

    def dies(*_):
        raise Killed

    with monkeypatch.context() as killed:
        killed.setattr(RunFolder, "write_parquet", dies)
        with pytest.raises(Killed):
            serve(config, Faulty(nodes_of(config)), out=tmp_path / "run")
    transport = Faulty(nodes_of(config))
    result = serve(config, transport, out=tmp_path / "run")
    assert {request.do for request in transport.requests} == {"join", "test"}
    assert result.numbers["engine"] == "flower"
    assert result.numbers["details"] == whole.numbers["details"]
    assert result.confusion(0) == whole.confusion(0)
    assert read_status(tmp_path / "run").state == read_status(tmp_path / "whole").state != "running"


@pytest.mark.parametrize("content", [b"\xff\xfe", b"a" * 300, b"", b"../../run", None])
def test_a_name_that_is_none_is_refused(nodes_of, tmp_path, content):
    config, name = config_of("fedavg"), tmp_path / "run" / "flower-run"
    name.parent.mkdir()
    if content is None:
        name.mkdir()
    else:
        name.write_bytes(content)
    with pytest.raises(RunFolderError, match="flower-run: damaged, because a run's name has 16 hexadecimal digits"):
        serve(config, Faulty(nodes_of(config)), out=tmp_path / "run")


def test_a_server_killed_before_its_checkpoint_repeats_the_round_from_the_states_before_it(nodes_of, tmp_path):
    """Nodes have trained round 2, and its server has nothing of it."""
    config = config_of("scaffold")
    nodes, answers = nodes_of(config), []

    def dies(request, answer):
        answers.append(request)
        if len([one for one in answers if one.do == "train" and one.round == 2]) == 4:
            raise Killed
        return answer

    with pytest.raises(Killed):
        serve(config, Faulty(nodes, dies), out=tmp_path / "run")
    result = serve(config, Faulty(nodes_of(config)), out=tmp_path / "run")
    assert result.numbers["accuracy"] == run(config).numbers["accuracy"]


# -- clients that are lost ---------------------------------------------------------------------------------------------
def test_a_round_closes_without_a_client_that_does_not_answer(nodes_of):
    """Its private state stays the one from before, and the others' sums are as if it had not been drawn."""
    config = config_of("scaffold", flower={"round_timeout": 2.0})  # others may be slow on a busy machine
    transport = Faulty(
        nodes_of(config), lambda request, answer: None if (request.client, request.round) == (2, 2) else answer
    )
    notes = Notes()
    serve(config, transport, callbacks=[notes])
    assert "continues without clients 2: no answer within 2 s" in notes.texts
    third = next(
        request for request in transport.requests if (request.do, request.client, request.round) == ("train", 2, 3)
    )
    assert third.state_round == 1


def test_a_node_that_is_away_is_left_out_and_taken_back(nodes_of):
    config = config_of(flower={"round_timeout": 5.0})
    transport = Faulty(nodes_of(config))
    notes = Notes(lambda round_: transport.gone.add(1) if round_ == 1 else transport.gone.clear())
    serve(config, transport, callbacks=[notes])
    assert "continues without clients 1: their nodes are offline" in notes.texts
    trained = [request.client for request in transport.requests if request.do == "train" and request.round == 3]
    assert 1 in trained


def test_an_exception_on_a_node_ends_the_run_with_its_traceback(nodes_of):
    config = config_of(flower={"max_failures": 0})
    nodes = nodes_of(config)
    nodes[1]._setup.method.end = None
    with pytest.raises(ClientError, match="client 1 failed in round 1") as caught:
        serve(config, Faulty(nodes))
    assert "Traceback" in "".join(caught.value.__cause__.__notes__)
    assert caught.value.exit_code == 1


@pytest.mark.parametrize(
    ("keys", "ends"),
    [({"max_failures": 0}, True), ({"max_failures": 1}, False), ({}, False), ({"min_clients": 4}, True)],
)
def test_as_many_clients_may_fail_as_max_failures_says(nodes_of, keys, ends):
    """By default one of four, unless all four are needed."""
    config = config_of(flower=keys)

    def fails(request, _):
        facts = {"run": request.run, "client": 3, "round": request.round}
        return ErrorReply(**facts, error="no memory", raised="Traceback").to_message()

    transport = Faulty(nodes_of(config), forged("train", 3, fails))
    if ends:
        with pytest.raises(ClientError, match="no memory"):
            serve(config, transport)
    else:
        assert serve(config, transport).numbers["rounds"] == 3


def test_a_lost_private_state_is_told_and_starts_anew(nodes_of, tmp_path):
    config = config_of("scaffold")

    def loses(round_):
        for file in (tmp_path / "states").glob("*/client-000002/round-*"):
            file.unlink()

    result = serve(config, Faulty(nodes_of(config)), callbacks=[Notes(loses)])
    assert any(
        "private state of client 2 after round 1 is not on its disk" in text for text in result.numbers["degenerate"]
    )


@pytest.mark.parametrize("times", [1, 2, 8, 9])
def test_a_client_whose_order_was_lost_on_the_way_is_asked_up_to_eight_times_more(nodes_of, times):
    """As one whose node was killed and is back before the round closes; the bits are those of a run without loss."""
    config, lost = config_of("scaffold", rounds=2), iter([True] * times)

    loses = forged("train", 1, lambda request, answer: "gone" if next(lost, False) else answer, rounds=[2])
    transport, notes = Faulty(nodes_of(config), loses), Notes()
    result = serve(config, transport, callbacks=[notes])
    asked = [
        request for request in transport.requests if (request.do, request.client, request.round) == ("train", 1, 2)
    ]
    assert len(asked) == min(times, 8) + 1
    assert "the request to client 1 is lost, and is sent once more: gone" in notes.texts
    assert ("round 2: the upload of client 1 is lost: gone" in notes.texts) == (times == 9)
    whole = run(config)
    assert same_bits(result.memory.weights[2].server, whole.memory.weights[2].server) == (times < 9)


# -- nodes that do not fit ---------------------------------------------------------------------------------------------
def test_a_node_with_another_config_is_left_out_and_told_why(nodes_of):
    config = config_of(flower={"join_timeout": 0.1})
    nodes = nodes_of(config)
    nodes[2] = nodes_of(config_of(seed=1))[2]
    notes = Notes()
    serve(config, Faulty(nodes), callbacks=[notes])
    assert any(re.search("node 2 is left out: the server's config is .*, that of client 2 is", t) for t in notes.texts)


def test_a_node_with_another_version_is_left_out(nodes_of, monkeypatch):
    config = config_of(flower={"join_timeout": 0.1})
    nodes = nodes_of(config)
    monkeypatch.setattr("fedloom.flower.server.__version__", "0.0.1")
    with pytest.raises(FederationError, match="0 of 4 clients are online"):
        serve(config, Faulty(nodes))


@pytest.mark.parametrize(("seconds", "says"), [(420, "7.00 min ahead of"), (-400, "6.6"), (0, None), (4, None)])
def test_a_node_with_a_wrong_clock_is_named_once_with_the_difference(seconds, says, nodes_of):
    def shifted(request, answer):
        reply = read(answer, JoinReply)
        return reply.model_copy(update={"clock": reply.clock + seconds}).to_message()

    notes, config = Notes(), config_of(rounds=1, evaluation={"every": 1})
    serve(config, Faulty(nodes_of(config), forged("join", 1, shifted)), callbacks=[notes])
    lines = [text for text in notes.texts if "clock" in text]
    assert len(lines) == (says is not None)
    assert all(line.startswith(f"client 1: its node's clock is {says}") for line in lines)
    assert all("the server's; set it by NTP" in line for line in lines)


@pytest.mark.parametrize("clock", ["NaN", "-1", "1e30", '"now"'])
def test_a_clock_that_is_no_time_is_refused(clock):
    facts = f'{{"run": "ab", "client": 0, "token": "0", "samples": 1, "classes": [], "clock": {clock}}}'
    with pytest.raises(MessageError, match="clock"):
        read(Message(facts), JoinReply)


def test_a_second_node_with_one_client_id_is_left_out_and_the_run_goes_on(nodes_of, tmp_path):
    config, notes = config_of(), Notes()
    nodes = {**nodes_of(config), 7: nodes_of(config, tmp_path / "elsewhere")[1]}
    result = serve(config, Faulty(nodes), callbacks=[notes])
    (line,) = [text for text in notes.texts if "left out" in text]
    assert line.startswith("node 7 is left out: it joins as client 1 from another disk")
    assert result.numbers["accuracy"] == run(config).numbers["accuracy"]


# -- uploads that must not touch the model -----------------------------------------------------------------------------
def test_an_upload_too_far_from_what_was_sent_is_refused(nodes_of):
    notes = Notes()
    config = config_of(flower={"max_norm": 1e-6, "round_timeout": 1.0})
    with pytest.raises(FederationError, match="0 of 4 clients"):
        serve(config, Faulty(nodes_of(config)), callbacks=[notes])
    assert any("away from the payload; flower.max_norm = 1e-06" in text for text in notes.texts)
