"""Splits and dealings of whole groups (persons, specimens, scenes) that keep the shares of the classes."""

from collections.abc import Sequence

import numpy as np

from fedloom.data.dataset import Dataset
from fedloom.data.views import Indices, Views, positives, select

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
