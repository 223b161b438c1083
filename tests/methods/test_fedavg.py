"""FedAvg: what can be worked out by hand."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from fedloom.methods.contract.phases import OptimizerSpec
from support import Tiny, TinyBN, configured, furthest, world

LABELS = [[0, 1, 2, 3, 0, 1, 2], [1, 1, 0], [3, 3, 2, 0, 1]]


DECAY = OptimizerSpec(lr=0.2, momentum=0.9, weight_decay=0.1)


@pytest.mark.parametrize(
    ("net", "spec", "oracle"),
    [
        (Tiny, OptimizerSpec(lr=0.2), lambda p: torch.optim.SGD(p, lr=0.2)),
        (TinyBN, OptimizerSpec(lr=0.2), lambda p: torch.optim.SGD(p, lr=0.2)),
        (Tiny, DECAY, lambda p: torch.optim.SGD(p, lr=0.2, momentum=0.9, weight_decay=0.1)),
        (TinyBN, DECAY, lambda p: torch.optim.SGD(p, lr=0.2, momentum=0.9, weight_decay=0.1)),
        (Tiny, OptimizerSpec("adam", lr=0.01), lambda p: torch.optim.Adam(p, lr=0.01)),
    ],
)
def test_one_client_one_batch_one_epoch_is_one_step(net, spec, oracle):
    toy = world(configured("fedavg"), [[0, 1, 2, 3, 0, 1]], batch_size=6, optimizer=spec, net=net)
    reference = net()
    reference.load_state_dict(toy.task.init)
    x, y = toy.samples(0)
    cross_entropy(reference.train()(x), y).backward()
    oracle(reference.parameters()).step()
    report = toy.federation.step()
    assert report.steps == 1
    # Adam divides by |g|: rounding in gradients near zero shows a little more.
    assert furthest(toy.federation.server["model"], reference.state_dict()) < (2e-5 if spec.name == "adam" else 1e-6)
    assert furthest(toy.federation.server["model"], toy.task.init) > 5e-3


def test_two_epochs_of_batches_are_a_plain_torch_loop_over_the_same_shuffles():
    spec = OptimizerSpec(lr=0.1, momentum=0.9, weight_decay=1e-3)
    toy = world(configured("fedavg"), LABELS, epochs=2, batch_size=3, optimizer=spec)
    reference = Tiny()
    reference.load_state_dict(toy.task.init)
    sgd = torch.optim.SGD(reference.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)
    shuffle = toy.task.streams.numpy("shuffle", 1, 0)
    x, y = toy.samples(0)
    for _ in range(2):
        order = torch.from_numpy(shuffle.permutation(7))
        for part in (order[:3], order[3:6], order[6:]):
            sgd.zero_grad()
            cross_entropy(reference(x[part]), y[part]).backward()
            sgd.step()
    done = toy.worker.run(toy.job(0))
    assert furthest(done.upload["model"], reference.state_dict()) < 1e-6
