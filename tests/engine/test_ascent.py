"""A second gradient at moved weights in each step (`Train.ascent`): by hand, and what it must leave alone."""

import pytest
import torch

from fedloom.methods.contract.method import Method
from fedloom.methods.contract.phases import Objective, OptimizerSpec, Train
from fedloom.methods.contract.sample_statistics import SampleMean
from stacked_world import UNEQUAL, DoubleBN, agree
from support import Tiny, TinyBN, TinyDropout, after, alike, same_tree, world

LABELS = [[0, 1, 2, 3, 0, 1, 2], [1, 1, 0, 2]]


def by_gradient(gradients, parameters, consts):
    """A move of 0.3 times the gradient."""
    return {name: 0.3 * gradient for name, gradient in gradients.items()}


def nowhere(gradients, parameters, consts):
    return {name: torch.zeros_like(gradient) for name, gradient in gradients.items()}


class Ascending(Method):
    """FedAvg whose steps take their gradients at moved weights."""

    def __init__(self, ascent=by_gradient, **fields):
        super().__init__()
        self.fields = {"ascent": ascent} | fields

    def phases(self, start, ctx):
        return [Train(self.loss, ctx.task.local_epochs, **self.fields)]

    def end(self, work, state, ctx):
        payload, _ = super().end(work, state, ctx)
        return payload, {f"term.{name}": value for name, value in work.terms.items()}


class Bowl(Ascending):
    """The loss is half of w' A w with A = diag(2, 4), of the first two weights of the head's bias."""

    def loss(self, net, batch, consts):
        w = net.head.bias[:2]
        return Objective.sum({"bowl": (torch.tensor([2.0, 4.0]) * w.square()).sum() / 2})


def trained(method, net=Tiny, steps=1, **settings):
    """The first client's result after one round of so many steps."""
    method.fields |= {"steps": steps}
    toy = world(method, LABELS, net=net, batch_size=7, **settings)
    return toy, toy.worker.run(toy.job(0))


class AtOne(Tiny):
    """Its head's bias is (1, 1, 0, 0)."""

    def __init__(self, num_classes=4):
        super().__init__(num_classes)
        with torch.no_grad():
            self.head.bias.copy_(torch.tensor([1.0, 1.0, 0.0, 0.0]))


def test_a_step_takes_the_gradient_at_the_moved_weights():
    """g = (2, 4); moved: (1.6, 2.2); gradient there (3.2, 8.8); a step of 0.1: (0.68, 0.12)."""
    _, result = trained(Bowl(), net=AtOne, optimizer=OptimizerSpec(lr=0.1))
    assert result.upload["model"]["head.bias"].tolist() == pytest.approx([0.68, 0.12, 0, 0], abs=1e-6)
    assert result.terms["bowl"] == 3.0  # of the weights before the move


def test_weight_decay_is_of_the_weights_before_the_move():
    """The gradient (3.2, 8.8) gets 0.5 times (1, 1), not 0.5 times (1.6, 2.2)."""
    _, result = trained(Bowl(), net=AtOne, optimizer=OptimizerSpec(lr=0.1, weight_decay=0.5))
    assert result.upload["model"]["head.bias"].tolist() == pytest.approx([0.63, 0.07, 0, 0], abs=1e-6)


def test_gradients_are_clipped_after_the_ascent():
    def clipped(gradients, parameters, consts):
        return {name: gradient.clamp(-1, 1) for name, gradient in gradients.items()}

    _, result = trained(Bowl(grad_map=clipped), net=AtOne, optimizer=OptimizerSpec(lr=0.1))
    assert result.upload["model"]["head.bias"].tolist() == pytest.approx([0.9, 0.9, 0, 0], abs=1e-6)

    def seen(gradients, parameters, consts):
        assert gradients["head.bias"][:2].tolist() == [2.0, 4.0]  # not clipped
        return {}

    _, result = trained(Bowl(seen, grad_map=clipped), net=AtOne, optimizer=OptimizerSpec(lr=0.1))
    assert result.upload["model"]["head.bias"].tolist() == pytest.approx([0.9, 0.9, 0, 0], abs=1e-6)


@pytest.mark.parametrize("net", [TinyBN, TinyDropout])
@pytest.mark.parametrize("ascent", [nowhere, lambda *_: {}])
def test_a_move_of_nothing_changes_no_bit(net, ascent):
    """So batch norm counts each batch once, and dropout drops the same units in both passes and later steps."""
    plain, still = (world(Ascending(a), LABELS, net=net, batch_size=3, epochs=2) for a in (None, ascent))
    assert alike(after(plain, 2), after(still, 2), "serial")


def test_statistics_of_batch_norm_are_those_before_the_move():
    trees = [trained(Ascending(a), net=TinyBN)[1].upload["model"] for a in (None, by_gradient)]
    assert same_tree(*({n: tree[n] for n in ("norm.running_mean", "norm.running_var")} for tree in trees))
    assert not torch.equal(trees[0]["fc.weight"], trees[1]["fc.weight"])


class Replacing(Tiny):
    """A net that puts a new tensor in its buffer's place in every pass."""

    def __init__(self, num_classes=4):
        super().__init__(num_classes)
        self.register_buffer("mean", torch.zeros(6))

    def features(self, x):
        z = super().features(x)
        if self.training:
            self.mean = 0.5 * self.mean + 0.5 * z.mean(0).detach()
        return z


def test_a_buffer_that_is_replaced_moves_once():
    trees = [trained(Ascending(a), net=Replacing)[1].upload["model"] for a in (None, by_gradient)]
    assert torch.equal(trees[0]["mean"], trees[1]["mean"])
    assert trees[1]["mean"].any()


def test_taps_are_those_before_the_move():
    class Tapping(Ascending):
        def loss(self, net, batch, consts):
            return Objective(super().loss(net, batch, consts), taps={"z": net.features(batch.x)})

        def end(self, work, state, ctx):
            return {"z": work.collected["z"]}, {}

    z = [trained(Tapping(a, collect={"z": SampleMean("z")}))[1].upload["z"] for a in (None, by_gradient)]
    assert torch.equal(*z)


def test_a_stack_agrees_also_where_batches_are_padded():
    agree(Ascending(), labels=UNEQUAL, net=DoubleBN)


def test_terms_are_measured_before_the_move():
    toy = world(Ascending(), LABELS, net=TinyBN, batch_size=3, rounds=2)
    plain = world(Ascending(None), LABELS, net=TinyBN, batch_size=3, rounds=2)
    norms = [t.worker.run(t.federation.job(1, 1, measured=True)).norms for t in (toy, plain)]
    assert norms[0].keys() == norms[1].keys()
    assert all(value > 0 for value in norms[0].values())


def test_steps_with_dropout_are_not_recorded_and_say_why():
    toys = [world(Ascending(), LABELS, net=TinyDropout, batch_size=3) for _ in range(2)]
    assert alike(after(toys[0], 1), after(toys[1], 1, "replayed"), "serial")
    (note,) = [d for d in toys[1].reports[0].diagnostics if d.code == "engine.plain_steps"]
    assert "the two passes of a step share their random numbers" in note.message


def test_the_moved_weights_come_back_to_the_bit():
    """With a learning rate of 0, nothing has moved in the end."""
    toy, result = trained(Ascending(), steps=3, optimizer=OptimizerSpec(lr=0.0))
    assert same_tree(result.upload["model"], toy.task.init)
