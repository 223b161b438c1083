"""Label skew by Dirichlet draws: plain, of equal sizes, and with the limits of FedMA and ExDir."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedloom.data.dataset import Dataset
from fedloom.data.partitions.partition import (
    Alpha,
    Dealt,
    MaxDraws,
    MinSamples,
    Partition,
    Shares,
    cut,
    deal_alike,
    deal_by_counts,
    deal_by_shares,
    partition,
    shuffled_classes,
)
from fedloom.data.views import Indices, Views


@partition("dirichlet")
class Dirichlet(Partition):
    """Label skew: for each class, shares over clients drawn from Dirichlet(alpha, ..., alpha).

    Hsu et al. 2019, arXiv 1909.06335; the redraw until every client has enough samples is Yurochkin et al. 2019. The
    number of draws is reported, because redrawing conditions the skew.
    Test views use the same shares: a client is tested on its own class mix.

    Example:
        >>> data = labels_only([0, 1] * 50)
        >>> bool(Dirichlet(alpha=0.5, min_samples=5).deal(data, data, 4, rng).train.sizes.min() >= 5)
        True
    """

    alpha: Alpha = Field(examples=[0.1])
    min_samples: int = Field(10, ge=0)
    max_draws: MaxDraws = 1000

    def deal(self, train: Dataset, test: Dataset, clients: int, rng: np.random.Generator) -> Dealt:
        self.require_enough(clients, self.min_samples, len(train))
        holders = [np.arange(clients)] * train.num_classes
        return _deal_to_holders(self, holders, train, test, clients, rng)


Accept = Callable[[Shares, Indices], NDArray[np.bool_]]
"""(shares [B, P, C], sizes [B, P, C]) -> which of the B draws are good [B]."""

_AT_ONCE = 1 << 17  # numbers drawn together


class BalancedCut(NamedTuple):
    """Accepted draw: shares [P, C] (columns sum to 1), sizes [P, C] (columns sum to n_c), how many draws it took."""

    shares: Shares
    sizes: Indices
    draws: int


def balanced_cut(
    dealer: Any, counts: Indices, parts: int, accept: Accept, goal: str, rng: np.random.Generator
) -> BalancedCut:
    """Cut classes of sizes `counts` [C] into `parts` by Dirichlet shares until `accept`. A part with n / P samples or
    more gets none of the next class. Raises `ConfigError`, with the goal, if none of the draws of the dealer, a
    partition with alpha and max_draws, is good."""
    # Candidates are drawn in batches: strict conditions may reject thousands before one is accepted.
    batch = int(np.clip(_AT_ONCE // (parts * len(counts)), 1, 512))
    for drawn in range(0, dealer.max_draws, batch):
        shares, sizes = _draw(counts, parts, dealer.alpha, min(batch, dealer.max_draws - drawn), rng)
        accepted = np.flatnonzero(accept(shares, sizes))
        if len(accepted):
            first = int(accepted[0])
            return BalancedCut(shares[first], sizes[first], drawn + first + 1)
    raise dealer.refusal(f"none of {dealer.max_draws} draws with alpha {dealer.alpha} gave each of {goal}")


def _draw(counts: Indices, parts: int, alpha: float, draws: int, rng: np.random.Generator) -> tuple[Shares, Indices]:
    shares = np.empty((draws, parts, len(counts)))
    sizes = np.empty((draws, parts, len(counts)), np.int64)
    held_counts = np.zeros((draws, parts), np.int64)
    for label, count in enumerate(counts):
        weights = rng.dirichlet(np.full(parts, alpha), size=draws)
        # In whole numbers, to decide "holds n / P samples" without rounding.
        is_open = held_counts * parts < counts.sum()
        weights = np.where(is_open, weights, 0.0)
        is_degenerate = weights.sum(1) == 0  # no open part has a weight that float64 can hold: equal parts
        weights[is_degenerate] = np.where(is_open[is_degenerate].any(1, keepdims=True), is_open[is_degenerate], True)
        shares[:, :, label] = weights / weights.sum(1, keepdims=True)
        sizes[:, :, label] = cut(shares[:, :, label], count)
        held_counts += sizes[:, :, label]
    return shares, sizes


_GROUP = 10


@partition("dirichlet-equal")
class DirichletEqual(Partition):
    """All clients hold the same number of samples (+-1); their mixes are softer than the concentration says.

    As in the released code of FedSKC and FedSC: samples are shuffled and cut into groups of 10 clients; within a group
    shares are those of `dirichlet-fedma`, redrawn until the smallest client holds half the mean; then the lists of all
    clients are laid end to end, class by class within a client, and cut into K equal pieces. These cuts ignore the
    Dirichlet borders: a piece may hold the end of one client's list and the start of the next one's.
    Test views take each client's share of each class. Draws are counted over all groups.

    Example:
        >>> data = labels_only(list(range(10)) * 100)
        >>> DirichletEqual(alpha=0.2).deal(data, data, 20, rng).train.sizes.tolist() == [50] * 20
        True
    """

    alpha: Alpha = Field(examples=[0.2])
    max_draws: MaxDraws = 100_000

    def deal(self, train: Dataset, test: Dataset, clients: int, rng: np.random.Generator) -> Dealt:
        labels = train.y.numpy()
        shuffled = rng.permutation(len(labels))
        first_clients = range(0, clients, _GROUP)
        ends = [first * len(labels) // clients for first in first_clients][1:]
        lists, draws = [], 0
        for first, group in zip(first_clients, np.split(shuffled, ends), strict=True):
            group_list, group_draws = self._lists(group, labels, train.num_classes, min(_GROUP, clients - first), rng)
            lists.append(group_list)
            draws += group_draws
        views = Views.split_evenly(np.concatenate(lists), clients)
        tests = deal_alike(views, labels, test.y.numpy(), train.num_classes, rng)
        return Dealt(views, tests, draws, len(lists))

    def _lists(
        self, group: Indices, labels: Indices, num_classes: int, clients: int, rng: np.random.Generator
    ) -> tuple[Indices, int]:
        """Return the lists of a group's clients end to end, and the number of draws."""
        minimum = len(group) // (2 * clients)
        class_rows = shuffled_classes(labels[group], num_classes, rng)
        counts = np.array([len(rows) for rows in class_rows])
        goal = f"{clients} clients of a group {minimum} samples, half the mean; raise alpha or max_draws"
        drawn = balanced_cut(self, counts, clients, lambda _, sizes: sizes.sum(2).min(1) >= minimum, goal, rng)
        owner = np.repeat(np.tile(np.arange(clients), num_classes), drawn.sizes.T.reshape(-1))
        return group[np.concatenate(class_rows)[np.argsort(owner, kind="stable")]], drawn.draws


@partition("dirichlet-fedma")
class DirichletFedMA(Partition):
    """Dirichlet shares per class, none for clients that hold n / N samples already; redrawn until all hold enough.

    Wang et al. 2020 (FedMA, arXiv 2002.06440); what FedSKC's and FedSC's papers refer to, and, with `min_test: 10`,
    Fed-CO2's label skew. Sizes are more equal than those of `dirichlet`. Fed-CO2 with 300 clients or more: its
    minimum of 10 accepts hardly any draw; use `min_samples: 1, min_test: 1`.

    Example:
        >>> data = labels_only([0, 1, 2, 3] * 50)
        >>> bool(DirichletFedMA(alpha=0.5).deal(data, data, 5, rng).train.sizes.min() >= 10)
        True
    """

    alpha: Alpha = Field(examples=[0.5])
    min_samples: MinSamples = 10
    min_test: int = Field(0, ge=0)
    max_draws: MaxDraws = 1000

    def deal(self, train: Dataset, test: Dataset, clients: int, rng: np.random.Generator) -> Dealt:
        self.require_enough(clients, self.min_samples, len(train))
        self.require_enough(clients, self.min_test, len(test), "test samples")
        labels, test_labels, classes = train.y.numpy(), test.y.numpy(), train.num_classes
        test_counts = np.bincount(test_labels, minlength=classes)

        def enough(shares: Shares, sizes: Indices) -> NDArray[np.bool_]:
            is_accepted: NDArray[np.bool_] = sizes.sum(2).min(1) >= self.min_samples
            if self.min_test:
                test_sizes = cut(shares.swapaxes(1, 2), test_counts[:, None])
                is_accepted &= test_sizes.sum(1).min(1) >= self.min_test
            return is_accepted

        counts = np.bincount(labels, minlength=classes)
        least = f"{self.min_samples} samples and {self.min_test} test samples"
        goal = f"{clients} clients {least}; raise alpha, or lower clients, min_samples or min_test"
        drawn = balanced_cut(self, counts, clients, enough, goal, rng)
        views = deal_by_counts(labels, drawn.sizes, rng)
        return Dealt(views, deal_by_shares(test_labels, drawn.shares, rng), drawn.draws)


_HOLDERS_OF_EVEN = 5  # a class needs a fifth of the clients that it would have if classes were drawn evenly


@partition("extended-dirichlet")
class ExtendedDirichlet(Partition):
    """Each client draws its classes, then each class is dealt by Dirichlet(alpha) among the clients that drew it.

    ExDir(C, alpha) of Li and Lyu, NeurIPS 2023, arXiv 2311.03154. A client's classes are drawn uniformly, without
    replacement, until every class has max(1, floor(C N / K / 5)) clients, K being the number of classes. The shares are
    drawn again until every client has `min_samples`. Both bounds are those of the released code. Test views take the
    same shares of the test set.

    With `balanced`, a class whose holders are all full keeps its shares as drawn; the released code does not say who
    takes it.

    Example:
        >>> data = labels_only(list(range(10)) * 40)
        >>> dealt = ExtendedDirichlet(classes_per_client=2, alpha=10.0).deal(data, data, 10, rng)
        >>> int((dealt.train.class_counts(data.y.numpy(), 10) > 0).sum(1).max())
        2
    """

    classes_per_client: int = Field(ge=1, examples=[2])
    alpha: Alpha = Field(examples=[10.0])
    balanced: bool = False
    min_samples: MinSamples = 10
    max_draws: int = Field(1000, ge=1)

    def deal(self, train: Dataset, test: Dataset, clients: int, rng: np.random.Generator) -> Dealt:
        self.require_enough(clients, self.min_samples, len(train))
        holders = self._holders(clients, train.num_classes, rng)
        return _deal_to_holders(self, holders, train, test, clients, rng)

    def _holders(self, clients: int, num_classes: int, rng: np.random.Generator) -> list[Indices]:
        per_client = self.classes_per_client
        self.require_classes(per_client, num_classes)
        if per_client * clients < num_classes:
            raise self.refusal(
                f"{clients} clients with {per_client} classes each cannot hold all {num_classes} classes; raise "
                "clients or classes_per_client"
            )
        fewest = max(1, per_client * clients // num_classes // _HOLDERS_OF_EVEN)
        all_classes = np.tile(np.arange(num_classes), (clients, 1))
        for _ in range(self.max_draws):
            drawn = np.zeros((clients, num_classes), bool)
            np.put_along_axis(drawn, rng.permuted(all_classes, axis=1)[:, :per_client], True, axis=1)
            if drawn.sum(0).min() >= fewest:
                return [np.flatnonzero(holds) for holds in drawn.T]
        raise self.refusal(
            f"none of {self.max_draws} draws of {per_client} classes for {clients} clients gave each of {num_classes} "
            f"classes {fewest} clients; raise clients, classes_per_client or max_draws"
        )


def _deal_to_holders(
    options: Dirichlet | ExtendedDirichlet,
    holders: list[Indices],
    train: Dataset,
    test: Dataset,
    clients: int,
    rng: np.random.Generator,
) -> Dealt:
    """Deal each class among its holders by Dirichlet shares, drawn again until every client has enough samples."""
    balanced = isinstance(options, ExtendedDirichlet) and options.balanced
    # Samples are shuffled once, and only shares are drawn again: a redraw then costs no permutation of the data.
    class_rows, test_class_rows = (shuffled_classes(data.y.numpy(), train.num_classes, rng) for data in (train, test))
    owner, test_owner = np.empty(len(train), np.int64), np.empty(len(test), np.int64)
    fewest_lacking, nearest = len(train), owner
    for draw in range(1, options.max_draws + 1):
        held_counts = np.zeros(clients, np.int64)
        for class_holders, rows, test_rows in zip(holders, class_rows, test_class_rows, strict=True):
            shares = rng.dirichlet(np.full(len(class_holders), options.alpha))
            if balanced:
                open_shares = shares * (held_counts[class_holders] * clients < len(train))
                if open_shares.sum() > 0:  # else all holders are full, and keep the shares as drawn
                    shares = open_shares / open_shares.sum()
            sizes = cut(shares, len(rows))
            owner[rows] = np.repeat(class_holders, sizes)
            test_owner[test_rows] = np.repeat(class_holders, cut(shares, len(test_rows)))
            held_counts[class_holders] += sizes
        if held_counts.min() >= options.min_samples:
            return Dealt(Views.from_owners(owner, clients), Views.from_owners(test_owner, clients), draw)
        lacking = int(np.maximum(options.min_samples - held_counts, 0).sum())
        if lacking < fewest_lacking:
            fewest_lacking, nearest = lacking, owner.copy()
    if isinstance(options, Dirichlet):  # with few classes no draw may do; the other kind limits classes per client
        views = Views.from_owners(_filled_up(nearest, options.min_samples, clients, rng), clients)
        test_views = deal_alike(views, train.y.numpy(), test.y.numpy(), train.num_classes, rng)
        note = (
            f"partition dirichlet: none of {options.max_draws:,} draws with alpha {options.alpha} gave each of "
            f"{clients} clients {options.min_samples} samples; in the nearest one {fewest_lacking:,} samples went from "
            "the largest clients to those with fewer (min_samples: 0 takes a plain draw, dirichlet-equal equal sizes)"
        )
        return Dealt(views, test_views, options.max_draws, 0, notes=(note,))
    raise options.refusal(
        f"none of {options.max_draws} draws with alpha {options.alpha} gave each of {clients} clients "
        f"{options.min_samples} samples; raise alpha or classes_per_client, or lower clients or min_samples"
    )


def _filled_up(owner: Indices, minimum: int, clients: int, rng: np.random.Generator) -> Indices:
    """Return the client of each sample [n] after each client with fewer than `minimum` samples got random ones of the
    clients that are the largest at that time."""
    filled, sizes = owner.copy(), np.bincount(owner, minlength=clients)
    for client in np.flatnonzero(sizes < minimum):
        while (lacking := minimum - sizes[client]) > 0:
            largest = int(np.argmax(sizes))
            count = min(lacking, sizes[largest] - minimum)  # above 0: there are enough samples for all
            filled[rng.choice(np.flatnonzero(filled == largest), count, replace=False)] = client
            sizes[largest] -= count
            sizes[client] += count
    return filled
