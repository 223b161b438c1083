"""What the server has: data and nets of its own, the choice of clients, rounds before the first and after the last."""

import numpy as np
import pytest
import torch

from fedloom.core.records import get_number, to_bytes, wire_size
from fedloom.core.streams import Streams
from fedloom.data import SOURCES, make_scenario
from fedloom.data.partitions.partition import PARTITIONS
from fedloom.flower.in_process import run_in_process
from fedloom.methods import register
from fedloom.methods.contract.method import Method
from fedloom.methods.contract.phases import Collect, Train
from fedloom.methods.contract.sample_statistics import SampleMean
from fedloom.methods.contract.spec import Sent, Spec
from fedloom.methods.parts.measures import features
from fedloom.nets.net import Role
from fedloom.runs.config.run_config import parse
from fedloom.runs.run import run
from flower_world import config_of
from support import (
    ENGINES,
    Recording,
    Stop,
    Tiny,
    TinyBN,
    TinyDropout,
    after,
    alike,
    dataset,
    same_bits,
    same_tree,
    world,
)

LABELS = [[0, 1, 2, 3, 0, 1, 2], [1, 1, 0, 2], [], [3, 2, 1, 0, 0], [0, 3]]


# -- data and nets of the server's own ---------------------------------------------------------------------------------
class Distils(Method):
    """Keeps the logits of the mean model on public data beside it."""

    def aggregate(self, server, uploads, ctx):
        model = self.mean(uploads)
        return {"model": model, "logits": ctx.net.logits(model, ctx.public.gather(torch.arange(len(ctx.public))))}


@pytest.mark.parametrize("net", [Tiny, TinyBN, TinyDropout])
def test_the_server_computes_on_public_data_in_evaluation_mode(net):
    public = dataset([0, 1, 2, 3, 3])
    toy = after(world(Distils(), LABELS, net=net, public=public), 2)
    fresh = net().eval()
    fresh.load_state_dict(toy.federation.server["model"])
    ours = toy.federation.server["logits"]
    assert not ours.requires_grad
    assert torch.allclose(ours, fresh(public.x), rtol=0, atol=1e-6)


@pytest.mark.parametrize("engine", ENGINES[1:])
def test_every_engine_has_the_same_server(engine):
    toys = [world(Distils(), LABELS, net=TinyBN, public=dataset([0, 1, 2])) for _ in range(2)]
    assert alike(after(toys[0], 3), after(toys[1], 3, engine), engine)


def test_every_hook_of_the_server_has_them_from_the_first_on():
    seen = {}

    class Noting(Method):
        def server_init(self, ctx):
            seen["server_init"] = ctx
            return super().server_init(ctx)

        def down(self, server, client, ctx):
            seen["down"] = ctx
            return super().down(server, client, ctx)

        def select(self, server, count, ctx):
            seen["select"] = ctx
            return super().select(server, count, ctx)

        def aggregate(self, server, uploads, ctx):
            seen["aggregate"] = ctx
            return super().aggregate(server, uploads, ctx)

        def diagnostics(self, server, uploads, ctx):
            seen["diagnostics"] = ctx
            return []

    public = dataset([0, 1])
    after(world(Noting(), LABELS, public=public), 1)
    rounds = {name: ctx.round for name, ctx in seen.items()}
    assert rounds == {"server_init": 0, "select": 1, "down": 1, "aggregate": 1, "diagnostics": 1}
    assert all(ctx.public is public and ctx.net is not None for ctx in seen.values())
    after(world(Noting(), LABELS), 1)
    assert all(ctx.public is None for ctx in seen.values())


@pytest.mark.parametrize(("partition", "keys"), [("iid", {}), ("dirichlet", {"alpha": 0.5})])
@pytest.mark.parametrize("val", [0.0, 0.2])
def test_nobody_else_holds_public_samples(partition, keys, val):
    splits = SOURCES.get("digits")().load()
    made = PARTITIONS.get(partition)(**keys)

    def scenario(public, seed=1):
        return make_scenario("digits", splits, made, clients=5, val=val, streams=Streams(seed), public=public)

    ours, train = scenario(0.25), splits.train
    count = int(np.ceil(0.25 * len(train)))
    assert len(ours.public) == count
    assert ours.public.classes == train.classes
    held = np.concatenate([ours.train.order, ours.val.order])
    assert len(np.unique(held)) == len(held) == len(train) - count
    left = np.setdiff1d(np.arange(len(train)), held)
    x, y = train.gather(torch.from_numpy(left)), train.y[left]
    assert torch.equal(ours.public.gather(torch.arange(count)), x)
    assert torch.equal(ours.public.y, y)
    again, other = scenario(0.25), scenario(0.25, seed=2)
    assert torch.equal(again.public.y, ours.public.y)
    assert not torch.equal(other.public.y, ours.public.y)
    assert scenario(0.0).public is None


def test_a_config_keeps_samples_for_the_server(registry):
    seen = []

    @register
    class Sees(Method):
        """FedAvg that notes what the server has."""

        def server_init(self, ctx):
            seen.append((ctx.public, ctx.net))
            return super().server_init(ctx)

    config = {"method": "sees", "model": "mlp", "scenario": {"source": "digits", "partition": "iid", "clients": 3}}
    without, held = config, config | {"scenario": config["scenario"] | {"public": 0.5}}
    results = [run(parse(one | {"rounds": 1, "engine": "serial"})).numbers for one in (without, held)]
    (none, _), (public, net) = seen
    assert none is None
    assert len(public) > 600
    assert net is not None
    assert results[0]["samples"] > 1.9 * results[1]["samples"]
    assert parse(held).fingerprint() != parse(without).fingerprint()


# -- who takes part ----------------------------------------------------------------------------------------------------
class Picks(Method):
    """Takes the clients that it is given, by round."""

    chosen = ([3, 1], [4], [2, 0])

    def select(self, server, count, ctx):
        assert ctx.task.clients == 5
        self.count = count
        return self.chosen[ctx.round - 1]


def test_a_method_says_who_takes_part():
    toy = after(world(Picks(), LABELS, participation=0.4, engine=Recording), 3)
    assert [report.participants for report in toy.reports] == [(1, 3), (4,), (0,)]  # client 2 has no data
    assert [job.ctx.client for job in toy.federation.engine.jobs] == [1, 3, 4, 0]
    assert toy.method.count == 2
    assert [report.samples_by_group for report in toy.reports] == [{0: 9}, {0: 2}, {0: 7}]


@pytest.mark.parametrize("wrong", [[5], [-1], [0, 0], [0, 1, 99]])
def test_clients_that_do_not_exist_or_come_twice_are_refused(wrong):
    toy = world(type("Picks", (Picks,), {"chosen": (wrong,)})(), LABELS)
    with pytest.raises(ValueError, match=r"picks selects clients .*need different ids of 0 .. 4"):
        toy.federation.step()
    assert toy.federation.round == 0


# -- the closing round -------------------------------------------------------------------------------------------------
class Heads(Method):
    """The closing round: every client sends its head after one epoch on it alone; the server keeps their mean."""

    def phases(self, start, ctx):
        return [Train(self.loss, 1, trains=frozenset({Role.HEAD}))]

    def down(self, server, client, ctx):
        return {"model": server["model"], "round": ctx.round}

    def begin(self, payload, state, ctx):
        assert payload["round"] == ctx.round
        return super().begin(payload, state, ctx)

    def end(self, work, state, ctx):
        payload, state = super().end(work, state, ctx)
        heads = {name: value for name, value in payload["model"].items() if name.startswith("head.")}
        return {"heads": heads, "samples": ctx.samples, "round": ctx.round}, {"closed": ctx.round}

    def aggregate(self, server, uploads, ctx):
        rounds = {upload["round"] for upload in uploads.values()}
        assert rounds == {ctx.round}
        return server | {"heads": self.mean(uploads, "heads"), "clients": len(uploads), "closed": ctx.round}


class Closes(Method):
    """FedAvg, closed by `Heads`."""

    def closing(self):
        return Heads()


# -- the opening round -------------------------------------------------------------------------------------------------
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


def of_stage(toy, stage):
    """Jobs and results of a stage."""
    pairs = zip(toy.federation.engine.jobs, toy.federation.engine.done, strict=True)
    return [(job, done) for job, done in pairs if job.stage == stage]


@pytest.mark.parametrize("participation", [1.0, 0.4])
def test_a_closing_round_runs_once_after_the_last_round_over_all_clients_with_data(participation):
    toy = world(Closes(), LABELS, participation=participation, rounds=3, engine=Recording)
    after(toy, 2)
    assert "heads" not in toy.federation.server
    after(toy, 1)
    assert toy.federation.round == 3
    assert (toy.federation.server["closed"], toy.federation.server["clients"]) == (4, 4)
    closing = [(job.ctx.client, job.ctx.round) for job, _ in of_stage(toy, "closing")]
    assert closing == [(k, 4) for k in (0, 1, 3, 4)] == [(j.ctx.client, 4) for j in toy.federation.engine.jobs[-4:]]
    last = [job.ctx.client for job, _ in of_stage(toy, "round") if job.ctx.round == 3]
    assert last == list(toy.reports[0].participants)
    assert 1 <= len(last) <= (4 if participation == 1 else 2)
    assert dict(toy.federation.states) == {k: {"closed": 4} for k in (0, 1, 3, 4)}


@pytest.mark.parametrize("participation", [1.0, 0.4])
def test_an_opening_round_runs_once_before_the_first_round_over_all_clients_with_data(participation):
    toy = after(world(Opens(), LABELS, participation=participation, engine=Recording), 2)
    jobs = toy.federation.engine.jobs
    assert [(job.ctx.client, job.ctx.round, job.stage) for job in jobs[:4]] == [(k, 0, "opening") for k in (0, 1, 3, 4)]
    assert {(job.ctx.round, job.stage) for job in jobs[4:]} == {(1, "round"), (2, "round")}
    assert toy.federation.server["clients"] == 4
    assert toy.federation.server["opened"] == len(toy.reports[-1].participants)
    plain = after(world(Method(), LABELS, participation=participation), 2)
    assert [r.participants for r in toy.reports] == [r.participants for r in plain.reports]
    assert same_tree(toy.federation.server["model"], plain.federation.server["model"])


@pytest.mark.parametrize(("method", "stage", "place"), [(Closes, "closing", -1), (Opens, "opening", 0)])
def test_bytes_steps_and_samples_of_an_extra_round_count_once(method, stage, place):
    toy, plain = (after(world(kind, LABELS, rounds=2, engine=Recording), 2) for kind in (method(), Method()))
    extra = of_stage(toy, stage)
    ours, theirs = toy.reports[place], plain.reports[place]
    told = 4 * (wire_size({"opened": 1}) - wire_size({})) if method is Opens else 0  # what clients say in each round
    sent = ours.bytes_up - theirs.bytes_up - told - sum(wire_size(done.upload) for _, done in extra)
    assert sent == 0 if method is Closes else 0 <= sent < 40
    assert ours.bytes_down - theirs.bytes_down == sum(wire_size(job.payload) for job, _ in extra)
    assert ours.steps - theirs.steps == sum(done.steps for _, done in extra) == 2 + 1 + 2 + 1
    assert ours.samples - theirs.samples == sum(map(len, LABELS))
    assert (ours.terms, ours.participants) == (theirs.terms, theirs.participants)
    other, plain_one = toy.reports[-1 - place], plain.reports[-1 - place]
    assert (other.steps, other.samples, other.bytes_down) == (plain_one.steps, plain_one.samples, plain_one.bytes_down)
    if method is Opens:
        assert sum(ours.opening_samples_by_group.values()) == sum(map(len, LABELS))
        assert not other.opening_samples_by_group


@pytest.mark.parametrize("engine", ENGINES[1:])
@pytest.mark.parametrize("method", [Closes, Opens])
def test_extra_rounds_are_the_same_on_every_engine(method, engine):
    toys = [world(method(), LABELS, net=TinyBN, rounds=2, participation=0.6) for _ in range(2)]
    assert alike(after(toys[0], 2), after(toys[1], 2, engine), engine)


@pytest.mark.parametrize(("kind", "cuts"), [(Closes, (2, 3)), (Opens, (1,))])
def test_a_run_has_its_extra_round_once_resumed_or_not(kind, cuts, registry, tmp_path):
    register(type(kind.__name__, (kind,), {"__doc__": "FedAvg with a further round."}))
    words = {
        "model": "mlp",
        "scenario": {"source": "digits", "partition": "iid", "clients": 4},
        "rounds": 3,
        "participation": 0.5,
        "checkpoint": {"seconds": 0},
        "engine": "serial",
    }
    config = parse(words | {"method": kind.name()})
    whole = run(config, out=tmp_path / "whole").numbers
    for cut in cuts:
        with pytest.raises(ConnectionError):
            run(config, out=tmp_path / f"cut{cut}", callbacks=[Stop(cut)])
        resumed = run(config, out=tmp_path / f"cut{cut}", existing="resume").numbers
        names = ("checkpoint_sha256", "bytes_up", "bytes_down", "samples", "accuracy", "flops")
        assert {name: resumed[name] for name in names} == {name: whole[name] for name in names}
    plain = run(parse(words | {"method": "fedavg"})).numbers
    assert all(whole[name] > plain[name] for name in ("bytes_up", "samples", "flops"))
    assert whole["test_loss"] == plain["test_loss"]  # an extra round leaves the model


def test_over_flower_it_has_the_bits_of_the_simulation(registry, tmp_path):
    """States of the opening round stay on the nodes, and a client that is drawn later continues from its own."""
    register(type("Opens", (Opens,), {"__doc__": "FedAvg after an opening round."}))
    config = config_of("opens", rounds=2)
    here, there = run(config), run_in_process(config, states=tmp_path)
    assert same_bits(here.memory.weights[2].server, there.memory.weights[2].server)
    assert here.memory.weights[2].server["opened"] > 0
    assert [here.numbers[key] for key in ("bytes_up", "flops")] == [there.numbers[key] for key in ("bytes_up", "flops")]
    assert to_bytes({"opened": 0}) in {file.read_bytes() for file in tmp_path.glob("*/client-*/round-000000.*")}
