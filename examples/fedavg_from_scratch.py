"""Federated averaging from scratch, with the parts of fedloom's engines.

python examples/fedavg_from_scratch.py          # 10 rounds
python examples/fedavg_from_scratch.py 3        # fewer

This is Algorithm 1 of McMahan et al. (AISTATS 2017, arXiv 1602.05629) as a loop that fits on a page: draw clients, send
them the weights, let each train on its samples, average the uploads. It shows a round without methods, engines or run
folders, and it ends at the same weights, bit by bit, as

    fl.run("fedavg", scenario=scenario, model="mlp", rounds=10, participation=0.5)
"""

import sys

import numpy as np
import torch
from torch.nn.functional import cross_entropy

import fedloom as fl
from fedloom.core.records import Record, get_number, get_tree, wire_size
from fedloom.core.streams import Streams
from fedloom.core.trees import Tree, clone, weighted_mean
from fedloom.data import Scenario
from fedloom.nets.blueprint import Blueprint
from fedloom.nets.net import Net, tree_of

BATCH_SIZE, EPOCHS, LR, MOMENTUM = 32, 2, 0.05, 0.9  # the defaults of a run


def draw(streams: Streams, clients: int, share: float, round_: int) -> list[int]:
    """Draw the clients of a round without replacement, in the order of their ids.

    Every generator is derived from the seed, a purpose and a round, so no draw depends on earlier ones.
    """
    count = max(1, round(share * clients))
    chosen = streams.numpy("participants", round_).choice(clients, count, replace=False)
    return [int(client) for client in np.sort(chosen)]


def train(net: Net, weights: Tree, scenario: Scenario, client: int, shuffle: np.random.Generator) -> Record:
    """One client's round: SGD with momentum from the global weights, on its samples.

    net: holds the weights while they train. shuffle: draws the order of the samples. Returns the upload: the trained
    weights, and the number of samples by which the server weighs them.
    """
    net.load_state_dict(weights)
    net.train()
    samples = scenario.train.tensor(client)
    parameters = list(net.parameters())
    velocities: list[torch.Tensor | None] = [None] * len(parameters)
    for _ in range(EPOCHS):
        order = samples[torch.from_numpy(shuffle.permutation(len(samples)))]
        for rows in order.split(BATCH_SIZE):
            x, y = scenario.train_set.gather(rows), scenario.train_set.y[rows]
            loss = cross_entropy(net(x), y)
            gradients = torch.autograd.grad(loss, parameters)
            with torch.no_grad():
                for index, (parameter, gradient) in enumerate(zip(parameters, gradients, strict=True)):
                    velocity = velocities[index]
                    velocity = gradient.clone() if velocity is None else velocity.mul_(MOMENTUM).add_(gradient)
                    velocities[index] = velocity
                    parameter.sub_(velocity, alpha=LR)
    return {"model": clone(tree_of(net)), "samples": len(samples)}


def average(uploads: list[Record]) -> Tree:
    """The mean of the uploaded weights by samples, summed in float64 in the order of client ids."""
    return weighted_mean(
        (get_tree(upload, "model") for upload in uploads), [get_number(upload, "samples") for upload in uploads]
    )


@torch.no_grad()
def accuracy(net: Net, weights: Tree, scenario: Scenario) -> float:
    """The share of the global test set that the global weights predict correctly."""
    net.load_state_dict(weights)
    net.eval()
    test = scenario.test_set
    logits = net(test.gather(torch.arange(len(test))))
    return float((logits.argmax(1) == test.y).double().mean())


def federate(scenario: Scenario, rounds: int, share: float = 0.5, seed: int = 0) -> Tree:
    """Run FedAvg and print each round; the final global weights."""
    torch.set_num_threads(1)  # more threads change the order of sums, and so the bits
    streams = Streams(seed)
    net = Blueprint("mlp", scenario.train_set.input_shape, scenario.num_classes).build(streams)
    weights = clone(tree_of(net))
    for round_ in range(1, rounds + 1):
        clients = [k for k in draw(streams, scenario.clients, share, round_) if len(scenario.train[k])]
        uploads = [
            train(net, weights, scenario, client, streams.numpy("shuffle", round_, client)) for client in clients
        ]
        traffic = sum(wire_size(upload) for upload in uploads)
        weights = average(uploads)
        reached = 100 * accuracy(net, weights, scenario)
        print(f"round {round_:2d}: {len(clients)} clients, {traffic / 1e3:.0f} kB up, accuracy {reached:.1f} %")
    return weights


if __name__ == "__main__":
    federate(
        fl.scenario("digits", partition="dirichlet", alpha=0.3, clients=10).build(run_seed=0),
        rounds=int(sys.argv[1]) if len(sys.argv) > 1 else 10,
    )
