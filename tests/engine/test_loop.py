"""The round loop: who takes part, what is counted, and that nothing depends on anything but the seed."""

import dataclasses
import random
import traceback

import numpy as np
import pytest
import torch

import fedloom
from fedloom.core.errors import ClientError, ConfigError, ServerError
from fedloom.core.records import to_bytes
from fedloom.core.streams import Streams
from fedloom.engine import PASS_BATCH, Federation, LocalTraining, Serial, Worker
from fedloom.evaluation import Evaluator
from fedloom.methods import METHODS, register
from fedloom.methods.contract.contexts import Diagnostic, Task
from fedloom.methods.contract.method import Method
from fedloom.methods.contract.phases import Objective, OptimizerSpec
from support import (
    Backwards,
    Recording,
    Tiny,
    TinyBN,
    TinyDropout,
    configured,
    furthest,
    same_bits,
    same_tree,
    scores_of,
    world,
)

LABELS = [[0, 1, 2, 3, 0, 1, 2], [1, 1, 0], [3, 3], [2, 0, 1, 1, 3], [0, 2, 2, 2, 2, 1]]
MOMENTUM = OptimizerSpec(lr=0.1, momentum=0.9)
NAMES = ["fedavg", "fedprox", "fedsc", "local"]


def states_and_server(toy):
    """All that a checkpoint would hold, as bytes."""
    federation = toy.federation
    return to_bytes(federation.server), {k: to_bytes(v) for k, v in sorted(federation.states.items())}


# -- participants ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("participation", "expected"), [(1.0, 10), (0.5, 5), (0.3, 3), (0.1, 1), (0.01, 1)])
def test_number_of_participants(participation, expected):
    federation = world(Method(), [[0, 1]] * 10, participation=participation).federation
    for round_ in range(1, 20):
        drawn = federation.participants(round_)
        assert len(drawn) == expected
        assert len(set(drawn)) == expected  # without replacement
        assert drawn == sorted(drawn)
        assert set(drawn) <= set(range(10))
        assert all(type(client) is int for client in drawn)


def test_participants_follow_from_seed_and_round_alone():
    def draws(seed):
        federation = world(Method(), [[0, 1]] * 10, participation=0.4, seed=seed).federation
        return [federation.participants(round_) for round_ in range(1, 30)]

    first = draws(3)
    np.random.seed(1)  # noqa: NPY002 - the global generator must not matter
    random.seed(1)
    torch.manual_seed(1)
    assert draws(3) == first
    assert draws(4) != first
    assert len({tuple(d) for d in first}) > 10
    assert {k for d in first for k in d} == set(range(10))
    # asking for round 7 first gives round 7
    federation = world(Method(), [[0, 1]] * 10, participation=0.4, seed=3).federation
    assert federation.participants(7) == first[6]


def test_every_client_is_drawn_about_equally_often():
    federation = world(Method(), [[0]] * 8, participation=0.25).federation
    counts = np.bincount([k for round_ in range(1, 1001) for k in federation.participants(round_)], minlength=8)
    assert counts.sum() == 2000
    assert abs(counts - 250).max() < 70  # five standard deviations of a binomial with n = 1000, p = 1/4


def test_clients_without_data_sit_out():
    toy = world(Method(), [[0, 1], [], [2]], engine=Recording)
    report = toy.federation.step()
    assert report.participants == (0, 2)
    assert [job.ctx.client for job in toy.federation.engine.jobs] == [0, 2]
    assert all(value.isfinite().all() for value in toy.federation.server["model"].values())


def test_a_round_without_any_data_changes_nothing_but_the_round():
    toy = world(Method(), [[], [0, 1], [2]], participation=1 / 3)
    empty = next(r for r in range(1, 50) if toy.federation.participants(r) == [])
    before = to_bytes(toy.federation.server)
    toy.federation.round = empty - 1
    report = toy.federation.step()
    assert (report.participants, report.bytes_up, report.bytes_down, report.steps) == ((), 0, 0, 0)
    assert report.terms == {}
    assert to_bytes(toy.federation.server) == before
    assert toy.federation.round == empty


# -- what is reported --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", NAMES)
def test_bytes_are_those_of_the_serialised_payloads(name):
    toy = world(configured(name), LABELS, participation=0.6, engine=Recording, net=TinyBN)
    for _ in range(3):
        engine = toy.federation.engine
        engine.jobs.clear()
        engine.done.clear()
        report = toy.federation.step()
        assert len(report.participants) == 3
        assert report.bytes_down == sum(len(to_bytes(job.payload)) for job in engine.jobs if job.payload)
        assert report.bytes_up == sum(len(to_bytes(done.upload)) for done in engine.done if done.upload)
        floor = 4 * sum(v.numel() for v in toy.task.init.values()) * len(report.participants)
        if name == "local":
            assert report.bytes_up == report.bytes_down == 0
        else:
            assert min(report.bytes_up, report.bytes_down) > floor


def test_jobs_come_the_largest_first_and_are_made_when_asked_for():
    class Watching(Serial):
        def run(self, jobs):
            assert len(jobs) == len(LABELS)
            for number, job in enumerate(jobs, start=1):
                assert len(made) == number
                sizes.append(len(job.indices))
                yield self.worker.run(job)

    made, sizes = [], []
    toy = world(Method(), LABELS)
    toy.federation.engine = Watching(toy.worker)
    job = toy.federation.job
    toy.federation.job = lambda client, *rest, **named: made.append(client) or job(client, *rest, **named)
    toy.federation.step()
    assert sizes == sorted(map(len, LABELS), reverse=True)


def test_a_report_adds_up_over_participants():
    toy = world(Method(), LABELS, participation=0.6, engine=Recording, epochs=2)
    for expected_round in (1, 2, 3):
        toy.federation.engine.done.clear()
        report = toy.federation.step()
        done = toy.federation.engine.done
        assert report.round == toy.federation.round == expected_round
        assert list(report.participants) == toy.federation.participants(expected_round)
        done.sort(key=lambda one: one.client)
        assert [one.client for one in done] == list(report.participants)
        sizes = [len(LABELS[k]) for k in report.participants]
        assert report.samples == 2 * sum(sizes)
        assert report.steps == 2 * sum(-(-n // 4) for n in sizes)
        weighted = sum(d.terms["loss"] * n for d, n in zip(done, sizes, strict=True)) / sum(sizes)
        assert report.terms == {"loss": pytest.approx(weighted)}
        assert report.seconds.train > 0
        assert report.seconds.aggregate > 0


def test_terms_that_only_some_clients_report_are_averaged_over_those():
    class Partial(Method):
        def begin(self, payload, state, ctx):
            self.client = ctx.client
            return super().begin(payload, state, ctx)

        def loss(self, net, batch, consts):
            terms = {"extra": torch.tensor(float(self.client))} if self.client in (1, 3) else {}
            return Objective(super().loss(net, batch, consts), terms=terms)

    report = world(Partial(), LABELS).federation.step()
    assert report.terms == {"extra": pytest.approx((1 * 3 + 3 * 5) / 8)}


# -- the same seed, the same bits --------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("net", [TinyBN, TinyDropout])
def test_same_seed_same_bits(name, net):
    results = []
    for noise, seed in ((0, 3), (99, 3), (0, 4)):
        torch.manual_seed(noise)
        toy = world(configured(name), LABELS, net=net, epochs=2, participation=0.6, optimizer=MOMENTUM, seed=seed)
        reports = []
        for _ in range(3):
            torch.rand(noise)
            reports.append(toy.federation.step())
        results.append((states_and_server(toy), [r.terms for r in reports]))
    assert results[0] == results[1]
    assert results[0] != results[2]


@pytest.mark.parametrize("name", NAMES)
def test_clients_may_run_in_any_order(name):
    keys = {"net": TinyDropout, "epochs": 2, "participation": 0.8, "optimizer": MOMENTUM}
    forwards, backwards = (world(configured(name), LABELS, **keys, **engine) for engine in ({}, {"engine": Backwards}))
    for _ in range(3):
        first, second = forwards.federation.step(), backwards.federation.step()
        assert first.terms == second.terms  # to the last bit, too
        assert (first.bytes_up, first.bytes_down) == (second.bytes_up, second.bytes_down)
        assert first.participants == second.participants
    assert states_and_server(forwards) == states_and_server(backwards)


def test_reported_terms_are_summed_by_client_whatever_the_engine_finished_first():
    class Cancelling(Method):
        """Terms whose float sum depends on the order: 1e16 - 1e16 + 1."""

        def begin(self, payload, state, ctx):
            self.term = torch.tensor([1e16, -1e16, 1.0])[ctx.client]
            return super().begin(payload, state, ctx)

        def loss(self, net, batch, consts):
            return Objective(super().loss(net, batch, consts), terms={"term": self.term})

    for engine in ({}, {"engine": Backwards}):
        report = world(Cancelling(), [[0, 1]] * 3, **engine).federation.step()
        assert report.terms == {"term": pytest.approx(1 / 3)}


@pytest.mark.parametrize("name", NAMES)
def test_a_federation_goes_on_from_its_three_values(name):
    """Round, server state and client states are all there is: a new object that gets them continues bit for bit."""
    keys = {"net": TinyDropout, "participation": 0.6, "optimizer": MOMENTUM}
    whole = world(configured(name), LABELS, **keys)
    for _ in range(2):
        whole.federation.step()
    fresh = world(configured(name), LABELS, **keys)
    fresh.federation.round, fresh.federation.server = 2, dict(whole.federation.server)
    fresh.federation.states = dict(whole.federation.states)
    for toy in (whole, fresh):
        toy.federation.step()
        toy.federation.step()
    assert states_and_server(whole) == states_and_server(fresh)


@pytest.mark.parametrize("name", NAMES)
def test_partial_participation_touches_participants_only(name):
    toy = world(configured(name), LABELS, participation=0.4, engine=Recording)
    for _ in range(5):
        before = {k: to_bytes(v) for k, v in toy.federation.states.items()}
        report = toy.federation.step()
        for client, state in before.items():
            if client not in report.participants:
                assert to_bytes(toy.federation.states[client]) == state
        assert set(toy.federation.states) <= set(before) | set(report.participants)


def test_the_model_is_the_weighted_mean_of_the_participants_only():
    toy = world(Method(), LABELS, participation=0.4, engine=Recording)
    toy.federation.step()
    uploads = [done.upload for done in toy.federation.engine.done]
    assert len(uploads) == 2
    total = sum(len(LABELS[done.client]) for done in toy.federation.engine.done)
    for name, value in toy.federation.server["model"].items():
        mean = sum(
            len(LABELS[done.client]) / total * done.upload["model"][name].double()
            for done in toy.federation.engine.done
        )
        assert torch.allclose(value.double(), mean, rtol=0, atol=1e-7)


@pytest.mark.parametrize("participation", [0.6, 1.0])
def test_every_client_has_trained_before_the_server_aggregates(participation):
    trained: list[int] = []

    class Watching(Method):
        def end(self, work, state, ctx):
            trained.append(ctx.client)
            return super().end(work, state, ctx)

        def aggregate(self, server, uploads, ctx):
            self.trained, self.order = list(trained), list(uploads)
            return super().aggregate(server, uploads, ctx)

    toy = world(Watching(), LABELS, participation=participation)
    report = toy.federation.step()
    assert sorted(toy.method.trained) == toy.method.order == list(report.participants) == sorted(report.participants)


def test_a_method_knows_who_was_drawn():
    asked = []

    class Asking(Method):
        def select(self, server, count, ctx):
            assert ctx.drawn == ()
            return super().select(server, count, ctx)

        def down(self, server, client, ctx):
            asked.append((ctx.round, client, ctx.drawn))
            return super().down(server, client, ctx)

        def unpack(self, server, uploads, of):
            assert all(of(client).drawn == tuple(uploads) for client in uploads)
            return uploads

        def aggregate(self, server, uploads, ctx):
            assert ctx.drawn == tuple(uploads)
            return super().aggregate(server, uploads, ctx)

    toy = world(Asking(), LABELS, participation=0.4)
    drawn = {report.round: report.participants for report in (toy.federation.step() for _ in range(3))}
    assert sorted(asked) == [(round_, client, ids) for round_, ids in drawn.items() for client in ids]


SERVER_HOOKS = {
    **dict.fromkeys(
        ["extra", "opening", "closing", "examine", "server_init", "predictors"], "the server failed in round 0"
    ),
    **dict.fromkeys(["select", "unpack", "aggregate", "diagnostics", "figures"], "the server failed in round 1"),
    **dict.fromkeys(["client_init", "down"], "the server, for client 0, failed in round 1"),
}
CLIENT_HOOKS = {hook: f"client 0 failed in round 1 ({hook})" for hook in ["begin", "phases", "end", "pack"]}


@pytest.mark.parametrize("engine", ["serial", "threads", "processes", "batched"])
@pytest.mark.parametrize("hook", [*SERVER_HOOKS, *CLIENT_HOOKS, "adapt"])
def test_an_error_in_a_hook_names_method_hook_round_and_client(hook, engine, own_methods):
    @register
    class Broken(Method):
        pass

    def broken(*arguments):
        raise ZeroDivisionError("no partner")

    setattr(Broken, hook, broken)
    words = SERVER_HOOKS.get(hook) or CLIENT_HOOKS.get(hook) or "client 0 failed in round 1"
    keys = {**KEYS, "engine": {"name": engine, "workers": 1}, "evaluation": {"protocol": "personal/local"}}
    with pytest.raises(ClientError) as caught:
        fedloom.run(method="broken", rounds=1, **(keys if hook == "adapt" else KEYS | {"engine": keys["engine"]}))
    assert isinstance(caught.value, ServerError) == (hook in SERVER_HOOKS)
    assert str(caught.value) == f"broken: {words.removesuffix(f' ({hook})')} ({hook}): ZeroDivisionError: no partner"


def test_a_server_that_asks_for_a_stranger_hears_so():
    class Asks(Method):
        def aggregate(self, server, uploads, ctx):
            uploads[99]
            return server

    with pytest.raises(ServerError, match="99"):
        world(Asks(), LABELS).federation.step()


# -- clients with different nets ---------------------------------------------------------------------------------------
def two_architectures(method):
    """Even clients have `Tiny`, odd ones `TinyBN`."""
    toy, streams = world(Method(), LABELS), Streams(3)
    with streams.isolated("init"):
        nets = [Tiny(), TinyBN()]
    facts = {"clients": len(LABELS), "num_classes": 4, "rounds": 5, "local_epochs": 1, "streams": streams}
    tasks = [Task.of(net, group=group, **facts) for group, net in enumerate(nets)]
    worker = Worker(method, nets, toy.data, LocalTraining(4, MOMENTUM))
    return worker, Federation(method, Serial(worker), tasks, toy.scenario, participation=1.0)


def test_clients_with_different_nets_train_and_are_tested_each_with_its_own():
    worker, federation = two_architectures(configured("local"))
    ours = [federation.task_of(k) for k in range(5)]
    assert [task.group for task in ours] == [0, 1, 0, 1, 0]
    assert federation.server_context().task is federation.server_context(0).task is federation.tasks[0]
    for _ in range(3):
        federation.step()
    trees = {k: federation.states[k]["model"] for k in range(5)}
    for client, tree in trees.items():
        assert list(tree) == list(ours[client].init)
        assert furthest(tree, ours[client].init) > 1e-3
    assert not same_tree(trees[1], trees[3])
    # each alone in a federation of its architecture has the same weights
    for net, clients in ((Tiny, (0, 2, 4)), (TinyBN, (1, 3))):
        alone = world(configured("local"), LABELS, net=net, optimizer=MOMENTUM)
        alone.federation.tasks = [dataclasses.replace(federation.tasks[net is TinyBN], group=0)]
        for _ in range(3):
            alone.federation.step()
        for client in clients:
            assert same_tree(alone.federation.states[client]["model"], trees[client])
    evaluator = Evaluator(federation.scenario, "personal/local", batch=PASS_BATCH)
    scores = scores_of(evaluator, offered_by(federation), worker.net_of_client)
    for client, tree in trees.items():
        net = (TinyBN if client % 2 else Tiny)().eval()
        net.load_state_dict(tree)
        indices = federation.scenario.test.tensor(client)
        data = federation.scenario.test_set
        right = int((net(data.gather(indices)).argmax(1) == data.y[indices]).sum())
        assert (scores.clients[client].states["accuracy"].correct, scores.clients[client].total) == (
            right,
            len(LABELS[client]),
        )


def offered_by(federation):
    """Every client's predictors, as a run asks for them."""
    for client in range(len(LABELS)):
        ctx = federation.server_context(client)
        yield client, federation.method.predictors(federation.server, federation.states[client], ctx)


@pytest.mark.parametrize("name", ["fedavg", "fedprox", "fedsc"])
def test_a_method_that_averages_refuses_different_nets(name):
    with pytest.raises(ConfigError) as caught:
        two_architectures(configured(name))
    said = f"{name} averages weights of one architecture, the clients have 2; use one model, or a method for several: "
    assert str(caught.value).startswith(said)
    assert "local" in str(caught.value).removeprefix(said).split(", ")


def test_runs_take_several_models_or_refuse_them():
    digits = fedloom.scenario("digits", partition="iid", clients=4)
    keys = {"scenario": digits, "model": ["mlp", "digits-cnn"], "rounds": 2}
    result = fedloom.run(method="local", evaluation={"protocol": "personal/local"}, **keys)
    assert result.numbers["model"] == "mlp, digits-cnn"
    assert result.numbers["accuracy"] > 0.3
    with pytest.raises(ConfigError, match="fedavg averages weights of one architecture, the clients have 2"):
        fedloom.run(method="fedavg", **keys)


def test_what_a_method_finds_before_the_first_round_is_kept():
    class Wary(Method):
        def examine(self, tasks, participants):
            return [Diagnostic("wary", f"{participants} of {tasks[0].clients}", float(len(tasks)))]

    federation = world(Wary(), LABELS, participation=0.4).federation
    assert federation.initial_diagnostics == [Diagnostic("wary", "2 of 5", 1.0)]
    assert federation.step().diagnostics == []


# -- a method that the loop has never heard of -------------------------------------------------------------------------
def test_a_lost_client_state_starts_again_from_client_init():
    toy, other = (world(configured("local"), LABELS) for _ in range(2))
    for run in (toy, other):
        run.federation.step()
    del toy.federation.states[1]
    trained = toy.federation.step()
    other.federation.step()
    assert trained.participants == (0, 1, 2, 3, 4)
    assert not same_bits(toy.federation.states[1], other.federation.states[1])
    assert same_bits(toy.federation.states[0], other.federation.states[0])


@pytest.fixture
def own_methods(monkeypatch):
    METHODS.names()
    monkeypatch.setattr(METHODS, "_entries", dict(METHODS._entries))


KEYS = {"scenario": {"source": "digits", "clients": 6}, "engine": {"name": "serial"}, "progress": False}


def test_few_frames_lie_between_a_run_and_a_loss(own_methods):
    stacks: list[list[str]] = []

    @register
    class Tracing(Method):
        def loss(self, net, batch, consts):
            stacks.append([frame.name for frame in traceback.extract_stack()])
            return super().loss(net, batch, consts)

    here = len(traceback.extract_stack())
    fedloom.run(method="tracing", rounds=2, **KEYS)
    of_rounds = [stack[here:] for stack in stacks if "_run_round" in stack]
    assert max(map(len, of_rounds)) <= 20, max(of_rounds, key=len)


def test_a_method_that_pairs_participants_runs_and_resumes(own_methods, tmp_path):
    pairs: set[tuple[int, int, int]] = set()

    @register
    class Pairing(Method):
        def down(self, server, client, ctx):
            partner = ctx.drawn[ctx.drawn.index(client) - 1]  # a ValueError for whoever was not drawn
            pairs.add((ctx.round, client, partner))
            return super().down(server, client, ctx)

    keys = {**KEYS, "method": "pairing", "participation": 0.5, "rounds": 3}
    whole = fedloom.run(**keys, out=tmp_path / "whole")
    expected = set(pairs)
    assert len(expected) == 9
    assert whole.numbers["flops"] > 0
    (tmp_path / "whole" / "summary.json").unlink()  # as if the process had died after the last round
    again = fedloom.run(**keys, out=tmp_path / "whole", existing="resume")
    assert again.numbers["accuracy"] == whole.numbers["accuracy"]
    assert again.numbers["flops"] is None
    assert again.numbers["flops_note"].startswith("operations are not counted: ServerError: pairing: the server, for")
    assert pairs == expected
