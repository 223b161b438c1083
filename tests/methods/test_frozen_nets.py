"""What a loss computes with weights that are constants: in evaluation mode, without gradients, on every engine."""

import pytest
import torch

from fedloom.engine.fast.replayer import Replayer
from fedloom.methods.contract.contexts import Start
from fedloom.methods.contract.method import Method
from fedloom.methods.contract.phases import Objective, cross_entropy
from fedloom.methods.contract.spec import Spec
from support import ENGINES, Tiny, TinyBN, TinyDropout, after, alike, world

LABELS = [[0, 1, 2, 3, 0, 1, 2], [1, 1, 0, 2], [3, 2, 1, 0, 0]]


class Taught(Method):
    """Cross-entropy, and the distance to logits and features of the weights received, as a constant tree."""

    pull = 0.5

    def begin(self, payload, state, ctx):
        start = super().begin(payload, state, ctx)
        return Start(start.tree, {"teacher": dict(start.tree)})

    def one(self, net):
        return net

    def teacher(self, consts):
        return consts["teacher"]

    def loss(self, net, batch, consts):
        net = self.one(net)
        teacher = self.teacher(consts)
        logits, features = net.functional.logits(teacher, batch.x), net.functional.features(teacher, batch.x)
        self.note(logits, features, batch)
        ce = batch.mean(cross_entropy(net(batch.x), batch.y))
        apart = (net(batch.x) - logits).square().sum(1) + (net.features(batch.x) - features).square().sum(1)
        return Objective.sum({"ce": ce, "apart": self.pull * batch.mean(apart)})

    def note(self, logits, features, batch):
        pass


class TaughtInPairs(Taught):
    """The second of two nets is taught by itself."""

    spec = Spec(nets={"first": None, "second": None}, private_nets=frozenset({"first"}))

    def one(self, net):
        return net["second"]

    def teacher(self, consts):
        return {n.removeprefix("second."): v for n, v in consts["teacher"].items() if n.startswith("second.")}


@pytest.mark.parametrize("net", [Tiny, TinyBN, TinyDropout])
@pytest.mark.parametrize("method", [Taught, TaughtInPairs])
def test_they_are_those_of_the_net_in_evaluation_mode_and_constants(method, net):
    seen = []

    class Noting(method):
        def note(self, logits, features, batch):
            seen.append((logits, features, batch.x.clone()))

    toy = after(world(Noting(), LABELS, net=net, epochs=2), 1)  # so that batch norm's statistics are no longer 0 and 1
    seen.clear()
    job = toy.job(0, round_=2)
    start = toy.method.begin(job.payload, job.state, job.ctx)
    toy.worker.run(job)
    given = toy.method.teacher(start.consts)
    fresh = net().eval()
    fresh.load_state_dict(given)
    assert len(seen) == 4
    for logits, features, x in seen:
        assert not logits.requires_grad
        assert not features.requires_grad
        assert torch.allclose(logits, fresh(x), rtol=0, atol=1e-6)
        assert torch.allclose(features, fresh.features(x), rtol=0, atol=1e-6)


def test_a_teachers_passes_leave_no_trace():
    """Neither in batch norm's statistics, nor in its own weights."""
    taught, plain = (
        after(world(method, LABELS, net=TinyBN), 1) for method in (type("T", (Taught,), {"pull": 0.0})(), Method())
    )
    ours, theirs = (toy.federation.server["model"] for toy in (taught, plain))
    # the net itself runs three times in each step, not once
    assert int(ours["norm.num_batches_tracked"]) == 3 * int(theirs["norm.num_batches_tracked"])
    job = taught.job(0, round_=2)
    before = {name: value.clone() for name, value in job.payload["model"].items()}
    taught.worker.run(job)
    assert all(torch.equal(value, before[name]) for name, value in job.payload["model"].items())


@pytest.mark.parametrize(("engine", "net"), [("processes", TinyBN), ("processes", TinyDropout), ("stacked", TinyBN)])
@pytest.mark.parametrize("method", [Taught, TaughtInPairs])
def test_every_engine_teaches_alike(method, net, engine):
    assert set(ENGINES) >= {engine}
    toys = [world(method(), LABELS, net=net, epochs=2) for _ in range(2)]
    assert alike(after(toys[0], 3), after(toys[1], 3, engine), engine)


@pytest.mark.parametrize("method", [Taught, TaughtInPairs])
def test_steps_with_a_teacher_are_recorded(method):
    toys = [world(method(), LABELS, net=TinyBN) for _ in range(2)]
    toys[1].worker.stepper = Replayer(toys[1].data, eager=True)
    assert alike(after(toys[0], 3), after(toys[1], 3), "serial")
    assert toys[1].worker.stepper.programs > 0
