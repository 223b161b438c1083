"""FedProx: FedAvg plus mu (w - w_t) in the gradient, no more and no less."""

import pytest
import torch

from fedloom.core.trees import clone
from fedloom.methods.contract.phases import Batch, OptimizerSpec
from support import TinyBN, configured, dataset, world

LABELS = [[0, 1, 2, 3, 0, 1, 2], [1, 1, 0], [3, 3, 2, 0, 1]]
MOMENTUM = OptimizerSpec(lr=0.1, momentum=0.9, weight_decay=1e-3)


@pytest.mark.parametrize("mu", [0.01, 1.0, 7.5])
def test_gradient_is_that_of_fedavg_plus_the_pull(mu):
    """In float64; batch-norm statistics that differ from the received ones play no part."""
    plain, prox = configured("fedavg"), configured("fedprox", mu=mu)
    toy = world(prox, LABELS)
    net = TinyBN().double()
    received = {name: v + 0.3 if v.is_floating_point() else v for name, v in clone(net.state_dict()).items()}
    consts = prox.begin({"model": received}, {}, toy.federation.client_context(0, 1)).consts
    data = dataset([0, 1, 2, 3, 3])
    batch = Batch(data.x.double(), data.y)
    parameters = dict(net.named_parameters())
    loss = plain.loss(net, batch, {})
    gradients = torch.autograd.grad(loss, list(parameters.values()))
    out = prox.loss(net, batch, consts)
    pulled = torch.autograd.grad(out.total, list(parameters.values()))
    for (name, w), g, ours in zip(parameters.items(), gradients, pulled, strict=True):
        assert torch.allclose(ours, g + mu * (w - received[name]), rtol=0, atol=1e-12)
    squares = sum(float(((w - received[n]) ** 2).sum().detach()) for n, w in parameters.items())
    assert float(out.terms["proximal"].detach()) == pytest.approx(mu / 2 * squares, rel=1e-12)
    assert float(out.total.detach()) == pytest.approx(float(loss.detach()) + mu / 2 * squares, rel=1e-12)
    assert float(out.terms["ce"].detach()) == pytest.approx(float(loss.detach()), rel=1e-12)
