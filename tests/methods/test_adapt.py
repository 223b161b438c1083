"""Adapting a personal model before its test (`Method.adapt`): a throw-away, on training data, on every engine."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch

from fedloom.core.errors import ClientError
from fedloom.core.records import to_bytes
from fedloom.data.views import Views
from fedloom.engine import PASS_BATCH, Serial
from fedloom.engine.flops import flops_of
from fedloom.engine.processes import Processes
from fedloom.engine.stacked import Batched
from fedloom.evaluation import Evaluator
from fedloom.methods import METHODS, register
from fedloom.methods.contract.contexts import Work
from fedloom.methods.contract.method import Method
from fedloom.methods.contract.phases import Collect, Predictor, Train
from fedloom.methods.contract.sample_statistics import Rows
from fedloom.nets.net import Role
from fedloom.runs.config.run_config import parse
from fedloom.runs.run import run
from support import Tiny, TinyBN, TinyDropout, after, dataset, world

LABELS = [[0, 1, 2, 3, 0, 1, 2], [1, 1, 0, 2], [], [3, 2, 1, 0, 0]]
HEAD = frozenset({Role.HEAD})


class Tuned(Method):
    """FedAvg, whose head every client trains on its own data before it is tested."""

    epochs = 3

    def adapt(self, start, ctx):
        return [Train(self.tune, self.epochs, trains=HEAD)]

    def tune(self, net, batch, consts):
        return super().loss(net, batch, consts)


def after_tests(method, *, protocol="personal/local", engine="serial", net=Tiny, rounds=2):
    """A federation after some rounds, and its clients' tests on data of which nobody trains."""
    toy = after(world(method, LABELS, net=net), rounds)
    apart = dataset([label for labels in LABELS for label in labels[::-1]])
    apart = dataclasses.replace(apart, x=apart.x + 1)
    sizes = np.cumsum([0, 5, 4, 3, 4])
    views = Views.from_lists([np.arange(a, b) for a, b in itertools.pairwise(sizes)])
    scenario = dataclasses.replace(toy.scenario, test_set=apart, test=views)
    toy.worker.evaluators = {protocol: Evaluator(scenario, protocol, batch=PASS_BATCH)}
    federation = toy.federation
    made = {
        "serial": lambda: Serial(toy.worker),
        "processes": lambda: Processes(toy.worker, federation.tasks, workers=2),
        "stacked": lambda: Batched(toy.worker, 4),
    }
    federation.engine = made[engine]()
    try:
        done = sorted(federation.engine.test(federation.tests("test")), key=lambda one: one.client)
    finally:
        federation.engine.close()
    return toy, done


@pytest.mark.parametrize("protocol", ["personal/local", "personal/global"])
@pytest.mark.parametrize("engine", ["processes", "stacked"])
@pytest.mark.parametrize("net", [TinyBN, TinyDropout])
def test_every_engine_finds_the_same(protocol, engine, net):
    found = [after_tests(Tuned(), protocol=protocol, engine=name, net=net)[1] for name in ("serial", engine)]
    assert found[0] == found[1]
    assert [one.client for one in found[0]] == [0, 1, 2, 3]


def test_the_model_is_tested_as_it_is_after_its_phases():
    toy, done = after_tests(Tuned())
    scenario, x_test = toy.worker.evaluator_for(None).scenario, toy.worker.evaluator_for(None).scenario.test_set
    for client in (0, 1, 3):
        net, (x, y) = Tiny(), toy.samples(client)
        net.load_state_dict(toy.federation.server["model"])
        optimizer = torch.optim.SGD(net.head.parameters(), lr=0.1)
        order = toy.task.streams.numpy("adaptshuffle", 2, client)
        for _ in range(3):
            for rows in torch.split(torch.from_numpy(order.permutation(len(y))), 4):
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
                optimizer.step()
        rows = scenario.test.tensor(client)
        loss = torch.nn.functional.cross_entropy(net(x_test.gather(rows)), x_test.y[rows])
        assert done[client].tested["personal"].value("loss") == pytest.approx(float(loss.detach()), abs=1e-5)
        assert done[client].samples == 3 * len(y)


@pytest.mark.parametrize("engine", ["serial", "processes", "stacked"])
def test_nothing_of_it_stays(engine):
    """The next round is that of a run in which nobody adapted, dropout included."""
    toy, _ = after_tests(Tuned(), engine=engine, net=TinyDropout)
    plain = after(world(Method(), LABELS, net=TinyDropout), 2)
    for one in (toy, plain):
        one.federation.engine = Serial(one.worker)
    assert to_bytes(toy.federation.server) == to_bytes(plain.federation.server)
    assert dict(toy.federation.states) == dict(plain.federation.states) == {}
    for one in (toy, plain):
        after(one, 1)
    assert to_bytes(toy.federation.server) == to_bytes(plain.federation.server)
    assert toy.reports[0].terms == plain.reports[0].terms


def test_it_sees_training_data_alone():
    seen = []

    class Watching(Tuned):
        def tune(self, net, batch, consts):
            seen.append((consts["who"], batch.x.clone()))
            return super().tune(net, batch, consts)

        def predictors(self, server, state, ctx):
            offered = super().predictors(server, state, ctx)
            return {name: dataclasses.replace(one, consts={"who": "me"}) for name, one in offered.items()}

    toy, done = after_tests(Watching())
    rows = torch.cat([x for _, x in seen])
    assert {who for who, _ in seen} == {"me"}
    assert len(rows) == sum(one.samples for one in done) == 3 * sum(map(len, LABELS))
    assert all((row == toy.data.x).all(1).any() for row in rows)
    test_set = toy.worker.evaluator_for(None).scenario.test_set
    assert not any((row == test_set.x).all(1).any() for row in rows)


def test_an_exception_says_whose_it_was_and_where():
    class Fails(Tuned):
        def adapt(self, start, ctx):
            if ctx.client == 1:
                raise ZeroDivisionError("on purpose")
            return super().adapt(start, ctx)

    with pytest.raises(ClientError, match=r"client 1 failed in round 2 \(adapt\).*on purpose"):
        after_tests(Fails())


def test_its_operations_count():
    toy, done = after_tests(Tuned())
    held = {0: 100.0}
    without = flops_of(toy.federation, toy.worker, held)
    samples = sum(one.samples for one in done)
    forward = 2 * (5 * 6 + 6 * 4)
    head = 2 * 6 * 4  # the head's gradient
    assert flops_of(toy.federation, toy.worker, held, adapted_samples=samples) - without == pytest.approx(
        samples * (forward + head)
    )


@pytest.fixture
def registered(registry):
    for epochs in (0, 4):
        register(type(f"Tuned{epochs}", (Tuned,), {"epochs": epochs, "__doc__": "Tuned."}))


@pytest.mark.parametrize("protocol", ["personal/global", "personal/local"])
def test_a_run_adapts_tests_and_counts(registered, protocol, tmp_path):
    numbers = {}
    for name in ("tuned0", "tuned4"):
        config = {
            "method": name,
            "model": "mlp",
            "scenario": {"source": "digits", "partition": "classes", "classes_per_client": 2, "clients": 10},
            "rounds": 2,
            "evaluation": {"protocol": protocol},
        }
        for engine in ("serial", {"name": "processes", "workers": 2}):
            numbers[name, str(engine)[:4]] = run(
                parse(config | {"engine": engine}), out=tmp_path / f"{name}{engine}"
            ).numbers
    for name in ("tuned0", "tuned4"):
        (one, other) = (ones for (which, _), ones in numbers.items() if which == name)
        assert all(one[key] == other[key] for key in ("checkpoint_sha256", "test_loss", "accuracy", "flops"))
    still, tuned = numbers["tuned0", "seri"], numbers["tuned4", "seri"]
    assert tuned["flops"] > still["flops"]
    assert tuned["test_loss"] != still["test_loss"]
    if protocol == "personal/local":  # two classes each: easy to adapt to
        assert tuned["accuracy"] > still["accuracy"] + 0.05


class Nearest(Method):
    """FedAvg, whose clients are tested by the nearest mean of their own features, shifted by the client's number."""

    def predictors(self, server, state, ctx):
        if state is None:
            return super().predictors(server, None, ctx)
        return {"personal": Predictor(server["model"], consts={"shift": float(ctx.client)})}

    def adapt(self, start, ctx):
        assert start.consts["shift"] == ctx.client
        return [Collect({"rows": Rows(lambda net, batch, consts: net.features(batch.x))})]

    def adapted(self, work, predictor, ctx):
        rows, head = work.collected["rows"], torch.zeros(4, 6)
        for label in rows.labels.unique():
            head[label] = rows.values[rows.labels == label].mean(0)
        tree = work.tree | {"head.weight": 2 * head, "head.bias": -head.square().sum(1) + predictor.consts["shift"]}
        return dataclasses.replace(predictor, tree=tree)


@pytest.mark.parametrize("engine", ["processes", "stacked"])
def test_a_predictor_can_be_made_from_what_adapting_collected(engine):
    (toy, done), (_, others) = (after_tests(Nearest(), engine=name) for name in ("serial", engine))
    assert done == others
    scenario, x_test = toy.worker.evaluator_for(None).scenario, toy.worker.evaluator_for(None).scenario.test_set
    for client in (0, 1, 3):
        net, (x, y) = Tiny(), toy.samples(client)
        net.load_state_dict(toy.federation.server["model"])
        with torch.no_grad():
            z = net.features(x)
            means = torch.stack([z[y == c].mean(0) if (y == c).any() else torch.zeros(6) for c in range(4)])
            indices = scenario.test.tensor(client)
            far = torch.cdist(net.features(x_test.gather(indices)), means)
        correct = int((far.argmin(1) == x_test.y[indices]).sum())
        assert done[client].tested["personal"].value("accuracy") == pytest.approx(correct / len(indices))
    assert done[2].samples == 0


def test_hooks_of_the_server_know_the_client():
    asked = []

    class Asking(Tuned):
        def down(self, server, client, ctx):
            assert ctx.client == client
            return super().down(server, client, ctx)

        def aggregate(self, server, uploads, ctx):
            assert ctx.client == -1
            return super().aggregate(server, uploads, ctx)

        def unpack(self, server, uploads, of):
            assert [of(client).client for client in uploads] == list(uploads)
            return uploads

        def predictors(self, server, state, ctx):
            asked.append((state is None, ctx.client))
            return super().predictors(server, state, ctx)

    after_tests(Asking())
    assert sorted({*asked}) == [(False, 0), (False, 1), (False, 2), (False, 3)]
    asked.clear()
    after_tests(Asking(), protocol="global/global")
    assert {*asked} == {(True, -1)}


def test_tuning_of_a_wrapper_does_not_reach_the_base():
    class Tuning(METHODS.get("fedavg+finetune"), Nearest):
        pass

    work = Work({"w": torch.ones(1)}, {}, 0)
    assert Tuning(METHODS.get("fedavg+finetune").Options()).adapted(work, Predictor({}), None).tree is work.tree
