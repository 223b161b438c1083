"""A client that does not answer in time costs a round once, and not every later round."""

import time

from fedloom.flower.exchange import Pauses
from fedloom.flower.server import serve
from fedloom.flower.wire import Message
from flower_world import Faulty, Notes, config_of, forged


def test_the_pause_doubles_up_to_64_rounds_and_an_answer_ends_it():
    pauses, asked = Pauses(), []
    for round_ in range(1, 200):
        if pauses.skipped_clients([3], round_, spare=1):
            continue
        asked.append(round_)
        pauses.pause(3, round_)
        pauses.pause(3, round_)  # its test in the same round
    assert asked == [1, 2, 4, 8, 16, 32, 64, 128, 192]
    pauses.end_pause(3)
    assert pauses.skipped_clients([3], 200, spare=1) == []
    assert pauses.pause(3, 200) == 201


def test_no_more_are_left_out_than_a_round_can_spare():
    pauses = Pauses()
    for client, times in ((1, 1), (2, 3), (5, 2)):
        round_ = 1
        for _ in range(times):
            round_ = pauses.pause(client, round_)
    skipped = {spare: pauses.skipped_clients([5, 2, 1], 1, spare) for spare in (9, 2, 0, -1)}
    assert skipped == {9: [1, 2, 5], 2: [2, 5], 0: [], -1: []}


def asked_of(transport, client):
    return [request.round for request in transport.requests if (request.do, request.client) == ("train", client)]


def sleeping(nodes, *rounds):
    """A link on which client 2 does not answer in some rounds, or ever."""
    return Faulty(
        nodes, lambda request, a: None if request.client == 2 and request.round in (rounds or range(99)) else a
    )


def test_a_sleeping_node_costs_a_few_timeouts_and_is_named_rightly(nodes_of):
    config = config_of(rounds=9, evaluation={"every": 9}, flower={"round_timeout": 1.5})
    transport, notes, began = sleeping(nodes_of(config)), Notes(), time.monotonic()
    serve(config, transport, callbacks=[notes])
    assert asked_of(transport, 2) == [1, 2, 4, 8]
    assert time.monotonic() - began < 9 * 1.5
    late = [text for text in notes.texts if "no answer within 1.5 s" in text]
    assert late[1:3] == [
        f"continues without clients 2: no answer within 1.5 s; next asked: client 2 in round {n}" for n in (4, 8)
    ]
    assert not any("offline" in text for text in notes.texts)


def test_one_that_answers_again_is_asked_in_every_round(nodes_of):
    config = config_of(rounds=7, evaluation={"every": 7}, flower={"round_timeout": 1.5})
    transport = sleeping(nodes_of(config), 1, 2)
    serve(config, transport)
    assert asked_of(transport, 2) == [1, 2, 4, 5, 6, 7]


def test_a_client_that_a_round_needs_is_asked_all_the_same(nodes_of):
    """Three of four are needed, and another one is gone: without the late one the run would end."""
    config = config_of(rounds=4, evaluation={"every": 4}, flower={"round_timeout": 2.0, "min_clients": 3})
    transport = sleeping(nodes_of(config), 1, 2)
    serve(config, transport, callbacks=[Notes(lambda round_: transport.gone.add(0) if round_ == 2 else None)])
    assert asked_of(transport, 2) == [1, 2, 3, 4]


def test_an_order_that_is_lost_and_then_not_answered_is_late_and_not_gone(nodes_of):
    config = config_of(rounds=1, evaluation={"every": 1}, flower={"round_timeout": 2.0})
    words, notes, seconds = iter(["Flower: the message has expired"]), Notes(), []
    transport = Faulty(nodes_of(config), forged("train", 2, lambda request, answer: next(words, None)))
    send = transport.send
    transport.send = lambda node, message, worth: (seconds.append(worth), send(node, message, worth))[1]
    serve(config, transport, callbacks=[notes])
    assert any(text.startswith("continues without clients 2: no answer within 2 s") for text in notes.texts)
    assert not any("offline" in text for text in notes.texts)
    trained = [worth for worth, request in zip(seconds, transport.requests, strict=False) if request.do == "train"]
    assert min(trained) > 2.0  # an order outlives its round, so that it is late and not lost


def test_a_client_that_answers_nonsense_is_no_sleeper(nodes_of):
    config = config_of()
    transport = Faulty(nodes_of(config), forged("train", 2, lambda request, answer: Message("{}")))
    serve(config, transport)
    assert asked_of(transport, 2) == [1, 2, 3]
