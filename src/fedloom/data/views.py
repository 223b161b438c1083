"""Index lists of any number of clients in two flat arrays, and splits of all clients at once."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Views:
    """Client k holds the samples `order[offsets[k] : offsets[k + 1]]`; `len(views)` clients. A view is a slice: a
    million clients cost two arrays, and one client's view costs nothing."""

    order: Indices
    offsets: Indices

    @staticmethod
    def from_lists(lists: Sequence[Indices]) -> "Views":
        """Build views from one index array per client."""
        sizes = np.fromiter((len(part) for part in lists), dtype=np.int64, count=len(lists))
        order = np.concatenate(lists).astype(np.int64) if lists else np.zeros(0, np.int64)
        return Views(order, starts(sizes))

    @staticmethod
    def from_owners(owner: Indices, clients: int) -> "Views":
        """Build views from the client of each sample, owner [n] in -1 .. clients-1; -1 leaves a sample out."""
        sizes = np.bincount(owner[owner >= 0], minlength=clients)
        # Samples of owner -1 are sorted to the front, and cut off there.
        order = np.argsort(owner, kind="stable")[len(owner) - int(sizes.sum()) :]
        return Views(order, starts(sizes))

    @staticmethod
    def split_evenly(order: Indices, clients: int) -> "Views":
        """Cut `order` [m] into contiguous pieces whose sizes differ by at most one, the larger ones first."""
        return Views(order, starts(even_sizes(len(order), clients)))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, client: int) -> Indices:
        """Return the sample indices [n_k] of one client, not copied."""
        return self.order[self.offsets[client] : self.offsets[client + 1]]

    def tensor(self, client: int) -> Tensor:
        """Return the sample indices [n_k] of one client as an int64 tensor that shares their memory."""
        return torch.from_numpy(self[client])

    def __repr__(self) -> str:
        return f"Views({len(self)} clients, {len(self.order)} samples)"

    @property
    def sizes(self) -> Indices:
        """Samples per client [N]."""
        return np.diff(self.offsets)

    def holders(self) -> Indices:
        """Return the client of each entry of `order` [m]."""
        return np.repeat(np.arange(len(self)), self.sizes)

    def owner_of(self, samples: int) -> Indices:
        """Return the client of each of `samples` samples [n]: -1 for none, one of them if several hold the sample."""
        owner = np.full(samples, -1, np.int64)
        owner[self.order] = self.holders()
        return owner

    def renumber(self, rows: Indices) -> "Views":
        """Return the views with sample i replaced by `rows[i]`; rows [n] int64."""
        return Views(rows[self.order], self.offsets)

    def of_clients(self, clients: Indices) -> "Views":
        """Return the views of these clients alone, in this order, which is ascending; clients [m] int64."""
        return Views(self.order[np.isin(self.holders(), clients)], starts(self.sizes[clients]))

    def together(self) -> "Views":
        """Return the views of one client that holds all samples, in the order of the clients."""
        return Views(self.order, np.array([0, len(self.order)], np.int64))

    def class_counts(self, labels: Indices, num_classes: int, first: int | None = None) -> Indices:
        """Count samples per client and class [N, C], int64, of the first clients (None: all); of several labels those
        that hold. labels: [n] or [n, L] of the whole set."""
        clients = len(self) if first is None else min(first, len(self))
        owner = np.repeat(np.arange(clients), self.sizes[:clients])
        rows, held = positives(labels[self.order[: self.offsets[clients]]])
        # One bincount over (client, class) pairs, rather than a loop over clients.
        counts = np.bincount(owner[rows] * num_classes + held, minlength=clients * num_classes)
        return counts.reshape(clients, num_classes)


def positives(labels: Indices) -> tuple[Indices, Indices]:
    """Return the row and the class of each class that a sample holds: one each for labels [n], the 1s for [n, L]."""
    if labels.ndim == 1:
        return np.arange(len(labels)), labels
    rows, classes = np.nonzero(labels == 1)
    return rows, classes


def label_counts(labels: Tensor, num_classes: int) -> Tensor:
    """Count the samples of each class [C] in labels [n], int64; of several labels [n, L] the positives."""
    return torch.bincount(labels, minlength=num_classes) if labels.dim() == 1 else (labels == 1).sum(0)


def strata(labels: Indices) -> Indices:
    """Return the class [n] whose shares a split keeps: the label, or of several labels [n, L] the rarest one that the
    sample holds, L for none, as it is the hardest to split (Sechidis et al., ECML 2011)."""
    if labels.ndim == 1:
        return labels
    rarest_first = np.argsort((labels == 1).sum(0), kind="stable")
    is_held = labels[:, rarest_first] == 1
    rarest: Indices = np.where(is_held.any(1), rarest_first[is_held.argmax(1)], labels.shape[1])
    return rarest


def starts(sizes: Indices) -> Indices:
    """Return the offsets [N + 1] of pieces of these sizes [N]."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)])


def evenly_spaced(indices: Indices, most: int) -> Indices:
    """Return at most `most` entries of an array [n], from its first to its last in equal steps; all if there are fewer.

    Example:
        >>> evenly_spaced(np.array([3, 5, 8, 9, 12]), 3).tolist()
        [3, 8, 12]
    """
    return indices[np.linspace(0, max(0, len(indices) - 1), min(len(indices), most)).astype(np.int64)]


def even_sizes(total: int, parts: int) -> Indices:
    """Split `total` into `parts` whole numbers that differ by at most one, the larger first."""
    return total // parts + (np.arange(parts) < total % parts).astype(np.int64)


def hold_out(views: Views, share: ArrayLike, rng: np.random.Generator) -> tuple[Views, Views]:
    """Shuffle each of the views (by rng) and hold out floor(share * n_k) samples; return (remaining, held out). share:
    one number in [0, 1], or one per client [N]."""
    # One random key for each sample shuffles all clients at once, without a loop.
    shuffled = _sorted(views, rng.random(len(views.order)))
    held_counts = np.floor(np.asarray(share) * views.sizes).astype(np.int64)
    is_held_out = _positions(views) < np.repeat(held_counts, views.sizes)
    return select(shuffled, ~is_held_out), select(shuffled, is_held_out)


def split_three(
    views: Views, labels: Indices, num_classes: int, val: float, test: float, rng: np.random.Generator
) -> tuple[Views, Views, Views]:
    """Split each client's samples by class (labels [n] or [n, L] of num_classes classes, see `strata`) into (train,
    val, test); floor(val * n_k) and floor(test * n_k) samples go to the last two, of each class its share up to one."""
    groups = views.holders() * (num_classes + 1) + strata(labels)[views.order]  # (client, class) of each sample
    shuffled = np.lexsort((rng.random(len(groups)), groups))
    present_groups, first, sizes = np.unique(groups[shuffled], return_index=True, return_counts=True)
    rank = np.arange(len(groups)) - np.repeat(first, sizes)
    offset = np.repeat(rng.random(len(present_groups)), sizes)  # random, or else one class would always come first
    # Spread every class evenly over [0, 1); any interval of positions then holds each class in its share.
    position = np.empty(len(groups))
    position[shuffled] = (rank + offset) / np.repeat(sizes, sizes)
    ordered, index = _sorted(views, position), _positions(views)
    tests, vals = (np.repeat(np.floor(share * views.sizes), views.sizes) for share in (test, val))
    is_test, is_val = index < tests, (index >= tests) & (index < tests + vals)
    return select(ordered, ~is_test & ~is_val), select(ordered, is_val), select(ordered, is_test)


def matched_tests(
    views: Views, labels: Indices, test_labels: Indices, num_classes: int, rng: np.random.Generator
) -> Views | int:
    """Draw for each client as many test samples in its own label mix as there are, see `matched_counts`; return the id
    of the first client for which there are none. labels, test_labels: [n] and [m], of num_classes classes."""
    members = [np.flatnonzero(test_labels == label) for label in range(num_classes)]
    available, test_rows = np.array([*map(len, members)]), []
    for client in range(len(views)):
        class_counts = np.bincount(labels[views[client]], minlength=num_classes)
        test_counts = matched_counts(class_counts, available)
        if class_counts.any() and not test_counts.any():
            return client
        drawn = [rng.permutation(rows)[:count] for rows, count in zip(members, test_counts, strict=True)]
        test_rows.append(np.concatenate(drawn))
    return Views.from_lists(test_rows)


def _positions(views: Views) -> Indices:
    """Return the position of each entry within its client: 0 .. n_k - 1."""
    return np.arange(len(views.order)) - np.repeat(views.offsets[:-1], views.sizes)


def _sorted(views: Views, key: np.ndarray) -> Views:
    """Sort each view by `key` [m], one number per entry of `order`."""
    return Views(views.order[np.lexsort((key, views.holders()))], views.offsets)


def select(views: Views, chosen: np.ndarray) -> Views:
    """Return the views with the entries where `chosen` [m] is true."""
    sizes = np.bincount(views.holders()[chosen], minlength=len(views))
    return Views(views.order[chosen], starts(sizes))


def matched_counts(train: Indices, test: Indices) -> Indices:
    """Return how many test samples per class [C], of `test` [C], match a client's training samples `train` [C]: floor(r
    * train_c), r = min over the classes held of test_c / train_c (Fed-CO2, Li et al. 2023)."""
    held_classes = np.flatnonzero(train)
    if not len(held_classes):
        return np.zeros_like(train)
    scarcest_class = held_classes[np.argmin(test[held_classes] / train[held_classes])]
    # In whole numbers: a float product that rounds to just below an integer would lose a sample.
    counts: Indices = train * test[scarcest_class] // train[scarcest_class]
    return counts
