"""FedProx: FedAvg plus mu (w - w_t) in the gradient, no more and no less."""

import pytest
import torch

from fedloom.core.trees import clone
from fedloom.methods.contract.phases import Batch, OptimizerSpec
from support import Tiny, TinyBN, configured, dataset, furthest, world

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


def test_the_pull_is_towards_the_weights_of_the_round_for_the_whole_round():
    """Plain SGD of several steps, worked out in float64 with the anchor fixed at what the server sent."""
    mu, lr = 2.0, 0.05
    toy = world(configured("fedprox", mu=mu), LABELS, epochs=2, batch_size=3, optimizer=OptimizerSpec(lr=lr))
    toy.federation.step()
    anchor = toy.federation.server["model"]
    net = Tiny().double()
    net.load_state_dict(anchor)
    x, y = toy.samples(0)
    shuffle = toy.task.streams.numpy("shuffle", 2, 0)
    for _ in range(2):
        for part in torch.from_numpy(shuffle.permutation(7)).split(3):
            loss = torch.nn.functional.cross_entropy(net(x[part].double()), y[part])
            gradients = torch.autograd.grad(loss, list(net.parameters()))
            with torch.no_grad():
                for (name, w), g in zip(net.named_parameters(), gradients, strict=True):
                    w -= lr * (g + mu * (w - anchor[name]))
    done = toy.worker.run(toy.job(0, round_=2))
    assert furthest(done.upload["model"], net.state_dict()) < 1e-6


def test_more_pull_keeps_clients_nearer():
    drift = []
    for mu in (0.0, 0.5, 5.0):
        toy = world(configured("fedprox", mu=mu), LABELS, epochs=5)
        done = toy.worker.run(toy.job(0))
        drift.append(furthest(done.upload["model"], toy.task.init))
    assert drift[0] > drift[1] > drift[2] > 0
