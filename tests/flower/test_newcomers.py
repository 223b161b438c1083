"""Clients that never train, over nodes: the bits of the simulation, and nodes that cannot be tested."""

import copy
import json
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from rich.console import Console

from fedloom.cli.terminal import print_result
from fedloom.core.errors import ConfigError, DataError
from fedloom.data import Views
from fedloom.flower.exchange import ReplyReader
from fedloom.flower.in_process import run_in_process
from fedloom.flower.node import Node
from fedloom.flower.node_data import count_nodes, node_file, server_file
from fedloom.flower.server import serve
from fedloom.flower.transport import _TYPES
from fedloom.flower.wire import Message, MessageError
from fedloom.runs.run import run
from flower_world import DEALT, Faulty, Notes, config_of, forged
from own_world import agreed_on_digits, of_nodes, patients_of_nodes, write_digits
from support import same_bits, sampled

HELD_OUT = {**DEALT, "clients": 5, "held_out": [1, 3]}
SERVED = {"newcomers": {"shots": [2, "all"], "tunes": ["all", "own"], "epochs": 1}, "metrics": ["auroc", "ece"]}


def held_out(method="fedavg", **keys):
    return config_of(method, **{"rounds": 1, "scenario": HELD_OUT, "evaluation": SERVED, **keys})


def newcomer_rows(result):
    return [row for row in result.rows if row["split"] == "newcomers"]


# -- the bits of the simulation ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("method", sampled(["fedbn", "fedper", "fedsc"], "fedper"))
def test_nodes_serve_newcomers_with_the_bits_of_the_simulation(method):
    personal = {"protocol": "personal/local"} if method == "fedper" else {}
    model = {"model": "digits-cnn"} if method == "fedbn" else {}
    config = held_out(method, evaluation={**SERVED, **personal}, **model)
    here, there = run(config), run_in_process(config)
    assert newcomer_rows(here) == newcomer_rows(there) != []
    assert here.numbers["newcomers"] == there.numbers["newcomers"]
    assert there.numbers["newcomers"]["clients"] == [1, 3]


def test_a_domain_that_is_held_out_is_one_more_node(tmp_path):
    scenario = patients_of_nodes(tmp_path)[0].resolved()["scenario"]
    config = config_of(rounds=1, scenario={**scenario, "held_out": {"domain": "1"}}, evaluation=SERVED)
    assert count_nodes(config) == 3
    here, there = run(config), run_in_process(config)
    assert newcomer_rows(here) == newcomer_rows(there) != []
    assert there.numbers["newcomers"]["clients"] == [2]


def test_other_data_of_newcomers_change_no_bit_of_the_training():
    config = held_out()
    scenario = config.scenario.build(config.seed)
    rows = torch.from_numpy(scenario.newcomers.train.order)
    x, y = scenario.train_set.x.clone(), scenario.train_set.y.clone()
    x[rows], y[rows] = 0, (y[rows] + 1) % 10
    changed = replace(scenario.train_set, x=x, y=y)
    noisy = replace(scenario, train_set=changed, newcomers=replace(scenario.newcomers, train_set=changed))
    first, second = (run_in_process(config, scenario=variant) for variant in (scenario, noisy))
    assert same_bits(first.memory.weights[1].server, second.memory.weights[1].server)
    assert newcomer_rows(first) != newcomer_rows(second)


def test_newcomers_with_files_of_their_own_have_the_bits_of_the_simulation(tmp_path):
    """The last of four nodes never trains; nobody but its node reads its digits."""
    every = {**DEALT, "held_out": [3]}
    dealt = config_of("fedavg", scenario=DEALT)
    there = write_digits(dealt, tmp_path)
    config = held_out(scenario=every)
    own = of_nodes(config, **agreed_on_digits(there.train_set), held_out=[3])
    here, there = run(config), run_in_process(own, data=tmp_path)
    assert newcomer_rows(here) == newcomer_rows(there) != []
    assert same_bits(here.memory.weights[1].server, there.memory.weights[1].server)


def test_newcomers_have_no_part_in_the_scale_of_a_table(tmp_path):
    simulated, _ = patients_of_nodes(tmp_path)
    keys = {"rounds": 1, "evaluation": {"protocol": "global/local", **SERVED}}
    plain = simulated.resolved()
    config = config_of(scenario={**plain["scenario"], "held_out": [2]}, **keys)
    own = of_nodes(config, classes=["ill", "well"], features=["age", "pressure", "sex=f", "sex=m"], held_out=[2])
    here, there = run(config), run_in_process(own, data=tmp_path)
    assert same_bits(here.memory.weights[1].server, there.memory.weights[1].server)
    assert newcomer_rows(here) == newcomer_rows(there) != []


# -- nodes that cannot be tested ---------------------------------------------------------------------------------------
def served(config, tmp_path, fault=lambda request, answer: answer, gone=()):
    """The result and notes of a run in which `fault(request, answer)` changes answers."""
    scenario = config.scenario.build(config.seed)
    first = Node(config, 0, tmp_path, scenario)
    nodes = {0: first} | {k: Node(config, k, tmp_path, scenario, template=first) for k in range(1, 5)}
    transport, notes = Faulty(nodes, fault), Notes()
    transport.gone = set(gone)
    return serve(config, transport, scenario=scenario, callbacks=[notes]), notes.texts, transport


@pytest.fixture(scope="module")
def test_of_client_4(tmp_path_factory):
    """What the server reads of a client's tests: the reader of replies, and its arguments."""
    kept = {}

    def reading(reader, job, message, names, evaluator, index):
        kept[job.ctx.client] = (reader, job, message, names, evaluator, index)
        return read_tests(reader, job, message, names, evaluator, index)

    read_tests = ReplyReader.newcomer_result
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ReplyReader, "newcomer_result", reading)
        run_in_process(held_out(scenario={**HELD_OUT, "seed": 0}))
    return kept[4]


NONSENSE = {
    "no message": (lambda facts: "{}", "no message of version 3"),
    "another client": (lambda facts: facts.replace('"client":4', '"client":3'), "it is of round 1 of client 3"),
    "another round": (lambda facts: facts.replace('"round":1', '"round":2'), "it is of round 2 of client 4"),
    "a test too few": (lambda facts: facts.replace("2-shot/all/1", "2-shot/all/9"), "it has results of .*all/9"),
    "other samples": (lambda facts: facts.replace('"total":', '"total":1'), "tested on 1"),
    "impossible counts": (lambda facts: facts.replace('"correct":', '"correct":9'), "impossible metric states"),
    "far too long": (lambda facts: facts + " " * (1 << 24), "characters"),
    "a result of training": (lambda facts: facts.replace('"kind":"served"', '"kind":"trained"'), "no message"),
}


@pytest.mark.parametrize("case", NONSENSE)
def test_nonsense_about_a_newcomer_is_refused(case, test_of_client_4):
    change, said = NONSENSE[case]
    reader, job, message, *arguments = test_of_client_4
    assert reader.newcomer_result(job, message, *arguments).keys() == {*arguments[0]}
    assert change(message.facts) != message.facts
    with pytest.raises(MessageError, match=said):
        reader.newcomer_result(job, Message(change(message.facts)), *arguments)


def test_a_newcomer_that_was_tested_on_nothing_is_refused(test_of_client_4):
    """Only its node knows the number; a round of such tests would have the accuracy 0 / 0."""
    reader, job, message, names, evaluator, index = test_of_client_4
    facts = json.loads(message.facts)
    facts["tested"] = {name: {"total": 0, "states": {}} for name in facts["tested"]}
    remote = copy.copy(evaluator)
    remote.scenario = replace(evaluator.scenario, remote=True)
    with pytest.raises(MessageError, match="it was tested on no samples"):
        reader.newcomer_result(job, Message(json.dumps(facts)), names, remote, index)


def test_a_newcomer_that_answers_nonsense_is_named_left_out_and_counted(tmp_path, capsys):
    result, notes, _ = served(held_out(), tmp_path, forged("serve", 4, lambda request, answer: Message("{}")))
    (line,) = [text for text in notes if "of client 4" in text]
    assert line.startswith("round 1: the test of client 4 is refused: no message of version 3")
    numbers = result.numbers["newcomers"]
    assert (numbers["clients"], numbers["not_tested"]) == ([1, 3], [3])
    assert numbers["tests"]["zero-shot"]["clients"] == 1
    assert {row["client"] for row in newcomer_rows(result)} == {None, 1}
    print_result(Console(width=200), result)
    assert "; not tested: 3" in capsys.readouterr().out


def test_an_exception_at_a_newcomer_ends_no_run(tmp_path, monkeypatch):
    def failing(*_):
        raise RuntimeError("out of memory")

    monkeypatch.setattr("fedloom.flower.node.NewcomerService.tests", failing)
    result, notes, _ = served(held_out(), tmp_path)
    assert result.numbers["newcomers"]["not_tested"] == [1, 3]
    assert len([text for text in notes if "out of memory" in text]) == 2


def test_a_newcomer_that_is_away_ends_no_run(tmp_path):
    config, began = held_out(flower={"join_timeout": 0.1, "round_timeout": 100}), time.monotonic()
    result, notes, transport = served(config, tmp_path, gone=(3, 4))
    assert time.monotonic() - began < 100  # nobody waits for nodes that are not there
    assert result.numbers["newcomers"]["not_tested"] == [1, 3]
    assert result.numbers["newcomers"]["tests"] == {}
    assert "continues without clients 3, 4: they have not joined" in notes
    assert "client 3 never took part: no node joined as this client" in result.numbers["degenerate"]
    assert not [request for request in transport.requests if request.client in (3, 4)]


def test_newcomers_are_asked_to_join_and_to_be_tested_and_for_nothing_else(tmp_path):
    _, notes, transport = served(held_out(), tmp_path)
    asked = {(request.do, request.client) for request in transport.requests if request.client > 2}
    assert asked == {("serve", 3), ("serve", 4)}
    said = "nodes 0 to 2 train; nodes that never train, and are tested after the last round: 3, 4"
    assert f"{said} (of the config's clients 1, 3)" in notes
    assert set(_TYPES) == {"join", "train", "test", "serve"}  # over Flower, too


@pytest.mark.parametrize(("client", "do"), [(4, "train"), (4, "test"), (0, "serve")])
def test_a_node_refuses_what_its_client_has_no_part_in(client, do, tmp_path):
    config = held_out()
    _, _, transport = served(config, tmp_path)
    request = next(request for request in transport.requests if request.do == "serve")
    other = request.model_copy(update={"client": client, "do": do})
    node = Node(config, client, tmp_path, config.scenario.build(config.seed))
    answer = node.answer(Message(other.model_dump_json()))
    assert f"client {client} {'never trains' if client == 4 else 'trains'}" in answer.facts
    assert f"was asked to {do}" in answer.facts


def test_a_newcomer_with_too_many_test_samples_is_left_out(tmp_path):
    """Where only nodes know their data, none may outweigh the others in what is pooled."""
    scenario = {**DEALT, "clients": 7, "held_out": [3, 4, 5, 6]}
    there = write_digits(config_of(scenario={**scenario, "held_out": None}), tmp_path)
    config = held_out(scenario=scenario, evaluation={})
    own = of_nodes(config, **agreed_on_digits(there.train_set), held_out=[3, 4, 5, 6])
    nodes = {k: Node(own, k, tmp_path / "states", data=node_file(tmp_path, k)) for k in range(7)}

    fault = forged("serve", 4, lambda _, answer: Message(answer.facts.replace('"total":', '"total":999999')))
    notes = Notes()
    result = serve(own, Faulty(nodes, fault), tests=server_file(tmp_path), callbacks=[notes])
    assert result.numbers["newcomers"]["not_tested"] == [4]
    assert [text for text in notes.texts if "the test of client 4 is refused" in text]


def test_a_newcomer_without_test_samples_is_told_what_it_lacks(tmp_path):
    there = write_digits(config_of(scenario=DEALT), tmp_path)
    own = of_nodes(held_out(scenario={**DEALT, "held_out": [3]}), **agreed_on_digits(there.train_set), held_out=[3])
    node = Node(own, 3, tmp_path, data=tmp_path / "node-000003.yaml")
    newcomers = node.scenario.newcomers
    node.scenario = replace(node.scenario, newcomers=replace(newcomers, test=Views.from_lists([np.zeros(0, np.int64)])))
    with pytest.raises(DataError, match=r"client 3: it never trains and has \d+ training and 0 test samples; it needs"):
        node.require_data()


# -- bad input ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("held", "said"),
    [
        ({"share": 0.4}, r"with source nodes, the clients that never train are the last ones.* write \[3, 4\]"),
        ([0, 4], r"are the last ones.* write \[3, 4\]"),
        ([4, 4], r"write \[3, 4\]"),
        ([1, 2, 3, 4], "4 of 5 nodes leave 1 to train; 2 or more must train"),
        ({"domain": "x"}, r"write \[4\]"),
    ],
)
def test_nodes_that_never_train_are_the_last_ones(held, said):
    nodes = {"source": "nodes", "clients": 5, "classes": ["ill", "well"], "features": ["age"], "held_out": held}
    with pytest.raises(ConfigError, match=said) as caught:
        config_of(scenario=nodes)
    assert "\n" not in str(caught.value)
