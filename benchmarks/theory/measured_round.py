"""The constants of the papers' bounds, and their values while one client takes the steps of a round."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedloom.core.errors import ConfigError
from fedloom.core.streams import Streams
from fedloom.core.trees import Tree
from fedloom.data.scenario import Scenario
from fedloom.nets.net import Net, tree_of


def require_numbers(record: object, *, positive: Sequence[str], others: Sequence[str]) -> None:
    """Raise `ConfigError` unless these fields of a record are finite: above 0 if `positive`, 0 or more if `others`."""
    for name in (*positive, *others):
        value = getattr(record, name)
        if not (math.isfinite(value) and (value > 0 or (value == 0 and name in others))):
            raise ConfigError(
                f"{name} = {value}: must be a finite number{' above 0' if name in positive else ', 0 or more'}"
            )


@dataclass(frozen=True, slots=True)
class Constants:
    """The quantities in the bounds of FedSKC, FedSC, FedDW and FedSSA, for one client.

    smoothness: L1, the Lipschitz constant of the loss's gradient. gradient_variance: sigma^2, the variance of a
    mini-batch gradient: the mean square of its distance to the gradient of all data. lr: eta, the learning rate. steps:
    number of gradient steps in a round. The papers call it E or R, and FedSKC introduces E as epochs. loss: the loss at
    the start of a round. best_loss: L*, the smallest loss that can be reached. squared_gradients: the sum over the
    round's steps of the squared norm of the gradient.
    """

    smoothness: float
    gradient_variance: float
    lr: float
    steps: int
    loss: float
    best_loss: float = 0.0
    squared_gradients: float = 0.0

    def __post_init__(self) -> None:
        require_numbers(self, positive=("smoothness", "lr", "steps"), others=("gradient_variance", "squared_gradients"))
        if not self.best_loss <= self.loss < math.inf:
            raise ConfigError(f"loss = {self.loss}: must be finite, and best_loss ({self.best_loss}) at most")

    @property
    def gap(self) -> float:
        """L_0 - L*."""
        return self.loss - self.best_loss

    @property
    def descent(self) -> float:
        """eta - L1 eta^2 / 2: the least share of the squared gradient that a step gains."""
        return self.lr - self.smoothness * self.lr**2 / 2


_SAMPLED_GRADIENTS = 20  # mini-batches whose gradients are compared with that of all data


@dataclass(frozen=True, slots=True)
class MeasuredRound:
    """The measurements of one client's round of plain SGD on cross-entropy.

    smoothness: the largest change of the full gradient over a step, relative to the step: L1 from below.
    feature_lipschitz: the largest change of a sample's features over a step, relative to the body's step: L2 from
    below. gradient_variance: mean squared distance of a mini-batch gradient to the full one, at the start.
    gradient_bound: the largest norm of a mini-batch gradient: B. lr: eta. steps: number of steps. losses: the loss on
    all of the client's data before each step and after the last one. squared_gradients: the sum over the steps of the
    squared norm of the full gradient. tree: the weights after the last step, in the types of those at the start.
    """

    smoothness: float
    feature_lipschitz: float
    gradient_variance: float
    gradient_bound: float
    lr: float
    steps: int
    losses: tuple[float, ...]
    squared_gradients: float
    tree: Tree

    def constants(self, best_loss: float = 0.0) -> Constants:
        """The measured quantities as the bounds take them. best_loss: L*; cross-entropy is at least 0."""
        measured = (self.smoothness, self.gradient_variance, self.lr, self.steps, self.losses[0])
        return Constants(*measured, best_loss, self.squared_gradients)


def measure_round(
    net: Net, tree: Tree, x: Tensor, y: Tensor, *, lr: float, steps: int, batch_size: int, rng: np.random.Generator
) -> MeasuredRound:
    """Take a client's SGD steps on cross-entropy, and measure the quantities of the bounds along the way.

    Every step also costs a gradient on all of the client's data. Batch norm uses its running statistics, which makes
    the loss one function of the weights. Everything is computed in float64: the difference of two nearby points in
    float32 is mostly rounding once the steps become short, and differs between processors.

    net: the network; its own weights are not changed. tree: the weights at the start of the round. x: the client's
    inputs [n, ...]. y: their labels [n], int64. lr: the learning rate. steps: number of steps, at least 1. batch_size:
    samples of a step, drawn without replacement from the epoch's order. rng: the source of the order.

    Raises `ConfigError` without samples or steps, and where the loss diverges.
    """
    if steps < 1 or len(x) == 0 or batch_size < 1:
        raise ConfigError(f"steps {steps}, samples {len(x)}, batch_size {batch_size}: each must be at least 1")
    names = [name for name, parameter in net.named_parameters() if parameter.requires_grad]
    body = [name for name in names if name.partition(".")[0] not in net.classifier_block]
    types = {name: value.dtype for name, value in tree.items()}
    tree, x = {name: _double(value) for name, value in tree.items()}, _double(x)
    batches = _batches(rng, len(x), batch_size)
    full, loss = _gradient(net, tree, names, x, y)
    sampled = [_gradient(net, tree, names, x[rows], y[rows])[0] for rows in islice(batches, _SAMPLED_GRADIENTS)]
    variance = float(np.mean([_distance(gradient, full) ** 2 for gradient in sampled]))
    features = _features(net, tree, x)
    smoothness, lipschitz, largest, squared, losses = 0.0, 0.0, 0.0, 0.0, [loss]
    for rows in islice(batches, steps):
        step, _ = _gradient(net, tree, names, x[rows], y[rows])
        largest, squared = max(largest, _norm(step)), squared + _norm(full) ** 2
        tree = tree | {name: tree[name] - lr * step[name] for name in names}
        next_full, loss = _gradient(net, tree, names, x, y)
        if not math.isfinite(loss):
            raise ConfigError(f"lr = {lr}: the loss diverges in this round; take a smaller rate")
        next_features = _features(net, tree, x)
        length, body_length = lr * _norm(step), lr * _norm({name: step[name] for name in body})
        # Ratios of changes along one path: the true constants are at least as large.
        if length > 0:
            smoothness = max(smoothness, _distance(next_full, full) / length)
        if body_length > 0:
            changes = (next_features - features).norm(dim=1)
            lipschitz = max(lipschitz, float(changes.max()) / body_length)
        # A pass over all data is the costly part, so the end of one step serves as the start of the next.
        full, features = next_full, next_features
        losses.append(loss)
    end = {name: value.to(types[name]) for name, value in tree.items()}
    return MeasuredRound(smoothness, lipschitz, variance, largest, lr, steps, tuple(losses), squared, end)


def measure_clients(
    scenario: Scenario, net: Net, tree: Tree | None = None, *, lr: float, steps: int, batch_size: int, seed: int = 0
) -> dict[int, MeasuredRound]:
    """Measure a round of each client with data, by client id; all start from the same weights.

    scenario: who holds what. net: the network. tree: the weights at the start; None takes those of `net`. lr: the
    learning rate. steps: number of steps of each client. batch_size: samples of a step. seed: root of the random
    streams, from which each client's order of samples is drawn.

    Raises `ConfigError` as `measure_round`, and if no client has data.
    """
    streams, start = Streams(seed), tree_of(net) if tree is None else tree
    rounds = {}
    for client in range(scenario.clients):
        rows = torch.from_numpy(scenario.train[client])
        if len(rows):
            rng = streams.numpy("measured round", client)
            x, y = scenario.train_set.gather(rows), scenario.train_set.y[rows]
            rounds[client] = measure_round(net, start, x, y, lr=lr, steps=steps, batch_size=batch_size, rng=rng)
    if not rounds:
        raise ConfigError("no client of this scenario has training samples, so nothing can be measured")
    return rounds


def _double(value: Tensor) -> Tensor:
    return value.double() if value.is_floating_point() else value


@torch.no_grad()
def _features(net: Net, tree: Tree, x: Tensor) -> Tensor:
    return net.functional.features(tree, x)


def _gradient(net: Net, tree: Tree, names: Sequence[str], x: Tensor, y: Tensor) -> tuple[Tree, float]:
    """The gradient of the mean cross-entropy by the entries called `names`, and the loss."""
    leaves = {name: tree[name].detach().requires_grad_() for name in names}
    loss = cross_entropy(net.functional.logits({**tree, **leaves}, x), y)
    gradients = torch.autograd.grad(loss, list(leaves.values()))
    return dict(zip(names, gradients, strict=True)), float(loss.detach())


def _norm(tree: Tree) -> float:
    return math.sqrt(sum(float(value.square().sum()) for value in tree.values()))


def _distance(tree: Tree, other: Tree) -> float:
    return _norm({name: tree[name] - other[name] for name in tree})


def _batches(rng: np.random.Generator, count: int, batch_size: int) -> Iterator[Tensor]:
    """Rows of one mini-batch after another, over shuffled passes without end."""
    while True:
        yield from torch.split(torch.from_numpy(rng.permutation(count)), batch_size)
