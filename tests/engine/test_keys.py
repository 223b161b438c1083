"""When phases of two clients do the same."""

import dataclasses
import functools

import pytest
import torch

from fedloom.engine.keys import glance_of, phase_key, values_of
from fedloom.methods.contract.phases import Collect, OptimizerSpec, Train
from fedloom.methods.contract.sample_statistics import ClassMeans, SampleMean
from fedloom.methods.contract.spec import Part
from fedloom.methods.fedavg import FedAvg
from fedloom.methods.parts.measures import features, logits
from fedloom.methods.parts.parameters import clipped
from fedloom.nets.net import Role

METHOD = FedAvg()


def test_phases_that_are_equal_at_a_glance_have_equal_keys():
    counted = []

    def until(means):
        counted.append(means)
        return False

    def loss(net, batch, consts, scale=[1.0]):  # noqa: B006
        return scale[0] * METHOD.loss(net, batch, consts)

    phases = [
        *(Train(method.loss, epochs) for method in (METHOD, FedAvg()) for epochs in (1, 2)),
        Train(METHOD.loss),
        Train(METHOD.loss, trains=frozenset({Role.HEAD})),
        Train(METHOD.loss, trains=frozenset([Role.HEAD])),
        Train(METHOD.loss, share=0.5),
        Train(METHOD.loss, optimizer=OptimizerSpec(lr=0.2)),
        Train(METHOD.loss, optimizer=OptimizerSpec(lr=0.2)),
        Train(METHOD.loss, optimizer={"head": OptimizerSpec(lr=0.2)}),
        Train(METHOD.loss, collect={"means": ClassMeans("features")}),
        Collect({"means": ClassMeans("features")}),
        Collect({"means": ClassMeans(features)}),
        Collect({"means": ClassMeans(features)}),
        Collect({"means": SampleMean(features)}),
        Collect({"means": ClassMeans(features), "further": ClassMeans(logits)}),
        Collect({"further": ClassMeans(logits), "means": ClassMeans(features)}),
        Train(METHOD.loss, grad_map=clipped(1.0)),
        Train(METHOD.loss, until=until),
        Train(loss),
        Collect({"means": ClassMeans(lambda net, batch, consts, scale=[1.0]: scale[0] * net(batch.x))}),
    ]

    def quickly_equal(one, other):
        return glance_of(one) is not None and glance_of(one) == values_of(other)

    pairs = [(a, b) for a in phases for b in phases]
    assert all(phase_key(a) == phase_key(b) for a, b in pairs if quickly_equal(a, b))
    assert quickly_equal(phases[0], phases[4])
    assert quickly_equal(phases[5], phases[6])
    assert quickly_equal(phases[8], phases[9])
    assert quickly_equal(phases[13], phases[14])
    assert all(quickly_equal(phase, phase) for phase in phases[:16])
    assert not any(quickly_equal(phase, phase) for phase in phases[16:])  # what they refer to may have changed


def test_statistics_that_were_exchanged_in_place_are_not_equal_at_a_glance():
    statistics = {"means": ClassMeans(features)}
    phase = Collect(statistics)
    before = glance_of(phase)
    statistics["means"] = ClassMeans(logits)
    assert values_of(phase) != before


def test_tensors_are_told_apart_by_identity():
    def loss_with(tensor):
        return Train(lambda net, batch, consts: tensor.sum(), 1)

    one, other = torch.ones(2), torch.ones(2)
    assert phase_key(loss_with(one)) == phase_key(loss_with(one))
    assert phase_key(loss_with(one)) != phase_key(loss_with(other))


def of(net, batch, consts):
    return net(batch.x)


# Another value of every field of a phase.
OTHERS = {
    Train: {
        "loss": FedAvg().loss,
        "epochs": 2,
        "trains": frozenset({Role.HEAD}),
        "nets": ("online",),
        "optimizer": OptimizerSpec(lr=0.5),
        "grad_map": clipped(1.0),
        "project": lambda parameters, consts: parameters,
        "ascent": lambda gradients, parameters, consts: gradients,
        "refresh": {"mean": SampleMean(of)},
        "collect": {"means": ClassMeans("z")},
        "throughout": True,
        "evaluates": frozenset({Role.BN_STAT}),
        "steps": 3,
        "share": 0.5,
        "until": lambda means: True,
        "part": Part("quiz", 3),
        "on": "received",
    },
    Collect: {"statistics": {"means": ClassMeans(of)}, "part": Part("quiz", 3), "on": "received"},
}
PLAIN = {Train: Train(METHOD.loss), Collect: Collect({"means": SampleMean(of)})}
FIELDS = [(kind, field.name) for kind in OTHERS for field in dataclasses.fields(kind)]


@pytest.mark.parametrize(("kind", "name"), FIELDS, ids=lambda given: getattr(given, "__name__", given))
def test_every_field_of_a_phase_counts(kind, name):
    plain, value = PLAIN[kind], OTHERS[kind][name]
    changed = dataclasses.replace(plain, **{name: value})
    assert phase_key(changed) != phase_key(plain)
    assert phase_key(changed) == phase_key(dataclasses.replace(plain, **{name: value}))
    hash(phase_key(changed))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"optimizer": OptimizerSpec(lr=0.5)}, {"optimizer": {"head": OptimizerSpec(lr=0.5)}}),
        ({"optimizer": {"head": OptimizerSpec(lr=0.5)}}, {"optimizer": {"extra": OptimizerSpec(lr=0.5)}}),
        ({"optimizer": OptimizerSpec()}, {"optimizer": OptimizerSpec(decay=0.5)}),
        ({"refresh": {"a": SampleMean(of)}}, {"refresh": {"b": SampleMean(of)}}),
        ({"refresh": {"a": SampleMean(of)}}, {"refresh": {"a": ClassMeans(of)}}),
        ({"collect": {"a": SampleMean("z")}}, {"collect": {"a": SampleMean("y")}}),
        ({"epochs": 1}, {"epochs": True}),
        ({"nets": ("a", "b")}, {"nets": ("b", "a")}),
    ],
)
def test_what_is_inside_a_field_counts(one, other):
    keys = [phase_key(Train(METHOD.loss, **given)) for given in (one, other)]
    assert keys[0] != keys[1]


def loss_over(value):
    """A loss that is made anew and closes over a value."""

    def loss(net, batch, consts):
        return len(str(value)) * net(batch.x).sum()

    return Train(loss)


@pytest.mark.parametrize(
    ("one", "same", "other"),
    [
        ({"a", "b"}, {"b", "a"}, {"a", "c"}),
        (frozenset({1}), {1}, {2}),
        ({"x": [1, 2]}, {"x": [1, 2]}, {"x": [2, 1]}),
        ((1, {"y": {3}}), (1, {"y": {3}}), (1, {"y": {4}})),
        (1, 1, True),
        (Role.HEAD, Role.HEAD, Role.BODY),
        (functools.partial(of, consts=1), functools.partial(of, consts=1), functools.partial(of, consts=2)),
    ],
)
def test_what_a_loss_closes_over_counts(one, same, other):
    assert phase_key(loss_over(one)) == phase_key(loss_over(same))
    assert phase_key(loss_over(one)) != phase_key(loss_over(other))
    hash(phase_key(loss_over(one)))


def test_default_arguments_count():
    def with_default(value):
        return Train(lambda net, batch, consts, weight=value: weight * net(batch.x).sum())

    def with_keyword(value):
        def loss(net, batch, consts, *, weight=value):
            return weight * net(batch.x).sum()

        return Train(loss)

    for made in (with_default, with_keyword):
        assert phase_key(made(1.0)) == phase_key(made(1.0))
        assert phase_key(made(1.0)) != phase_key(made(2.0))
