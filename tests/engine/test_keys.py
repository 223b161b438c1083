"""When phases of two clients do the same."""

import torch

from fedloom.engine.keys import phase_key
from fedloom.methods.fedavg import FedAvg
from fedloom.methods.parts.gradients import clipped
from fedloom.methods.phases import ClassMeans, Collect, Train

METHOD = FedAvg()


def test_functions_made_anew_are_the_same_if_they_close_over_the_same():
    assert phase_key(Train(METHOD.loss, 1, grad_map=clipped(1.0))) == phase_key(
        Train(METHOD.loss, 1, grad_map=clipped(1.0))
    )
    assert phase_key(Train(METHOD.loss, 1, grad_map=clipped(1.0))) != phase_key(
        Train(METHOD.loss, 1, grad_map=clipped(2.0))
    )


def test_everything_else_counts():
    other = FedAvg()
    phases = [
        Train(METHOD.loss, 1),
        Train(METHOD.loss, 2),
        Train(other.loss, 1),
        Train(METHOD.loss, 1, collect={"means": ClassMeans("features")}),
        Collect({"means": ClassMeans(lambda net, batch, consts: net(batch.x))}),
        Collect({"means": ClassMeans(lambda net, batch, consts: net.features(batch.x))}),
    ]
    assert len({phase_key(phase) for phase in phases}) == len(phases)


def test_tensors_are_told_apart_by_identity():
    def loss_with(tensor):
        return Train(lambda net, batch, consts: tensor.sum(), 1)

    one, other = torch.ones(2), torch.ones(2)
    assert phase_key(loss_with(one)) == phase_key(loss_with(one))
    assert phase_key(loss_with(one)) != phase_key(loss_with(other))
