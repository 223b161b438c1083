"""A net that cannot be stacked is found before a run, and the reason is one line."""

import pytest
import torch
from torch import nn
from torch.nn.utils import spectral_norm
from torch.utils.checkpoint import checkpoint

from fedloom.core.errors import ClientError
from fedloom.engine.stacked import Batched
from fedloom.engine.stacked.batched import obstacle
from fedloom.methods.fedavg import FedAvg
from support import WIDTH, Tiny, TinyBN, world

LABELS = [[0, 1, 2, 3], [1, 0, 3, 2]]


class Counts(TinyBN):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(6, momentum=None)


class Spectral(Tiny):
    def __init__(self):
        super().__init__()
        self.fc = spectral_norm(nn.Linear(WIDTH, 6))


class Sparse(Tiny):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(3, 6, sparse=True)

    def features(self, x):
        return super().features(x) + self.words((x.sum(1) > 0).long())


class Branches(Tiny):
    def features(self, x):
        z = super().features(x)
        return z * 2 if z.mean() > 0 else z


class Reads(Tiny):
    def features(self, x):
        z = super().features(x)
        return z * (1 + z.mean().item())


class Draws(Tiny):
    def features(self, x):
        return nn.functional.rrelu(self.fc(x), training=self.training)


class Checkpoints(Tiny):
    def features(self, x):
        return checkpoint(super().features, x, use_reentrant=False)


class Remembers(Tiny):
    """A mean outside its buffers: a client in a stack meets that of others."""

    def __init__(self):
        super().__init__()
        self.mean = torch.zeros(6)

    def features(self, x):
        z = super().features(x)
        self.mean = 0.5 * self.mean + z.detach().mean(0)
        return z * self.mean


class Mixes(Tiny):
    """Takes the mean of a batch, padded rows included."""

    def features(self, x):
        z = super().features(x)
        return z - z.mean(0) if self.training else z


class MixesIntoABuffer(Tiny):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(6))

    def features(self, x):
        z = super().features(x)
        self.mean = 0.5 * self.mean + z.detach().mean(0)
        return z


REASONS = {
    Counts: "batch norm with momentum=None counts its batches in Python",
    Spectral: "torch.vmap has no rule for aten::",
    Sparse: "sparse gradients",
    Branches: "branches on values of tensors",
    Reads: "reads values of tensors",
    Draws: "draws random numbers",
    Mixes: "mixes the samples of a batch",
    MixesIntoABuffer: "mixes the samples of a batch",
    Checkpoints: "computes them again",
    Remembers: "hands tensors on to a later pass",
}


@pytest.mark.parametrize("net", REASONS)
def test_why_a_net_cannot_be_stacked(net):
    drawn = torch.get_rng_state()
    why = obstacle(world(FedAvg(), LABELS, net=net).worker)
    assert REASONS[net] in why
    assert "\n" not in why
    assert torch.equal(torch.get_rng_state(), drawn)


class Pruned(Tiny):
    """A buffer of booleans is no reason to refuse a net."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mask", torch.ones(6, dtype=torch.bool))
        self.register_buffer("order", torch.arange(6))

    def features(self, x):
        return super().features(x) * self.mask


@pytest.mark.parametrize("net", [Tiny, TinyBN, Pruned])
def test_a_net_that_can_be_stacked_is_as_it_was(net):
    toy = world(FedAvg(), LABELS, net=net)
    before = toy.worker.loaded_nets[0].weights()
    assert obstacle(toy.worker) is None
    assert all(torch.equal(value, before[name]) for name, value in toy.worker.loaded_nets[0].weights().items())


class BranchingLoss(FedAvg):
    def loss(self, net, batch, consts):
        loss = super().loss(net, batch, consts)
        return loss if loss > 0 else loss * 2


def test_a_loss_that_cannot_be_stacked_is_not_the_clients_fault():
    toy = world(BranchingLoss(), LABELS)
    toy.federation.engine = Batched(toy.worker, 8)
    with pytest.raises(ClientError, match=r"engine: batched cannot run this: its code branches .*; take processes"):
        toy.federation.step()
