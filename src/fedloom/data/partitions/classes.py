"""A fixed number of classes per client, in even or uneven shares."""

from __future__ import annotations

import math

import numpy as np
from pydantic import Field, model_validator

from fedloom.core.errors import ConfigError
from fedloom.data.dataset import Dataset
from fedloom.data.partitions.partition import Dealt, Partition, Shares, deal_by_counts, partition, require_classes
from fedloom.data.views import Indices, even_sizes


@partition("classes")
class Classes(Partition):
    """Each client holds the same number of classes; each class is cut evenly between its holders, without a rest.

    The plain reading of FedSSA's 2 of 10 and 10 of 100 classes (Yi et al. 2024). Its released code cuts unevenly, as
    `pathological` does. Every class has k = classes_per_client N / C holders, and k must be a whole number: client by
    client, classes are chosen at random among those that still need the most holders. Test views follow the same rule.

    Example:
        >>> data = labels_only(list(range(10)) * 20)
        >>> dealt = Classes(classes_per_client=2).deal(data, data, 10, rng)
        >>> (dealt.train.class_counts(data.y.numpy(), 10) > 0).sum(1)
        array([2, 2, 2, 2, 2, 2, 2, 2, 2, 2])
    """

    classes_per_client: int = Field(ge=1, description="Number of classes that each client holds.", examples=[2])

    def deal(self, train: Dataset, test: Dataset, clients: int, rng: np.random.Generator) -> Dealt:
        labels, test_labels = train.y.numpy(), test.y.numpy()
        holders = choose_holders("classes", self.classes_per_client, clients, train.num_classes, rng)
        available = np.bincount(labels, minlength=train.num_classes)
        require_per_class("classes", available, holders.shape[1], holders.shape[1])
        test_counts = np.bincount(test_labels, minlength=train.num_classes)
        return Dealt(
            deal_by_counts(labels, _even(holders, available, clients), rng),
            deal_by_counts(test_labels, _even(holders, test_counts, clients), rng),
        )


def _even(holders: Indices, available: Indices, clients: int) -> Indices:
    counts = np.zeros((clients, len(available)), np.int64)
    for label, class_holders in enumerate(holders):
        counts[class_holders, label] = even_sizes(int(available[label]), len(class_holders))
    return counts


def choose_holders(name: str, per_client: int, clients: int, num_classes: int, rng: np.random.Generator) -> Indices:
    """Choose the k clients of each class [C, k], ascending; each client gets `per_client` different classes.

    Client after client takes a random class among those with most places left that it has not taken yet. Every class
    is thus taken once before one is taken again: the choices are random orders of all classes, one after another.
    Raises `ConfigError`, with the partition's name, if k = per_client clients / num_classes is not a whole number.
    """
    require_classes(name, per_client, num_classes)
    if per_client * clients % num_classes:
        raise ConfigError(
            f"partition {name}: {clients} clients with {per_client} of {num_classes} classes make "
            f"{per_client * clients / num_classes:g} clients per class; need a whole number"
        )
    rounds = per_client * clients // num_classes
    # Each row is one random order of all classes; clients take consecutive runs of them.
    orders = rng.permuted(np.tile(np.arange(num_classes), (rounds, 1)), axis=1)
    for order_index in range(1, rounds if num_classes % per_client else 0):
        # Classes that a client took at the end of the order before.
        if carried_over := order_index * num_classes % per_client:
            # The client whose run crosses the border must not draw a class twice: its next classes come from the rest.
            is_taken = np.isin(orders[order_index], orders[order_index - 1, -carried_over:])
            free_classes, needed = orders[order_index, ~is_taken], per_client - carried_over
            later_classes = rng.permutation(np.concatenate([free_classes[needed:], orders[order_index, is_taken]]))
            orders[order_index] = np.concatenate([free_classes[:needed], later_classes])
    by_class = np.argsort(orders.reshape(-1), kind="stable") // per_client
    return by_class.reshape(num_classes, rounds)


def require_per_class(name: str, available: Indices, holders: int, minimum: int) -> None:
    """Raise `ConfigError` if a class has fewer than `minimum` of the samples `available` [C]."""
    if available.min() < minimum:
        raise ConfigError(
            f"partition {name}: class {available.argmin()} has {available.min()} training samples; its {holders} "
            f"clients need {minimum}; lower clients or classes_per_client"
        )


@partition("pathological")
class Pathological(Partition):
    """Each client holds a few classes, of each a share in proportion to a draw from U(low, high).

    Fed-CO2's label skew (CIFAR-10 2, CIFAR-100 10 classes per client) and the released code of FedSSA, after Shamsian
    et al. 2021 (pFedHN). Every class has k = classes_per_client N / C holders (a whole number), chosen as in
    `classes`; each draws q ~ U(low, high), its share is q / sum of the k draws, and it gets floor(n_c share) samples
    of the class, in the training and in the test set. Rounding leaves up to k - 1 samples of a class unused.

    Example:
        >>> data = labels_only(list(range(10)) * 100)
        >>> dealt = Pathological(classes_per_client=2).deal(data, data, 20, rng)
        >>> (dealt.train.class_counts(data.y.numpy(), 10) > 0).sum(0)
        array([4, 4, 4, 4, 4, 4, 4, 4, 4, 4])
    """

    classes_per_client: int = Field(ge=1, description="Number of classes that each client holds.", examples=[2])
    low: float = Field(
        0.4,
        gt=0,
        allow_inf_nan=False,
        description="Lower end of the uniform draw that decides a client's share of a class.",
    )
    high: float = Field(
        0.6,
        gt=0,
        allow_inf_nan=False,
        description="Upper end of the uniform draw that decides a client's share of a class.",
    )

    @model_validator(mode="after")
    def _ordered(self) -> Pathological:
        if self.low > self.high:
            raise ConfigError(f"partition pathological: low = {self.low} is above high = {self.high}")
        return self

    def deal(self, train: Dataset, test: Dataset, clients: int, rng: np.random.Generator) -> Dealt:
        labels, test_labels, classes = train.y.numpy(), test.y.numpy(), train.num_classes
        holders = choose_holders("pathological", self.classes_per_client, clients, classes, rng)
        available, test_available = (np.bincount(y, minlength=classes) for y in (labels, test_labels))
        holders_per_class = holders.shape[1]
        # the smallest share that can be drawn must still be a sample, whatever the seed
        require_per_class(
            "pathological", available, holders_per_class, math.ceil(1 + (holders_per_class - 1) * self.high / self.low)
        )
        counts, test_counts = (np.zeros((clients, classes), np.int64) for _ in range(2))
        for label, class_holders in enumerate(holders):
            draws: Shares = rng.uniform(self.low, self.high, (holders_per_class,))
            shares: Shares = draws / draws.sum()
            counts[class_holders, label] = np.floor(available[label] * shares)
            test_counts[class_holders, label] = np.floor(test_available[label] * shares)
        return Dealt(deal_by_counts(labels, counts, rng), deal_by_counts(test_labels, test_counts, rng))
