"""What the server has beside uploads: data and nets of its own, the choice of clients, a closing round."""

import numpy as np
import pytest
import torch

from fedloom.core.records import wire_size
from fedloom.core.streams import Streams
from fedloom.data import SOURCES, make_scenario
from fedloom.data.partitions.partition import PARTITIONS
from fedloom.methods import register
from fedloom.methods.contract.method import Method
from fedloom.methods.contract.phases import Train
from fedloom.nets.net import Role
from fedloom.runs.config.run_config import parse
from fedloom.runs.run import run
from support import ENGINES, Recording, Stop, Tiny, TinyBN, TinyDropout, after, alike, dataset, world

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


@pytest.mark.parametrize("participation", [1.0, 0.4])
def test_it_runs_once_after_the_last_round_over_all_clients_with_data(participation):
    toy = world(Closes(), LABELS, participation=participation, rounds=3, engine=Recording)
    for round_ in (1, 2):
        after(toy, 1)
        assert "heads" not in toy.federation.server
        assert toy.federation.round == round_
    before = len(toy.federation.engine.jobs)
    after(toy, 1)
    (report,) = toy.reports
    assert toy.federation.round == 3
    assert (toy.federation.server["closed"], toy.federation.server["clients"]) == (4, 4)
    last, closing = toy.federation.engine.jobs[before:-4], toy.federation.engine.jobs[-4:]
    assert [job.ctx.client for job in last] == list(report.participants)
    assert 1 <= len(last) <= (4 if participation == 1 else 2)
    assert [(job.ctx.client, job.ctx.round, job.stage) for job in closing] == [(k, 4, "closing") for k in (0, 1, 3, 4)]
    assert all(job.stage == "round" for job in toy.federation.engine.jobs[:-4])
    assert dict(toy.federation.states) == {k: {"closed": 4} for k in (0, 1, 3, 4)}


def test_its_bytes_steps_and_samples_count():
    toy, plain = (after(world(method, LABELS, rounds=2, engine=Recording), 2) for method in (Closes(), Method()))
    closing = toy.federation.engine.done[-4:]
    ours, theirs = toy.reports[-1], plain.reports[-1]
    assert ours.bytes_up - theirs.bytes_up == sum(wire_size(done.upload) for done in closing)
    down = [job.payload for job in toy.federation.engine.jobs[-4:]]
    assert ours.bytes_down - theirs.bytes_down == sum(map(wire_size, down))
    assert ours.steps - theirs.steps == sum(done.steps for done in closing) == 2 + 1 + 2 + 1
    assert ours.samples - theirs.samples == sum(map(len, LABELS))
    assert ours.terms == theirs.terms
    assert ours.participants == theirs.participants
    assert toy.reports[0].bytes_up == plain.reports[0].bytes_up


@pytest.mark.parametrize("engine", ENGINES[1:])
def test_every_engine_closes_alike(engine):
    toys = [world(Closes(), LABELS, net=TinyBN, rounds=2, participation=0.6) for _ in range(2)]
    assert alike(after(toys[0], 2), after(toys[1], 2, engine), engine)


def test_a_run_closes_once_resumed_or_not(registry, tmp_path):
    register(type("Closes", (Closes,), {"__doc__": "FedAvg, closed."}))
    words = {
        "model": "mlp",
        "scenario": {"source": "digits", "partition": "iid", "clients": 4},
        "rounds": 3,
        "participation": 0.5,
        "checkpoint": {"seconds": 0},
        "engine": "serial",
    }
    config = parse(words | {"method": "closes"})
    whole = run(config, out=tmp_path / "whole").numbers
    for cut in (2, 3):
        with pytest.raises(ConnectionError):
            run(config, out=tmp_path / f"cut{cut}", callbacks=[Stop(cut)])
        resumed = run(config, out=tmp_path / f"cut{cut}", existing="resume").numbers
        names = ("checkpoint_sha256", "bytes_up", "bytes_down", "samples", "accuracy", "flops")
        assert {name: resumed[name] for name in names} == {name: whole[name] for name in names}
    plain = run(parse(words | {"method": "fedavg"})).numbers
    assert whole["bytes_up"] > plain["bytes_up"]
    assert whole["samples"] > plain["samples"]
    assert whole["flops"] > plain["flops"]
    assert whole["test_loss"] == plain["test_loss"]  # the closing round leaves the model
