"""One hostile node among ten, with a valid key: the run goes on, the node is named, and the model learns.

The table of all methods and attacks is in `docs/hostile-nodes.md`; `python -m benchmarks hostile` measures it.
"""

import functools
import math

import pytest
import torch

from benchmarks import hostile, lies
from fedloom.core.records import from_bytes, to_bytes
from fedloom.flower.node_registry import FederationError
from fedloom.flower.server import serve
from fedloom.flower.wire import Message, TrainReply, read
from fedloom.runs.run import run
from fedloom.runs.storage.checkpoint import rewind
from flower_world import Faulty, Notes, config_of, forged
from support import same_bits

METHODS = ["fedavg", "fedsc", "fedproto"]
REFUSED = ["x100", "1e38", "nan", "count"]
BEARABLE = ["constant", "just inside", "constant, same length"]  # not all of it is large enough to be refused
# `make test` tries every attack on weights, and some on the tables of the other two.
SAMPLE = {
    ("fedsc", "nan"),
    ("fedsc", "constant"),
    ("fedproto", "x100"),
    ("fedproto", "count"),
    ("fedproto", "just inside"),
}


def attacked(attacks):
    """Each method with each attack; those outside `SAMPLE` have the marker `matrix`."""
    return [
        pytest.param(
            method, attack, marks=() if method == "fedavg" or (method, attack) in SAMPLE else pytest.mark.matrix
        )
        for method in METHODS
        for attack in attacks
    ]


@functools.cache
def honest_accuracy(method):
    """The accuracy without a hostile node."""
    return hostile.accuracy(run(config(method)))


def config(method, **flower):
    return hostile.config_of(method, rounds=6, epochs=2, **flower)


@pytest.mark.parametrize(("method", "attack"), attacked(REFUSED))
def test_what_is_refused_costs_the_node_its_rounds_and_nobody_else(method, attack):
    result, refused = hostile.federate(config(method), attack)
    assert refused
    assert hostile.accuracy(result) > honest_accuracy(method) - 5


@pytest.mark.parametrize(("method", "attack"), attacked(BEARABLE))
def test_what_is_too_small_to_be_refused_costs_little(method, attack):
    result, _ = hostile.federate(config(method), attack)
    assert hostile.accuracy(result) > honest_accuracy(method) - 5


def test_an_honest_federation_refuses_nobody_and_has_the_bits_of_the_simulation():
    here, (there, refused) = run(config("fedsc")), hostile.federate(config("fedsc"), None)
    assert not refused
    assert same_bits(here.memory.weights[6].server, there.memory.weights[6].server)


def forging(change, client=3, rounds=range(1, 99)):
    """A fault: one client's uploads of some rounds changed by `change(record)`."""
    body = lambda _, answer: Message(answer.facts, to_bytes(change(from_bytes(answer.body))))  # noqa: E731
    return forged("train", client, body, rounds)


def huge(record):
    tree = {name: torch.full_like(tensor, 1e38) for name, tensor in record["model"].items()}
    return {**record, "model": tree}


def three_clients(**flower):
    return config_of(scenario={"source": "digits", "partition": "iid", "clients": 3, "val": 0.0}, flower=flower)


def test_with_three_clients_the_state_is_tested(nodes_of):
    """Without a bound on lengths, one upload of 1e38 would make every later loss infinite."""
    few, notes = three_clients(max_ratio=None), Notes()
    result = serve(few, Faulty(nodes_of(few), forging(huge, client=1, rounds=[1])), callbacks=[notes])
    assert any("upload of client 1 is refused: with it the server's model would reach" in text for text in notes.texts)
    assert [row["value"] for row in result.rows if row["name"] == "participants"] == [2, 3, 3]


SMALL = {  # clients, and the share that takes part
    "3 of 20": {"scenario": {"source": "digits", "partition": "iid", "clients": 20, "val": 0.0}, "participation": 0.15},
    "three": {"scenario": {"source": "digits", "partition": "iid", "clients": 3, "val": 0.0}},
    "two": {"scenario": {"source": "digits", "partition": "iid", "clients": 2, "val": 0.0}},
}


@pytest.mark.parametrize("case", SMALL)
def test_small_rounds_name_and_refuse_a_client_that_reverses_and_enlarges_its_change(case, nodes_of):
    config = config_of(**SMALL[case], rounds=12, batch_size=16, evaluation={"every": 12})
    liar, notes, honest = 3 if case == "3 of 20" else 1, Notes(), Notes()

    attacked = serve(config, lies.Liars(nodes_of(config), "x -20", [liar]), callbacks=[notes])
    usual = serve(config, Faulty(nodes_of(config)), callbacks=[honest])
    assert not [text for text in honest.texts if "refused" in text or "stands out" in text]
    refused = [text for text in notes.texts if "the upload of client" in text and "refused" in text]
    assert refused
    assert all(f"client {liar} is refused" in text for text in refused)
    assert any(text.startswith(f"client {liar} stands out by") for text in notes.texts)
    assert any(text.startswith(f"client {liar} stands out by") for text in attacked.numbers["degenerate"])
    assert hostile.accuracy(attacked) > hostile.accuracy(usual) - 5
    assert any("clients take part in a round: fewer than 4 do not judge each other alone" in t for t in notes.texts)


def test_a_state_that_cannot_be_kept_ends_the_run_and_leaves_the_last_one(nodes_of, tmp_path):
    few = three_clients(min_clients=3, max_ratio=None)
    with pytest.raises(FederationError, match="the state before this round is kept"):
        serve(few, Faulty(nodes_of(few), forging(huge, client=1, rounds=[2])), out=tmp_path / "run")
    result = serve(few, Faulty(nodes_of(few)), out=tmp_path / "run")
    simulated = run(few, out=tmp_path / "simulated")
    assert result.numbers["checkpoint_sha256"] == simulated.numbers["checkpoint_sha256"]


def test_a_run_goes_back_to_before_it_was_spoiled(nodes_of, tmp_path):
    """A server without bounds takes in what one node sends; the administrator goes back and turns them on."""
    loose = config_of(rounds=4, flower={"max_ratio": None})
    doubled = forging(lambda record: {**record, "model": {k: 3 * t for k, t in record["model"].items()}}, rounds=[3])
    serve(loose, Faulty(nodes_of(loose), doubled), out=tmp_path / "run")
    rewind(tmp_path / "run", 2)
    again = serve(config_of(rounds=4), Faulty(nodes_of(loose)), out=tmp_path / "run")
    assert again.numbers["accuracy"] == run(config_of(rounds=4)).numbers["accuracy"]


def test_a_loss_that_is_not_finite_is_reported_as_in_the_simulation(nodes_of):
    def diverged(request, answer):
        trained = read(answer, TrainReply)
        return trained.model_copy(update={"terms": dict.fromkeys(trained.terms, math.nan)}).to_message(answer.body)

    result = serve(config_of(), Faulty(nodes_of(config_of()), forged("train", 2, diverged, rounds=[2])))
    assert any("diverged: in round 2 the losses of 1 of 4" in text for text in result.numbers["degenerate"])


@pytest.mark.parametrize("claimed", [10**6, 10**12, 1])
def test_a_count_that_the_server_knows_is_checked_and_not_capped(nodes_of, claimed):
    claims = forged("join", 3, lambda _, answer: hostile.claims(answer, "join", claimed))
    notes = Notes()
    quick = config_of(flower={"join_timeout": 0.2})
    result = serve(quick, Faulty(nodes_of(quick), claims), callbacks=[notes])
    assert any("joins with" in text and "by the config it has" in text for text in notes.texts)
    assert [row["value"] for row in result.rows if row["name"] == "participants"] == [3, 3, 3]
