"""Tests of personal models on engines: the same numbers wherever they run, and as the evaluator alone finds them."""

import numpy as np
import pytest

from fedloom.core.errors import ClientError
from fedloom.data.views import Views
from fedloom.engine import PASS_BATCH
from fedloom.engine.processes import Processes
from fedloom.evaluation import Evaluator
from support import ENGINES, TinyBN, TinyDropout, after, configured, near, put_on, scores_of, world

LABELS = [[0, 1, 2, 3, 0, 1, 2], [1, 1, 0, 2], [], [3, 2, 1, 0, 0], [1, 1]]
PROTOCOLS = ("personal/global", "personal/local")


def found(name, protocol, engine, *, net=TinyBN, also=(), split="test"):
    """What the tests of all clients find after two rounds in which not everybody took part."""
    toy = world(configured(name), LABELS, net=net, participation=0.6)
    if split == "val":
        val = Views.from_lists([np.arange(k, k + 2) for k in range(len(LABELS))])
        object.__setattr__(toy.scenario, "val", val)
    toy.worker.evaluators = {protocol: Evaluator(toy.scenario, protocol, batch=PASS_BATCH, also=also)}
    after(toy, 2)
    federation = put_on(toy, engine)
    try:
        done = sorted(federation.engine.test(federation.tests(split)), key=lambda one: one.client)
    finally:
        federation.engine.close()
    return toy, done


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("name", ["fedbn", "local", "fedco2", "fedssa"])
@pytest.mark.parametrize("net", [TinyBN, TinyDropout])
def test_every_engine_finds_the_same_as_the_evaluator_alone(name, protocol, net):
    also = ("online", "offline") if name == "fedco2" else ()
    toy, serial = found(name, protocol, "serial", net=net, also=also)
    for engine in ENGINES[1:]:
        assert found(name, protocol, engine, net=net, also=also)[1] == serial
    assert [one.client for one in serial] == list(range(len(LABELS)))
    assert all(set(one.tested) == {"personal", *also} and one.samples == 0 for one in serial)
    federation, evaluator = toy.federation, toy.worker.evaluator_for(None)
    offered = (
        (
            k,
            toy.method.predictors(
                federation.server, federation.state_of(federation.client_context(k, 2)), federation.server_context(k)
            ),
        )
        for k in range(len(LABELS))
    )
    scores = scores_of(evaluator, offered, toy.worker.net_of_client)
    assert evaluator.scores("test", {one.client: one.tested for one in serial}) == scores
    totals = [one.tested["personal"].total for one in serial]
    everything = sum(map(len, LABELS))
    assert totals == ([everything] * len(LABELS) if protocol == "personal/global" else list(map(len, LABELS)))
    if net is TinyBN:  # without batch norm, FedBN keeps nothing
        assert len({one.tested["personal"].value("loss") for one in serial}) > 2


@pytest.mark.parametrize("engine", ENGINES)
def test_training_goes_on_after_a_test_as_without(engine):
    plain, tested = (world(configured("fedco2"), LABELS, net=TinyBN) for _ in range(2))
    after(plain, 3)
    tested.worker.evaluators = {"personal/local": Evaluator(tested.scenario, "personal/local", batch=PASS_BATCH)}
    federation = put_on(tested, engine)
    try:
        reports = []
        for _ in range(3):
            reports.append(federation.step())
            list(federation.engine.test(federation.tests("test")))
    finally:
        federation.engine.close()
    for one, other in zip(plain.reports, reports, strict=True):
        assert near(dict(one.terms), dict(other.terms), 1e-5) if engine == "stacked" else one.terms == other.terms


def test_many_clients_are_tested_some_at_a_time(monkeypatch):
    monkeypatch.setattr("fedloom.engine.processes.engine._TESTS_AT_ONCE", 2)
    toy = after(world(configured("fedbn"), LABELS * 5, net=TinyBN), 1)
    toy.worker.evaluators = {"personal/local": Evaluator(toy.scenario, "personal/local", batch=PASS_BATCH)}
    expected = sorted(map(toy.worker.test, toy.federation.tests("test")), key=lambda one: one.client)
    engine, made = Processes(toy.worker, toy.federation.tasks, workers=2), []

    def tests():
        for test in toy.federation.tests("test"):
            made.append(test)
            yield test

    try:
        arriving, ours = engine.test(tests()), []
        for done in arriving:
            assert len(made) <= 4 * (len(ours) // 4 + 1)
            ours.append(done)
    finally:
        engine.close()
    assert sorted(ours, key=lambda one: one.client) == expected


# -- the server's model ------------------------------------------------------------------------------------------------
def server_tests(protocol, engine, *, name="fedavg", net=TinyBN, split="test"):
    """Results of the server's model in batches of two, after two rounds, by slice or client."""
    toy = after(world(configured(name), LABELS * 3, net=net), 2)
    if split == "val":
        object.__setattr__(toy.scenario, "val", Views.from_lists([np.arange(k, k + 2) for k in range(len(LABELS * 3))]))
    evaluator = Evaluator(toy.scenario, protocol, batch=2)
    toy.worker.evaluators = {protocol: evaluator}
    federation = put_on(toy, engine)
    try:
        tests = federation.server_tests(split, evaluator.slices(split))
        results = {result.client: result.tested for result in federation.engine.test(tests)}
    finally:
        federation.engine.close()
    return toy, results


@pytest.mark.parametrize("protocol", ["global/global", "global/local"])
@pytest.mark.parametrize("split", ["test", "val"])
@pytest.mark.parametrize("net", [TinyBN, TinyDropout])
def test_every_engine_tests_the_server_s_model_alike(protocol, split, net):
    toy, serial = server_tests(protocol, "serial", net=net, split=split)
    for engine in ENGINES[1:]:
        assert server_tests(protocol, engine, net=net, split=split)[1] == serial
    samples = len(toy.scenario.val.order) if split == "val" else len(toy.scenario.test_set)
    slices = -(-samples // 8)  # of four batches
    assert sorted(serial, key=abs) == ([-1 - n for n in range(slices)] if protocol == "global/global" else [*range(15)])
    assert slices > 3
    offered = toy.method.predictors(toy.federation.server, None, toy.federation.server_context())
    evaluator = toy.worker.evaluator_for(None)
    scores = evaluator.scores(split, serial)
    assert scores == scores_of(evaluator, [(-1, offered)], toy.worker.net_of_client, split)
    assert scores.pooled.total == samples
    in_one = scores_of(Evaluator(toy.scenario, protocol, batch=999), [(-1, offered)], toy.worker.net_of_client, split)
    assert in_one.value("accuracy") == scores.value("accuracy")
    assert in_one.value("loss") == pytest.approx(scores.value("loss"), rel=1e-6)


@pytest.mark.parametrize("engine", ["serial", "processes"])
def test_a_test_of_the_server_s_model_that_fails_says_so(engine):
    class Fails(TinyBN):
        def forward(self, x):
            if not self.training and len(x) > 2:
                raise ZeroDivisionError("on purpose")
            return super().forward(x)

    toy = after(world(configured("fedavg"), LABELS, net=Fails), 1)
    toy.worker.evaluators = {"global/global": Evaluator(toy.scenario, "global/global", batch=PASS_BATCH)}
    federation = put_on(toy, engine)
    try:
        with pytest.raises(
            ClientError, match=r"^fedavg: the server's model failed in round 1 \(test\): ZeroDivisionError"
        ):
            list(federation.engine.test(federation.server_tests("test", 2)))
    finally:
        federation.engine.close()
