"""A round over all clients before the first: counted, resumed, and the same on every engine and over Flower."""

import pytest

from fedloom.core.records import get_number, to_bytes, wire_size
from fedloom.flower.in_process import run_in_process
from fedloom.methods import register
from fedloom.methods.contract.method import Method
from fedloom.methods.contract.phases import Collect, Train
from fedloom.methods.contract.sample_statistics import SampleMean
from fedloom.methods.contract.spec import Sent, Spec
from fedloom.methods.parts.measures import features
from fedloom.runs.config.run_config import parse
from fedloom.runs.run import run
from flower_world import config_of
from support import ENGINES, Recording, Stop, TinyBN, after, alike, same_bits, same_tree, world

LABELS = [[0, 1, 2, 3, 0, 1, 2], [1, 1, 0, 2], [], [3, 2, 1, 0, 0], [0, 3]]


class Centre(Method):
    """The opening round: clients train, and send the mean of their features; nothing else of it stays."""

    spec = Spec(sends={"centre": Sent()})

    def phases(self, start, ctx):
        return [Train(self.loss, 1), Collect({"centre": SampleMean(features)})]

    def end(self, work, state, ctx):
        return {"centre": work.collected["centre"], "samples": ctx.samples}, {"opened": ctx.round}

    def aggregate(self, server, uploads, ctx):
        return server | {"centre": self.mean(uploads, "centre"), "clients": len(uploads)}


class Opens(Method):
    """FedAvg from the opening round `Centre` on. Clients keep the state of it, and say so."""

    spec = Spec(sends={"model": Sent(), "opened": Sent(per_client=True)})

    def opening(self):
        return Centre()

    def end(self, work, state, ctx):
        payload, _ = super().end(work, state, ctx)
        return payload | {"opened": int("opened" in state)}, state

    def aggregate(self, server, uploads, ctx):
        opened = sum(int(get_number(upload, "opened")) for upload in uploads.values())
        return server | super().aggregate(server, uploads, ctx) | {"opened": opened}


@pytest.mark.parametrize("participation", [1.0, 0.4])
def test_it_runs_once_before_the_first_round_over_all_clients_with_data(participation):
    toy = after(world(Opens(), LABELS, participation=participation, engine=Recording), 2)
    jobs, everyone = toy.federation.engine.jobs, [0, 1, 3, 4]
    assert [(job.ctx.client, job.ctx.round, job.stage) for job in jobs[:4]] == [(k, 0, "opening") for k in everyone]
    assert {(job.ctx.round, job.stage) for job in jobs[4:]} == {(1, "round"), (2, "round")}
    assert toy.federation.server["clients"] == 4
    assert toy.federation.server["opened"] == len(toy.reports[-1].participants)
    plain = after(world(Method(), LABELS, participation=participation), 2)
    assert [r.participants for r in toy.reports] == [r.participants for r in plain.reports]
    assert same_tree(toy.federation.server["model"], plain.federation.server["model"])


def test_its_bytes_steps_and_samples_count():
    toy, plain = (after(world(method, LABELS, engine=Recording), 2) for method in (Opens(), Method()))
    opening = toy.federation.engine.done[:4]
    ours, theirs = toy.reports[0], plain.reports[0]
    upload = wire_size({"opened": 1}) - wire_size({})
    assert ours.bytes_up - theirs.bytes_up >= sum(wire_size(done.upload) for done in opening) + 4 * upload
    down = [job.payload for job in toy.federation.engine.jobs[:4]]
    assert ours.bytes_down - theirs.bytes_down == sum(map(wire_size, down))
    assert ours.steps - theirs.steps == sum(done.steps for done in opening) == 2 + 1 + 2 + 1
    assert ours.samples - theirs.samples == sum(map(len, LABELS)) == sum(ours.opening_samples_by_group.values())
    assert ours.terms == theirs.terms
    assert not toy.reports[1].opening_samples_by_group
    assert toy.reports[1].steps == plain.reports[1].steps


@pytest.mark.parametrize("engine", ENGINES[1:])
def test_every_engine_opens_alike(engine):
    toys = [world(Opens(), LABELS, net=TinyBN, participation=0.6) for _ in range(2)]
    assert alike(after(toys[0], 2), after(toys[1], 2, engine), engine)


@pytest.fixture
def opens(registry):
    return register(type("Opens", (Opens,), {"__doc__": "FedAvg after an opening round."}))


def test_a_run_opens_once_resumed_or_not(opens, tmp_path):
    words = {
        "model": "mlp",
        "scenario": {"source": "digits", "partition": "iid", "clients": 4},
        "rounds": 2,
        "participation": 0.5,
        "checkpoint": {"seconds": 0},
        "engine": "serial",
    }
    config = parse(words | {"method": "opens"})
    whole = run(config, out=tmp_path / "whole").numbers
    with pytest.raises(ConnectionError):
        run(config, out=tmp_path / "cut", callbacks=[Stop(1)])
    resumed = run(config, out=tmp_path / "cut", existing="resume").numbers
    names = ("checkpoint_sha256", "bytes_up", "bytes_down", "samples", "accuracy", "flops")
    assert {name: resumed[name] for name in names} == {name: whole[name] for name in names}
    plain = run(parse(words | {"method": "fedavg"})).numbers
    assert all(whole[name] > plain[name] for name in ("bytes_up", "samples", "flops"))
    assert whole["test_loss"] == plain["test_loss"]  # the opening round leaves the model


def test_over_flower_it_has_the_bits_of_the_simulation(opens, tmp_path):
    """States of the opening round stay on the nodes, and a client that is drawn later continues from its own."""
    config = config_of("opens", rounds=2)
    here, there = run(config), run_in_process(config, states=tmp_path)
    assert same_bits(here.memory.weights[2].server, there.memory.weights[2].server)
    assert here.memory.weights[2].server["opened"] > 0
    assert [here.numbers[key] for key in ("bytes_up", "flops")] == [there.numbers[key] for key in ("bytes_up", "flops")]
    assert to_bytes({"opened": 0}) in {file.read_bytes() for file in tmp_path.glob("*/client-*/round-000000.*")}
