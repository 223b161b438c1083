"""Label skew over superclasses (CIFAR-100), and the non-IID-2 setting."""

import numpy as np
from pydantic import Field

from fedloom.data.dataset import Dataset
from fedloom.data.partitions.partition import (
    Alpha,
    Dealt,
    Partition,
    Shares,
    deal_by_counts,
    partition,
    shuffled_classes,
)
from fedloom.data.sources.cifar import coarse_labels
from fedloom.data.views import Indices, Views


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

    alpha: Alpha = Field(
        0.3, description="Concentration of the Dirichlet distribution over superclasses; small values mean strong skew."
    )
    beta: Alpha = Field(
        10.0,
        description="Concentration of the Dirichlet distribution over the classes within a superclass; small "
        "values mean strong skew.",
    )

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
            raise self.refusal(
                "gives each of 5 clients a fifth of the classes; need a multiple of 5 classes, the source has "
                f"{train.num_classes}"
            )
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
