"""Index lists of any number of clients in two flat arrays, splits of all clients at once, and splits and dealings of
whole groups (persons, specimens, scenes) that keep the shares of the classes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from fedloom.data.dataset import Dataset

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


_TIE = 1e-12  # costs that differ by less are equal, or rounding would decide
_SWEEPS = 10


def group_split(
    groups: Indices,
    labels: Indices,
    shares: Sequence[float],
    rng: np.random.Generator,
    clients: Indices | None = None,
    reached: Sequence[int] = (0, -1),
) -> Indices:
    """Split whole groups into parts, each with about its share of every class; return the part of each row [n].

    groups: of each row [n], numbered as the sorted ids. labels: class of each row [n], or several [n, L], of which
    positives and rows keep their shares. shares: of the parts, with sum 1. rng: orders groups of equal weight. clients:
    of each row [n]; each part then has about its share of every client's classes and rows. reached: the parts in which
    each class, and each client, of two or more groups has one."""
    rows, labels = positives(_with_rows(labels))
    clients = None if clients is None else clients[rows]
    cells = [labels] if clients is None else [clients * (labels.max(initial=0) + 1) + labels, clients]
    placed = _Placement(groups[rows], cells, rng)
    placed.assign(np.repeat(np.array(shares, np.float64)[:, None], len(placed.totals), axis=1))
    placed.spread([labels] if clients is None else [labels, clients], [range(len(shares))[part] for part in reached])
    part = np.zeros(len(groups), np.int64)
    part[rows] = placed.part[placed.position]
    return part


def _with_rows(labels: Indices) -> Indices:
    """Return labels [n], and several labels [n, L] with one more that all rows have: else some would not count."""
    return labels if labels.ndim == 1 else np.pad(labels, ((0, 0), (0, 1)), constant_values=1)


def split_groups(
    views: Views, data: Dataset, shares: Sequence[float], rng: np.random.Generator, reached: Sequence[int] = (0, -1)
) -> list[Views] | None:
    """Split the views of all clients into samples of `data` as `group_split` does (shares, rng, reached); return those
    of each part, or None for data without groups."""
    if data.group is None:
        return None
    groups, labels = (of.numpy()[views.order] for of in (data.group, data.y))
    part = group_split(groups, labels, shares, rng, views.holders(), reached)
    return [select(views, part == number) for number in range(len(shares))]


def deal_groups(dealt: Views, groups: Indices, labels: Indices, rng: np.random.Generator) -> Views:
    """Deal whole groups to clients, each with about the rows of every class that `dealt`, a row-wise dealing, gives it.
    groups, labels: of each row [n] or [n, L] of the set. rng: orders groups of equal weight."""
    labels, rows = _with_rows(labels), np.sort(dealt.order)
    cell_rows, held = positives(labels[rows])
    rows, (classes, columns) = rows[cell_rows], np.unique(held, return_inverse=True)
    placed = _Placement(groups[rows], [columns], rng)
    aims = dealt.class_counts(labels, int(classes.max(initial=0)) + 1)[:, classes]
    placed.assign(aims / aims.sum(0))
    placed.fill(np.flatnonzero(dealt.sizes))
    owner = np.full(len(labels), -1, np.int64)
    owner[rows] = placed.part[placed.position]
    return Views.from_owners(owner, len(dealt))


class _Placement:
    """Groups, those first that hold the largest share q of a column; columns are the values in `cells` (each [n], such
    as classes). position: of each row's group in that order. part: of each group. totals: of q by column."""

    def __init__(self, groups: Indices, cells: Sequence[Indices], rng: np.random.Generator) -> None:
        ids, place = np.unique(groups, return_inverse=True)
        holder, column, rows, widths = _held(place, cells)
        # A client's rows count as much as all of its classes: else a part stays empty where each class is rare.
        self.totals = np.repeat(np.sqrt(widths[0] / widths), widths)
        q = self.totals[column] * rows / np.bincount(column, rows)[column]
        largest = np.zeros(len(ids))
        np.maximum.at(largest, holder, q)
        order = rng.permutation(len(ids))
        order = order[np.argsort(-largest[order], kind="stable")]
        ends = np.cumsum(np.bincount(holder, minlength=len(ids)))[:-1]
        by_id = list(zip(np.split(column, ends), np.split(q, ends), strict=True))
        self.shares = [by_id[group] for group in order.tolist()]
        self.position = np.argsort(order)[place]
        self.rows = np.bincount(self.position, minlength=len(ids))
        self.part = np.zeros(len(ids), np.int64)

    def assign(self, shares: np.ndarray) -> None:
        """Place each group where it adds least to the squared distance of all parts from their shares [S, columns],
        then move single groups as long as that brings the distance down. Parts without a share get none."""
        lack, members = shares * self.totals, np.zeros(len(shares), np.int64)
        is_closed = shares.max(1) == 0
        for sweep in range(_SWEEPS + 1):
            has_moved = False
            for group, (columns, q) in enumerate(self.shares):
                former = int(self.part[group])
                if sweep and members[former] == 1:  # no part is emptied
                    continue
                if sweep:
                    lack[former, columns] += q
                    members[former] -= 1
                costs = -2 * (lack[:, columns] @ q)
                costs[is_closed] = np.inf
                part = int(np.argmax(costs <= costs.min() + _TIE))
                if sweep and costs[part] >= costs[former] - _TIE:
                    part = former
                has_moved |= part != former
                self.part[group] = part
                lack[part, columns] -= q
                members[part] += 1
            if sweep and not has_moved:
                return

    def spread(self, cells: Sequence[Indices], reached: Sequence[int]) -> None:
        """Give each of the `reached` parts a group of every value in `cells` (each [n]) that two groups hold: the
        smallest one, from the other parts first, and never the last one of a value from a `reached` part."""
        holder, column, *_ = _held(self.position, cells)
        held = np.split(column, np.cumsum(np.bincount(holder))[:-1])
        counts = np.zeros((max(self.part.max(), *reached) + 1, column.max() + 1), np.int64)
        np.add.at(counts, (self.part[holder], column), 1)
        by_column = np.argsort(column, kind="stable")
        for value, holders in enumerate(np.split(holder[by_column], np.cumsum(np.bincount(column))[:-1])):
            for part in reached if len(holders) > 1 else ():
                if counts[part, value]:
                    continue
                for group in sorted(holders.tolist(), key=lambda g: (self.part[g] in reached, self.rows[g], g)):
                    former = self.part[group]
                    if former not in reached or counts[former, held[group]].min() > 1:
                        counts[former, held[group]] -= 1
                        counts[part, held[group]] += 1
                        self.part[group] = part
                        break

    def fill(self, parts: Indices) -> None:
        """Give each of the `parts` without a group the smallest one of a part with several."""
        members = np.bincount(self.part, minlength=int(parts.max(initial=0)) + 1)
        for part in parts[members[parts] == 0].tolist():
            spare = np.flatnonzero(members[self.part] > 1)
            if not len(spare):
                return
            group = spare[np.argmin(self.rows[spare])]
            members[self.part[group]] -= 1
            self.part[group], members[part] = part, 1


def _held(place: Indices, cells: Sequence[Indices]) -> tuple[Indices, Indices, Indices, Indices]:
    """Return group, column and number of rows of each pair that occurs, ordered by group, and the number of columns by
    kind. place: group of each row [n]; cells: see `_Placement`."""
    codes = [np.unique(of, return_inverse=True)[1] for of in cells]
    widths = np.array([int(of.max(initial=-1)) + 1 for of in codes])
    firsts, width = np.cumsum(widths) - widths, widths.sum()
    keys = [place * width + first + of for first, of in zip(firsts, codes, strict=True)]
    pairs, rows = np.unique(np.concatenate(keys), return_counts=True)
    return pairs // width, pairs % width, rows, widths
