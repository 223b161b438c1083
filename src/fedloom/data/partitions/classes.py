"""A fixed number of classes per client, in even or uneven shares."""

from __future__ import annotations

import math

import numpy as np
from pydantic import Field, model_validator

from fedloom.core.errors import ConfigError
from fedloom.data.dataset import Dataset
from fedloom.data.partitions.partition import Dealt, Partition, deal_by_counts, partition
from fedloom.data.views import Indices, even_sizes


class FixedClasses(Partition):
    """Base: every class has k = classes_per_client N / C holders, a whole number, who share it."""

    classes_per_client: int = Field(ge=1, description="Number of classes that each client holds.", examples=[2])

    def deal(self, train: Dataset, test: Dataset, clients: int, rng: np.random.Generator) -> Dealt:
        holders = self.choose_holders(clients, train.num_classes, rng)
        parts = [data.y.numpy() for data in (train, test)]
        totals = np.stack([np.bincount(labels, minlength=train.num_classes) for labels in parts])
        k, fewest = holders.shape[1], self.fewest(holders.shape[1])
        if totals[0].min() < fewest:
            raise self.refusal(
                f"class {totals[0].argmin()} has {totals[0].min()} training samples; its {k} clients need {fewest}; "
                "lower clients or classes_per_client"
            )
        counts = np.zeros((2, clients, train.num_classes), np.int64)
        for label, class_holders in enumerate(holders):
            counts[:, class_holders, label] = self.sizes(totals[:, label], k, rng)
        train_views, test_views = (deal_by_counts(*part, rng) for part in zip(parts, counts, strict=True))
        return Dealt(train_views, test_views)

    def fewest(self, holders: int) -> int:
        """Return the smallest class that can be dealt to so many clients."""
        raise NotImplementedError

    def sizes(self, totals: Indices, holders: int, rng: np.random.Generator) -> Indices:
        """Return the samples [2, k] of each of k `holders` of a class with `totals` [2] training and test samples."""
        raise NotImplementedError

    def choose_holders(self, clients: int, num_classes: int, rng: np.random.Generator) -> Indices:
        """Choose the k clients of each of `num_classes` classes [C, k], ascending; each client gets different classes.

        Client after client takes a random class among those with most places left that it has not taken yet. Every
        class is thus taken once before one is taken again: the choices are random orders of all classes, one after
        another."""
        per_client = self.classes_per_client
        self.require_classes(per_client, num_classes)
        if per_client * clients % num_classes:
            raise self.refusal(
                f"{clients} clients with {per_client} of {num_classes} classes make "
                f"{per_client * clients / num_classes:g} clients per class; need a whole number"
            )
        rounds = per_client * clients // num_classes
        # Each row is one random order of all classes; clients take consecutive runs of them.
        orders = rng.permuted(np.tile(np.arange(num_classes), (rounds, 1)), axis=1)
        for order_index in range(1, rounds if num_classes % per_client else 0):
            # Classes that a client took at the end of the order before.
            if carried_over := order_index * num_classes % per_client:
                # A client whose run crosses the border must not draw a class twice: its next ones come from the rest.
                is_taken = np.isin(orders[order_index], orders[order_index - 1, -carried_over:])
                free_classes, needed = orders[order_index, ~is_taken], per_client - carried_over
                later_classes = rng.permutation(np.concatenate([free_classes[needed:], orders[order_index, is_taken]]))
                orders[order_index] = np.concatenate([free_classes[:needed], later_classes])
        by_class = np.argsort(orders.reshape(-1), kind="stable") // per_client
        return by_class.reshape(num_classes, rounds)


@partition("classes")
class Classes(FixedClasses):
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

    def fewest(self, holders: int) -> int:
        return holders

    def sizes(self, totals: Indices, holders: int, rng: np.random.Generator) -> Indices:
        return np.stack([even_sizes(total, holders) for total in totals])


@partition("pathological")
class Pathological(FixedClasses):
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

    def fewest(self, holders: int) -> int:
        # the smallest share that can be drawn must still be a sample, whatever the seed
        return math.ceil(1 + (holders - 1) * self.high / self.low)

    def sizes(self, totals: Indices, holders: int, rng: np.random.Generator) -> Indices:
        draws = rng.uniform(self.low, self.high, (holders,))
        sizes: Indices = np.floor(totals[:, None] * (draws / draws.sum())).astype(np.int64)
        return sizes
