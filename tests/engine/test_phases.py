"""How long a training phase is and what it leaves alone: the same on every engine."""

import pytest
import torch

from fedloom.core.errors import ClientError
from fedloom.methods.contract.method import Method
from fedloom.methods.contract.phases import Collect, Objective, OptimizerSpec, Train
from fedloom.methods.contract.sample_statistics import SampleMean
from fedloom.nets.net import BN_ROLES, Role
from support import (
    ENGINES,
    EVERY_ENGINE,
    Tiny,
    TinyBN,
    TinyDropout,
    TinyInstance,
    after,
    alike,
    same_on,
    same_tree,
    world,
)

LABELS = [[0, 1, 2, 3, 0, 1, 2], [1, 1, 0, 2], [3, 2, 1, 0, 0, 1, 1, 2, 3], [1, 1, 0, 2]]
EVERY = frozenset(Role)


class Shaped(Method):
    """FedAvg whose training phase has these fields; clients keep what came of it."""

    def __init__(self, **fields):
        super().__init__()
        self.fields = fields

    def phases(self, start, ctx):
        return [Train(self.loss, **{"epochs": ctx.task.local_epochs} | self.fields)]

    def end(self, work, state, ctx):
        payload, _ = super().end(work, state, ctx)
        terms = {f"term.{name}": value for name, value in work.terms.items()}
        collected = {f"collected.{name}": value for name, value in work.collected.items()}
        return payload, {"steps": work.steps} | terms | collected


def until_two(means):
    return len(means) == 2


def uphill(gradients, parameters, consts):
    """To where the loss is higher, by a length of 0.1 for the head alone."""
    length = torch.stack([gradients[name].square().sum() for name in ("head.weight", "head.bias")]).sum().sqrt()
    return {name: 0.1 * gradients[name] / length.clamp(min=1e-12) for name in ("head.weight", "head.bias")}


SHAPES = [
    {"steps": 5},
    {"steps": 1},
    {"steps": 0},
    {"share": 0.5},
    {"steps": 3, "share": 0.5},
    {"epochs": 4, "until": until_two},
    {"epochs": 0},
    {"evaluates": BN_ROLES},
    {"evaluates": EVERY},
    {"ascent": uphill},
    {"epochs": 2, "trains": frozenset({Role.HEAD})},
    {"optimizer": {"head": OptimizerSpec(lr=0.01, momentum=0.9), "norm": OptimizerSpec(name="adam", lr=0.001)}},
]


@pytest.mark.parametrize("engine", EVERY_ENGINE[1:])
@pytest.mark.parametrize("fields", SHAPES)
def test_every_engine_does_the_same(fields, engine):
    same_on(engine, Shaped(**fields), LABELS, 3, net=TinyBN, batch_size=3, epochs=2)


def ran(labels=LABELS[0], *, net=Tiny, batch_size=3, method=Shaped, **fields):
    """One client through such a phase: the world, what the client left, and the sizes of its batches."""
    sizes = []

    class Noting(method):
        def loss(self, net, batch, consts):
            sizes.append(len(batch.y))
            return super().loss(net, batch, consts)

    toy = world(Noting(**fields), [labels], net=net, batch_size=batch_size)
    return toy, toy.worker.run(toy.job(0)), sizes


@pytest.mark.parametrize(
    ("steps", "sizes"), [(1, [3]), (2, [3, 3]), (3, [3, 3, 1]), (4, [3, 3, 1, 3]), (8, [3, 3, 1, 3, 3, 1, 3, 3])]
)
def test_steps_are_exactly_so_many_over_as_many_passes_as_they_need(steps, sizes):
    _, done, seen = ran(steps=steps, epochs=1)
    assert seen == sizes
    assert (done.steps, done.samples) == (steps, sum(sizes))
    assert done.terms.keys() == {"loss"}


def test_whole_passes_of_steps_are_epochs():
    trees = [ran(**fields)[1].upload["model"] for fields in ({"steps": 6}, {"epochs": 2})]
    assert same_tree(*trees)


def test_the_terms_are_those_of_the_last_pass():
    class Counting(Shaped):
        calls = 0

        def loss(self, net, batch, consts):
            self.calls += 1
            return Objective(super().loss(net, batch, consts), terms={"call": torch.tensor(float(self.calls))})

    assert dict(ran(method=Counting, steps=5)[1].terms) == {"call": 4.5}  # steps 4 and 5
    assert dict(ran(method=Counting, epochs=4, until=until_two)[1].terms) == {"call": 5.0}  # of pass 2, the last


@pytest.mark.parametrize(("share", "sizes"), [(1.0, [3, 3, 1]), (0.5, [3, 1]), (0.4, [3]), (0.01, [1])])
def test_a_pass_takes_a_share_of_the_data(share, sizes):
    _, done, seen = ran(share=share, epochs=2)
    assert seen == sizes * 2
    assert done.samples == 2 * sum(sizes)


def test_a_share_is_drawn_anew_for_each_pass():
    seen = []

    class Noting(Shaped):
        def loss(self, net, batch, consts):
            seen.append(frozenset(batch.x.sum(1).tolist()))
            return super().loss(net, batch, consts)

    toy = world(Noting(share=0.3, epochs=6), [[0, 1, 2, 3] * 3], batch_size=12)
    toy.worker.run(toy.job(0))
    assert [len(rows) for rows in seen] == [4] * 6
    assert len(set(seen)) > 3
    x, _ = toy.samples(0)
    assert frozenset.union(*seen) <= frozenset(x.sum(1).tolist())


def test_a_phase_ends_when_it_is_told_to():
    asked = []

    def falling(means):
        asked.append(list(means))
        return means[-1] < 1.0

    _toy, done, seen = ran(epochs=200, until=falling)
    assert 1 < len(asked) < 200
    assert len(seen) == 3 * len(asked)
    assert [len(means) for means in asked] == list(range(1, len(asked) + 1))
    assert asked[-1][:-1] == asked[-2]
    assert all(mean >= 1.0 for mean in asked[-1][:-1])
    assert asked[-1][-1] < 1.0
    assert done.terms["loss"] == pytest.approx(asked[-1][-1])
    again = world(Shaped(epochs=len(asked)), [LABELS[0]], batch_size=3)
    assert same_tree(done.upload["model"], again.worker.run(again.job(0)).upload["model"])


@pytest.mark.parametrize(
    ("net", "evaluates", "still"),
    [
        (TinyBN, frozenset(), set()),
        (TinyBN, BN_ROLES, {"norm"}),
        (TinyBN, frozenset({Role.BODY}), {"fc"}),
        (TinyBN, frozenset({Role.BN_STAT}), set()),  # a module follows if all its entries do
        (TinyBN, EVERY, {"fc", "norm", "head"}),
        (TinyInstance, frozenset({Role.BODY}), {"fc", "norm"}),  # buffers follow the parameters of their module
        (TinyDropout, frozenset({Role.BODY}), {"fc", "drop"}),
        (TinyDropout, frozenset({Role.HEAD}), {"head"}),
    ],
)
def test_modules_of_some_roles_stay_in_evaluation_mode(net, evaluates, still):
    modes = []

    class Noting(Shaped):
        def loss(self, net, batch, consts):
            modes.append({name for name, module in net.named_children() if not module.training})
            return super().loss(net, batch, consts)

    toy = world(Noting(evaluates=evaluates), LABELS, net=net)
    tree = toy.worker.run(toy.job(0)).upload["model"]
    assert modes == [still] * 2
    if net is TinyBN:
        counted = int(tree["norm.num_batches_tracked"])
        assert counted == (0 if "norm" in still else 2)
        assert torch.equal(tree["norm.running_mean"], toy.task.init["norm.running_mean"]) == ("norm" in still)
        assert not torch.equal(tree["norm.weight"], toy.task.init["norm.weight"])  # still trained


def test_the_next_phase_is_in_training_mode_again():
    modes = []

    class Twice(Method):
        def phases(self, start, ctx):
            mean = {"mean": SampleMean(lambda net, batch, consts: batch.x)}
            return [Train(self.loss, 1, evaluates=EVERY), Train(self.loss, 1), Collect(mean), Train(self.loss, 1)]

        def loss(self, net, batch, consts):
            modes.append(net.norm.training)
            return super().loss(net, batch, consts)

    toy = world(Twice(), [LABELS[1]], net=TinyBN)
    toy.worker.run(toy.job(0))
    assert modes == [False, True, True]


class Odd(Method):
    """Clients of odd numbers keep batch norm in evaluation mode."""

    def phases(self, start, ctx):
        return [Train(self.loss, 1, evaluates=BN_ROLES if ctx.client % 2 else frozenset())]


@pytest.mark.parametrize("engine", ["backwards", "processes", "stacked"])
def test_a_client_does_not_depend_on_the_modes_of_the_one_before(engine):
    toys = [world(Odd(), [LABELS[1]] * 4, net=TinyBN) for _ in range(2)]
    assert alike(after(toys[0], 2), after(toys[1], 2, engine), engine)
    for client in range(4):
        moved = toys[0].worker.run(toys[0].job(client, round_=3)).upload["model"]["norm.running_mean"]
        received = toys[0].federation.server["model"]["norm.running_mean"]
        assert torch.equal(moved, received) == (client % 2 == 1)


def test_the_copy_of_a_worker_between_tests_trains_as_a_new_worker_does():
    toy = world(Odd(), [LABELS[1]] * 2, net=TinyBN)
    expected = toy.worker.copy().run(toy.job(0))
    toy.worker.run(toy.job(1))  # leaves batch norm in evaluation mode, and no test follows
    assert same_tree(toy.worker.copy().run(toy.job(0)).upload["model"], expected.upload["model"])


def test_a_phase_that_trains_nothing_says_so():
    toy = world(Shaped(trains=frozenset({Role.EXTRA})), LABELS)
    with pytest.raises(ClientError, match=r"phase 0.*trains extra alone, and all of that is frozen or absent"):
        toy.worker.run(toy.job(0))


@pytest.mark.parametrize("fields", [{"epochs": 0}, {"steps": 0}])
@pytest.mark.parametrize("engine", ENGINES)
def test_no_pass_is_no_change(fields, engine):
    toy = after(world(Shaped(**fields), LABELS, net=TinyBN), 2, engine)
    assert all(torch.equal(value, toy.task.init[name]) for name, value in toy.federation.server["model"].items())
    assert [(report.steps, report.samples, dict(report.terms)) for report in toy.reports] == [(0, 0, {})] * 2
    assert {state["steps"] for state in toy.federation.states.values()} == {0}


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"epochs": -1}, "neither may be negative"),
        ({"steps": -1}, "neither may be negative"),
        ({"share": 0.0}, "above 0, and 1 at most"),
        ({"share": 1.5}, "above 0, and 1 at most"),
    ],
)
def test_what_cannot_be_is_refused(fields, why):
    with pytest.raises(ValueError, match=why):
        Train(Method().loss, **fields)


class Forgets(Method):
    """Counts its rounds in its state, and forgets it in every third."""

    def client_init(self, ctx):
        return {"rounds": 0}

    def end(self, work, state, ctx):
        payload, _ = super().end(work, state, ctx)
        rounds = state["rounds"] + 1
        return payload, ({} if rounds == 3 else {"rounds": rounds})


@pytest.mark.parametrize("engine", ENGINES)
def test_a_state_left_empty_is_forgotten(engine):
    toy, counts = world(Forgets(), LABELS, rounds=9), []
    for _ in range(7):
        after(toy, 1, engine)
        counts.append([state["rounds"] for state in toy.federation.states.values()])
    assert counts == [[1] * 4, [2] * 4, [], [1] * 4, [2] * 4, [], [1] * 4]
    assert set(toy.federation.states.changed) <= set(range(4))
