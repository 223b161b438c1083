"""Weights that a client chooses after a statistic and before training (`Choose`): the same on every engine."""

import pytest
import torch

from fedloom.core.errors import ClientError
from fedloom.core.records import get_tree
from fedloom.methods.contract.contexts import Start
from fedloom.methods.contract.method import Method
from fedloom.methods.contract.phases import Choose, Collect, Train, cross_entropy
from fedloom.methods.contract.sample_statistics import SampleMean
from support import ENGINES, EVERY_ENGINE, TinyBN, after, same_on, same_tree, world

LABELS = [[0, 1, 2, 3, 0, 1, 2], [1, 1, 0, 2], [3, 2, 1, 0, 0, 1, 1, 2, 3], [0, 3, 0, 2]]


def losses(net, batch, consts):
    """The cross-entropy of each model on each sample [B, 2]."""
    logits = [net.functional.logits(tree, batch.x) for tree in consts["models"]]
    return torch.stack([cross_entropy(scores, batch.y) for scores in logits], 1)


class Fits(Method):
    """The server has two models that differ in every entry, and a client trains the one that fits it best."""

    def server_init(self, ctx):
        init = ctx.task.init
        other = {name: value + 0.05 if value.is_floating_point() else value + 7 for name, value in init.items()}
        other["head.bias"] = other["head.bias"] + torch.eye(4)[1]
        return super().server_init(ctx) | {"other": other}

    def down(self, server, client, ctx):
        return server

    def begin(self, payload, state, ctx):
        start = super().begin(payload, state, ctx)
        return Start(start.tree, {"models": [start.tree, get_tree(payload, "other")]})

    def rule(self, weights, consts):
        return consts["models"][int(consts["losses"].argmin())]

    def phases(self, start, ctx):
        training = Train(self.loss, ctx.task.local_epochs)
        return [Collect({"losses": SampleMean(losses)}), Choose(self.rule), training]

    def end(self, work, state, ctx):
        payload, _ = super().end(work, state, ctx)
        return payload, {"choice": int(work.collected["losses"].argmin())}

    def aggregate(self, server, uploads, ctx):
        return server | super().aggregate(server, uploads, ctx)


class Starts(Fits):
    """`Fits`, which starts from its choice at once, since the test tells which it is."""

    choices: dict[int, int]

    def begin(self, payload, state, ctx):
        models = super().begin(payload, state, ctx).consts["models"]
        return Start(models[self.choices[ctx.client]], {"models": models})

    def phases(self, start, ctx):
        return [phase for phase in super().phases(start, ctx) if not isinstance(phase, Choose)]


def test_a_client_trains_the_weights_that_its_rule_chose_buffers_included():
    toy = after(world(Fits(), LABELS, net=TinyBN), 1)
    choices = {client: int(state["choice"]) for client, state in toy.federation.states.items()}
    assert set(choices.values()) == {0, 1}
    expected = world(type("Starts", (Starts,), {"choices": choices})(), LABELS, net=TinyBN)
    after(expected, 1)
    assert same_tree(toy.federation.server["model"], expected.federation.server["model"])
    assert [(r.steps, r.samples) for r in toy.reports] == [(r.steps, r.samples) for r in expected.reports]


@pytest.mark.parametrize("engine", EVERY_ENGINE[1:])
def test_every_engine_chooses_alike(engine):
    same_on(engine, Fits(), LABELS, 3, net=TinyBN, epochs=2)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"nose": torch.zeros(1)}, "sets 'nose', which the net lacks"),
        ({"fc.bias": torch.zeros(2)}, r"sets fc.bias to \[2\] of float32; the net needs \[6\] of float32"),
        ({"fc.bias": torch.zeros(6, dtype=torch.int64)}, r"\[6\] of int64; the net needs \[6\] of float32"),
    ],
)
@pytest.mark.parametrize("engine", ["serial", "stacked"])
def test_entries_that_do_not_fit_are_refused(entries, message, engine):
    class Wrong(Method):
        def phases(self, start, ctx):
            return [Choose(lambda weights, consts: entries), *super().phases(start, ctx)]

    with pytest.raises(ClientError, match=message):
        after(world(Wrong(), LABELS), 1, engine)


@pytest.mark.parametrize("engine", ENGINES)
def test_other_entries_stay_and_two_may_change_places(engine):
    class Swaps(Method):
        def phases(self, start, ctx):
            return [Choose(lambda w, consts: {"norm.bias": w["norm.weight"], "norm.weight": w["norm.bias"].double()})]

    toy = after(world(Swaps(), LABELS, net=TinyBN), 1, engine)
    tree, init = toy.federation.server["model"], toy.task.init
    swapped = {"norm.bias": init["norm.weight"], "norm.weight": init["norm.bias"]}
    assert same_tree(tree, init | swapped)


def test_a_personal_model_is_chosen_before_its_test():
    class Adapts(Method):
        def adapt(self, start, ctx):
            return [Choose(lambda weights, consts: {"head.bias": weights["head.bias"] + 1000 * torch.eye(4)[2]})]

    toy = after(world(Adapts(), LABELS), 1)
    live, ctx = toy.worker.loaded_nets[0], toy.federation.client_context(0, 1)
    (predictor,) = toy.method.predictors(toy.federation.server, {}, toy.federation.server_context()).values()
    assert toy.worker.adapt(live, predictor, ctx, toy.job(0).indices)[1] == 0
    assert set(live.net(toy.data.x).argmax(1).tolist()) == {2}
