"""Phases on a fixed part of a client's data, and on samples that the server sent: the same on every engine."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedloom.core.errors import ClientError
from fedloom.core.streams import Streams
from fedloom.data.augment import Augmentation
from fedloom.methods.contract.contexts import Received
from fedloom.methods.contract.method import Method
from fedloom.methods.contract.phases import Collect, Objective, Train, cross_entropy
from fedloom.methods.contract.sample_statistics import LabelledRows, Rows, SampleMean
from fedloom.methods.contract.spec import Part
from support import EVERY_ENGINE, Tiny, TinyBN, after, same_on, world

LABELS = [[0, 1, 2, 3, 0, 1, 2], [1, 1, 0, 2], [3, 2, 1, 0, 0, 1, 1, 2, 3], [1, 0], [2]]
QUIZ = Part("quiz", 3)


def inputs(net, batch, consts):
    return batch.x


def logits(net, batch, consts):
    return net(batch.x)


class Shaped(Method):
    """FedAvg with these phases; clients keep what came of them."""

    def __init__(self, *phases, **fields):
        super().__init__()
        self.extra_phases, self.fields = phases, fields

    def begin(self, payload, state, ctx):
        start = super().begin(payload, state, ctx)
        x = torch.linspace(-1, 1, 35).view(7, 5)
        return replace(start, consts={"targets": torch.linspace(0, 1, 28).view(7, 4)}, received=Received(x))

    def phases(self, start, ctx):
        return [*self.extra_phases, Train(self.loss, **{"epochs": 2} | self.fields)]

    def end(self, work, state, ctx):
        payload, _ = super().end(work, state, ctx)
        return payload, {n: v.values if isinstance(v, LabelledRows) else v for n, v in work.collected.items()}


def drawn_to(net, batch, consts):
    return Objective.sum({"near": batch.mean((net(batch.x) - consts["targets"][batch.y]).square().mean(1))})


def on_received(**fields):
    return Train(**{"loss": drawn_to, "epochs": 2, "on": "received"} | fields)


SHAPES = [
    ((), {"part": QUIZ}),
    ((), {"part": QUIZ.others, "refresh": {"mean": SampleMean(inputs)}}),
    ((), {"part": Part("half", 0.5), "steps": 3}),
    ((Collect({"mean": SampleMean(inputs)}, part=QUIZ),), {"part": QUIZ.others}),
    ((on_received(),), {}),
    ((on_received(steps=4), Collect({"answers": SampleMean(logits)}, on="received")), {"part": QUIZ}),
]


@pytest.mark.parametrize("engine", EVERY_ENGINE[1:])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_engine_does_the_same(shape, engine):
    phases, fields = shape
    same_on(engine, Shaped(*phases, **fields), LABELS, net=TinyBN, batch_size=2)


@given(st.integers(1, 40), st.one_of(st.integers(1, 50), st.floats(0.01, 0.99)), st.booleans(), st.integers(0, 5))
def test_a_part_and_its_others_share_nothing_and_neither_is_empty(samples, size, drawn, client):
    part, indices = Part("quiz", size, drawn), torch.arange(100, 100 + samples)
    taken, left = (p.of(indices, Streams(1), client).tolist() for p in (part, part.others))
    assert len(taken) == part.count(samples)
    assert len(left) == part.others.count(samples)
    assert taken == sorted(taken)
    assert taken
    assert left
    if samples > 1:
        assert sorted(taken + left) == indices.tolist()
        assert drawn or taken == indices[: len(taken)].tolist()
    assert part.count(samples) <= part.count(samples + 1)  # a stack has its larger clients first
    assert part.others.count(samples) <= part.others.count(samples + 1)


def test_a_part_is_the_same_in_every_round_and_another_for_every_client():
    toy = after(world(Shaped(Collect({"rows": Rows(inputs)}, part=QUIZ)), [[0, 1, 2, 3] * 5] * 2), 1)
    first = [toy.federation.states[client]["rows"] for client in range(2)]
    assert all(len(rows) == 3 for rows in first)
    toy = after(toy, 2)
    assert all(torch.equal(toy.federation.states[client]["rows"], first[client]) for client in range(2))
    mine, others = (Part("quiz", 3).of(torch.arange(20), Streams(3), client).tolist() for client in range(2))
    assert mine != others
    assert Part("study", 3).of(torch.arange(20), Streams(3), 0).tolist() != mine


def test_a_single_sample_is_in_both_parts_and_the_run_says_so():
    toy = after(world(Shaped(Collect({"rows": Rows(inputs)}, part=QUIZ), part=QUIZ.others), LABELS), 2)
    assert torch.equal(toy.federation.states[4]["rows"], toy.samples(4)[0])
    found = [d for report in toy.reports for d in report.diagnostics if d.code == "data.part_of_one_sample"]
    assert {d.message for d in found} == {"client 4 has a single sample: it is in the part quiz and in the others, too"}


@pytest.mark.parametrize("size", [0, -1, 0.0, 1.0, 1.5])
def test_sizes_that_mean_nothing_are_refused(size):
    with pytest.raises(ValueError, match=f"Part\\('quiz', {size}\\): a number of samples is an int"):
        Part("quiz", size)


def test_a_part_of_what_was_received_is_refused():
    with pytest.raises(ValueError, match="a part is one of the client's own data"):
        Collect({}, part=QUIZ, on="received")
    with pytest.raises(ValueError, match="a part is one of the client's own data"):
        Train(drawn_to, part=QUIZ, on="received")


def test_received_samples_are_numbered_and_shuffled_anew_in_each_epoch():
    seen = []

    def noting(net, batch, consts):
        seen.append((batch.x, batch.y))
        return batch.mean(cross_entropy(net(batch.x), batch.y % 4))

    method = Shaped(on_received(loss=noting, epochs=3))
    toy = after(world(method, [[0, 1]], batch_size=3), 1)
    x = method.begin(toy.federation.server, {}, toy.federation.client_context(0, 1)).received.x
    assert [len(y) for _, y in seen] == [3, 3, 1] * 3
    assert all(torch.equal(batch, x[y]) for batch, y in seen)
    assert sorted(torch.cat([y for _, y in seen[:3]]).tolist()) == list(range(7))
    assert [y.tolist() for _, y in seen[:3]] != [y.tolist() for _, y in seen[3:6]]


def test_received_samples_are_not_augmented():
    seen, x = [], torch.arange(7 * 16.0).view(7, 1, 4, 4)

    class Pictures(Shaped):
        def begin(self, payload, state, ctx):
            return replace(super().begin(payload, state, ctx), received=Received(x))

    def noting(net, batch, consts):
        seen.append(torch.equal(batch.x, x[batch.y]))
        return net(batch.x).sum()

    flipped = Augmentation(crop=1, flip=True)
    after(world(Pictures(on_received(loss=noting)), [[0, 1]], net="mlp", shape=(1, 4, 4), augment=flipped), 1)
    assert seen
    assert all(seen)


def test_a_pass_over_received_samples_keeps_their_order_and_their_labels():
    class Labelled(Shaped):
        def begin(self, payload, state, ctx):
            return replace(
                super().begin(payload, state, ctx), received=Received(torch.eye(5), torch.tensor([3, 1, 2, 0, 1]))
            )

        def end(self, work, state, ctx):
            self.rows = work.collected["rows"]
            return super().end(work, state, ctx)

    toy = after(world(Labelled(Collect({"rows": Rows(inputs)}, on="received"), epochs=0), [[0, 1]], net=Tiny), 1)
    assert torch.equal(toy.method.rows.values, torch.eye(5))
    assert toy.method.rows.labels.tolist() == [3, 1, 2, 0, 1]


def test_a_phase_without_received_samples_is_refused_in_one_line():
    class Without(Shaped):
        def begin(self, payload, state, ctx):
            return replace(super().begin(payload, state, ctx), received=None)

    with pytest.raises(
        ClientError, match=r'a phase with on="received" has no samples: `begin` must return Start'
    ) as error:
        after(world(Without(on_received()), [[0, 1]]), 1)
    assert "\n" not in str(error.value)
