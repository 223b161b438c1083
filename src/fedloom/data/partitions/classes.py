"""Clients that differ in nothing, in size alone, in the number of their classes, or by superclasses (CIFAR-100)."""

import math
from typing import Self

import numpy as np
from pydantic import Field, model_validator

from fedloom.core.errors import ConfigError
from fedloom.data.dataset import Dataset
from fedloom.data.partitions.partition import (
    Alpha,
    Dealt,
    MaxDraws,
    MinSamples,
    Partition,
    Shares,
    cut,
    deal_by_counts,
    partition,
    shuffled_classes,
)
from fedloom.data.sources.cifar import coarse_labels
from fedloom.data.views import Indices, Views, even_sizes, starts


@partition("iid")
class IID(Partition):
    """No skew: samples shuffled and dealt in equal parts (sizes differ by at most one).

    Example:
        >>> data = labels_only([0, 1, 2] * 4)
        >>> IID().deal(data, data, 5, rng).train.sizes
        array([3, 3, 2, 2, 2])
    """

    takes_multi = True

    def deal(self, train: Dataset, test: Dataset, clients: int, rng: np.random.Generator) -> Dealt:
        return Dealt(
            Views.split_evenly(rng.permutation(len(train)), clients),
            Views.split_evenly(rng.permutation(len(test)), clients),
        )


@partition("quantity")
class Quantity(Partition):
    """Quantity skew: sizes drawn from Dirichlet(alpha, ..., alpha), labels as they come (no label skew).

    Li et al. 2022 (NIID-Bench, arXiv 2102.02079). Test views take the same shares.

    Example:
        >>> data = labels_only([0, 1] * 500)
        >>> sizes = Quantity(alpha=0.5).deal(data, data, 5, rng).train.sizes
        >>> int(sizes.sum()), bool(sizes.min() >= 10)
        (1000, True)
    """

    takes_multi = True
    alpha: Alpha = Field(examples=[0.5])
    min_samples: MinSamples = 10
    max_draws: MaxDraws = 1000

    def deal(self, train: Dataset, test: Dataset, clients: int, rng: np.random.Generator) -> Dealt:
        self.require_enough(clients, self.min_samples, len(train))
        # Samples are shuffled only for the draw that is kept: a redraw costs no permutation of the data.
        for draw in range(1, self.max_draws + 1):
            shares = rng.dirichlet(np.full(clients, self.alpha))
            sizes = cut(shares, len(train))
            if sizes.min() >= self.min_samples:
                return Dealt(
                    Views(rng.permutation(len(train)), starts(sizes)),
                    Views(rng.permutation(len(test)), starts(cut(shares, len(test)))),
                    draw,
                )
        outcome = f"{clients} clients {self.min_samples} samples; raise alpha, or lower clients or min_samples"
        raise self.refusal(f"none of {self.max_draws} draws with alpha {self.alpha} gave each of {outcome}")


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
        holders = self.choose_holders(clients, train.num_classes, rng)
        parts = [data.y.numpy() for data in (train, test)]
        totals = np.stack([np.bincount(labels, minlength=train.num_classes) for labels in parts])
        k, fewest = holders.shape[1], self.fewest(holders.shape[1])
        if totals[0].min() < fewest:
            detail = f"its {k} clients need {fewest}; lower clients or classes_per_client"
            raise self.refusal(f"class {totals[0].argmin()} has {totals[0].min()} training samples; {detail}")
        counts = np.zeros((2, clients, train.num_classes), np.int64)
        for label, class_holders in enumerate(holders):
            counts[:, class_holders, label] = self.sizes(totals[:, label], k, rng)
        train_views, test_views = (deal_by_counts(*part, rng) for part in zip(parts, counts, strict=True))
        return Dealt(train_views, test_views)

    def fewest(self, holders: int) -> int:
        """Return the training samples that a class with so many `holders` needs."""
        return holders

    def sizes(self, totals: Indices, holders: int, rng: np.random.Generator) -> Indices:
        """Return the samples [2, k] of each of k `holders` of a class with `totals` [2] training and test samples."""
        return np.stack([even_sizes(total, holders) for total in totals])

    def choose_holders(self, clients: int, num_classes: int, rng: np.random.Generator) -> Indices:
        """Choose the k clients of each of `num_classes` classes [C, k], ascending. Client after client takes a random
        class among those with most places left, so each class is taken once before one is taken again."""
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


@partition("pathological")
class Pathological(Classes):
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

    low: float = Field(0.4, gt=0, description="Lower end of the uniform draw that decides a client's share of a class.")
    high: float = Field(0.6, gt=0)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
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


@partition("pachinko")
class Pachinko(Partition):
    """Pachinko allocation: clients prefer a few superclasses of CIFAR-100, and classes within them.

    Li and McCallum 2006; on CIFAR-100: Reddi et al. 2021 (arXiv 2003.00295), Fed-CO2's CIFAR-100 "Dirichlet". Per
    client: superclass shares ~ Dirichlet(alpha), class shares within each superclass ~ Dirichlet(beta); then
    floor(n / N) images are drawn one by one without replacement, first the superclass, then the class, then the image.
    A class that is used up drops out and the other shares are scaled. n counts training and test images together
    (60,000): a client's training images become its training view, its test images its test view (about 500 and 100 of
    100 clients). Samples left over by the division stay unused. Superclasses come from the class names.

    Example:
        >>> data = labels_only(list(range(100)) * 6, [str(c) for c in range(100)])
        >>> dealt = Pachinko().deal(data, data, 10, rng)
        >>> dealt.train.sizes + dealt.test.sizes
        array([120, 120, 120, 120, 120, 120, 120, 120, 120, 120])
    """

    alpha: Alpha = 0.3
    beta: Alpha = 10.0

    def deal(self, train: Dataset, test: Dataset, clients: int, rng: np.random.Generator) -> Dealt:
        coarse = np.array(coarse_labels(train.classes))
        self.require_enough(clients, 1, len(train) + len(test))
        labels = np.concatenate([train.y.numpy(), test.y.numpy()])
        class_rows = shuffled_classes(labels, train.num_classes, rng)
        remaining = np.array([len(rows) for rows in class_rows])
        owner = np.full(len(labels), -1, np.int64)
        for client in range(clients):
            counts = self._draw(remaining, coarse, len(labels) // clients, rng)
            for label in np.flatnonzero(counts):
                first = len(class_rows[label]) - remaining[label]
                owner[class_rows[label][first : first + counts[label]]] = client
            remaining -= counts
        return Dealt(Views.from_owners(owner[: len(train)], clients), Views.from_owners(owner[len(train) :], clients))

    def _draw(self, remaining: Indices, coarse: Indices, samples: int, rng: np.random.Generator) -> Indices:
        """How many samples of each class [C] one client draws, of `remaining` [C]."""
        superclass_shares = rng.dirichlet(np.full(coarse.max() + 1, self.alpha))
        class_shares = np.empty(len(coarse))
        for superclass in range(len(superclass_shares)):
            labels = np.flatnonzero(coarse == superclass)
            class_shares[labels] = rng.dirichlet(np.full(len(labels), self.beta))
        counts = np.zeros(len(remaining), np.int64)
        while (missing := samples - int(counts.sum())) > 0:
            shares = _present_shares(superclass_shares, class_shares, coarse, remaining - counts)
            drawn = rng.choice(len(remaining), size=missing, p=shares)
            # Draw all missing samples at once, and keep them up to the first that exhausts a class; then renormalise.
            # This equals drawing one by one, with at most one batch per exhausted class.
            rank = np.empty(missing, np.int64)  # how many of its class were drawn before
            order = np.argsort(drawn, kind="stable")
            rank[order] = np.arange(missing) - np.searchsorted(drawn[order], drawn[order])
            exhausting = np.flatnonzero(rank + 1 == (remaining - counts)[drawn])
            counts += np.bincount(drawn[: exhausting[0] + 1 if len(exhausting) else missing], minlength=len(remaining))
        return counts


def _present_shares(superclass_shares: Shares, class_shares: Shares, coarse: Indices, remaining: Indices) -> Shares:
    """Probability of each class [C] in one draw: superclass, then class, among those that have samples left."""
    present = np.where(remaining > 0, class_shares, 0.0)
    superclass_totals = np.bincount(coarse, weights=present, minlength=len(superclass_shares))
    superclass_shares = np.where(superclass_totals > 0, superclass_shares, 0.0)
    shares = np.zeros(len(remaining))
    np.divide(
        superclass_shares[coarse] * present, superclass_totals[coarse], out=shares, where=superclass_totals[coarse] > 0
    )
    if shares.sum() == 0:  # this client's shares of all that is left are too small for float64
        shares = (remaining > 0).astype(np.float64)
    scaled: Shares = shares / shares.sum()
    return scaled


_BIASED = 5


@partition("nid2")
class NID2(Partition):
    """FedSC's second setting (after FedDisco's `noniid-2`): 5 biased clients with C/5 classes each, 1 with all classes.

    With n_c samples of class c and s_c = floor(n_c / 6): client i in 0 .. 4 gets 5 s_c samples of each class from
    i C/5 to (i+1) C/5 - 1, client 5 gets s_c of every class. On balanced data all six hold C s samples (CIFAR-10:
    8,330); the n_c - 6 s_c samples left over stay unused. Test views follow the same rule.

    Example:
        >>> data = labels_only(list(range(5)) * 12)
        >>> NID2().deal(data, data, 6, rng).train.class_counts(data.y.numpy(), 5).diagonal()
        array([10, 10, 10, 10, 10])
    """

    def deal(self, train: Dataset, test: Dataset, clients: int, rng: np.random.Generator) -> Dealt:
        self.require_clients(clients, _BIASED + 1, "has 5 biased clients and one with all classes")
        if train.num_classes % _BIASED:
            need = f"need a multiple of 5 classes, the source has {train.num_classes}"
            raise self.refusal(f"gives each of 5 clients a fifth of the classes; {need}")
        labels, test_labels = train.y.numpy(), test.y.numpy()
        counts = np.bincount(labels, minlength=train.num_classes)
        if counts.min() <= _BIASED:
            raise self.refusal(f"class {counts.argmin()} has {counts.min()} training samples; 6 clients need 6 or more")
        test_counts = np.bincount(test_labels, minlength=train.num_classes)
        train_views = deal_by_counts(labels, _counts(counts), rng)
        return Dealt(train_views, deal_by_counts(test_labels, _counts(test_counts), rng))


def _counts(available: Indices) -> Indices:
    """Samples per client and class [6, C] of `available` [C]."""
    sixths, classes = available // (_BIASED + 1), np.arange(len(available))
    counts = np.zeros((_BIASED + 1, len(available)), np.int64)
    counts[classes * _BIASED // len(available), classes] = _BIASED * sixths
    counts[_BIASED] = sixths
    return counts
