"""Label skew, quantity skew and the long tail, from class counts alone.
Distances between label distributions lie in [0, 1]: 0 for equal distributions, 1 for those without a common class."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform
from scipy.special import entr

from fedloom.core.errors import ConfigError
from fedloom.data.scenario import total_variation
from fedloom.data.views import evenly_spaced

Floats: TypeAlias = NDArray[np.float64]
Counts: TypeAlias = NDArray[np.int64]
Distance = Literal["total_variation", "jensen_shannon", "hellinger"]
DISTANCES: tuple[Distance, ...] = ("total_variation", "jensen_shannon", "hellinger")


def shares_of(counts: Counts) -> Floats:
    """Class shares [N, C] of counts [N, C]; a row without samples becomes zeros."""
    totals = counts.sum(1, keepdims=True)
    return np.asarray(counts / np.maximum(totals, 1))


def distance(kind: Distance, first: Floats, second: Floats) -> Floats:
    """Return the distances [...] of distributions [..., C] that broadcast.
    total_variation: 1/2 sum |p - q|. jensen_shannon: the root of the Jensen-Shannon divergence with base 2. hellinger:
    the root of 1 - sum sqrt(p q), as in arXiv 2503.17070. first: p. second: q."""
    if kind == "total_variation":
        return total_variation(first, second)
    if kind == "hellinger":
        # Rounding may leave the sum for equal distributions slightly above 1.
        return np.asarray(np.sqrt(np.clip(1 - np.sqrt(first * second).sum(-1), 0, 1)))
    middle = (first + second) / 2
    divergence = entropy(middle) - (entropy(first) + entropy(second)) / 2
    return np.asarray(np.sqrt(np.clip(divergence / np.log(2), 0, 1)))


def entropy(shares: Floats) -> Floats:
    """Return the entropy [...] in nats of distributions [..., C]; 0 log 0 is 0."""
    return np.asarray(entr(shares).sum(-1))


def pairwise(kind: Distance, shares: Floats) -> Floats:
    """Return the distances [N, N] of all pairs of distributions `shares` [N, C]; 0 on the diagonal."""
    matrix = np.stack([distance(kind, row, shares) for row in shares]) if len(shares) else np.zeros((0, 0))
    # Rounding may leave a distribution at a small distance from itself.
    np.fill_diagonal(matrix, 0)
    return matrix


def mean_of_pairs(matrix: Floats) -> float:
    """Return the mean of a symmetric matrix [N, N] over its pairs; 0 for a single one."""
    size = len(matrix)
    return float(matrix.sum() / (size * (size - 1))) if size > 1 else 0.0


def gini(amounts: Floats | Counts) -> float:
    """Return Gini's coefficient of amounts [n]: 0 if all are equal, near 1 if one has everything; 0 of nothing.

    >>> gini(np.array([1, 1, 1])), gini(np.array([0, 0, 3])).__round__(4)
    (0.0, 0.6667)
    """
    ordered, count = np.sort(np.asarray(amounts, dtype=np.float64)), len(amounts)
    total = ordered.sum()
    if count == 0 or total == 0:
        return 0.0
    return float((2 * np.arange(1, count + 1) - count - 1) @ ordered / (count * total))


MOST_CLIENTS = 100  # whose pairs are compared; of more, evenly spaced ones
_PERMUTATIONS = 200
_FEW_SHOTS = 5  # samples of a class


@dataclass(frozen=True, slots=True)
class Interval:
    """A value, and the 2.5 and 97.5 % quantiles of it if samples are dealt to clients of these sizes at random."""

    value: float
    low: float
    high: float

    @property
    def looks_iid(self) -> bool:
        """Whether the value lies in the interval, or below it."""
        return self.value <= self.high


@dataclass(frozen=True, slots=True)
class LabelProfile:
    """How the clients' labels and amounts differ. Clients without samples are left out, and counted.
    clients: ids of the compared clients [K], at most 100, evenly spaced. left_out: number of clients with samples that
    are not among them. distances: mean over pairs of clients of each distance, with its interval. hellinger: Hellinger
    distances of all pairs [K, K]. to_pool: Hellinger distance of each client to all samples together [K].
    effective_classes: exp of the entropy of each client's labels [K]: 1 for one class, C for equal shares. sizes:
    samples of each client [K]. size_gini: Gini's coefficient of the sizes of all clients with samples. size_ratio: the
    largest over the smallest of them. tail_ratio: rho, the largest class over the smallest one with samples. tail_gini:
    Gini's coefficient of the class totals, absent classes included. few_shot: clients that hold fewer than 5 samples
    for each class that they have, on average. groups: number of the group of each compared client [K], from 1 on:
    clients that are as near to each other, on average, as 97.5 % of pairs in random dealings."""

    clients: tuple[int, ...]
    left_out: int
    empty_clients: int
    distances: dict[str, Interval]
    hellinger: Floats
    to_pool: Floats
    effective_classes: Floats
    classes: int
    sizes: Counts
    size_gini: float
    size_ratio: float
    tail_ratio: float
    tail_gini: float
    absent_classes: tuple[int, ...]
    few_shot: tuple[int, ...]
    groups: Counts


def label_profile(counts: Counts, seed: int = 0) -> LabelProfile:
    """Profile clients by their class counts, the only thing that they have to reveal.

    A client that sends its counts tells the server its label mix. The interval comes from 200 random dealings of the
    same class totals to clients of the same sizes.

    counts: samples of each client and class [N, C], whole numbers of 0 or more. seed: of the random dealings.

    Raises `ConfigError` if no client has samples, or a count is negative.

    >>> profile = label_profile(np.array([[50, 0], [0, 50]]))
    >>> profile.distances["hellinger"].value, profile.distances["hellinger"].looks_iid
    (1.0, False)
    """
    counts = np.asarray(counts)
    if counts.ndim != 2 or counts.min(initial=0) < 0:
        raise ConfigError(f"class counts of shape {counts.shape}: need [clients, classes], whole numbers of 0 or more")
    sizes = counts.sum(1)
    with_samples = np.flatnonzero(sizes)
    if not len(with_samples):
        raise ConfigError("no client has training samples, so there is nothing to compare")
    compared = evenly_spaced(with_samples, MOST_CLIENTS)
    chosen, totals = counts[compared], counts.sum(0)
    shares = shares_of(chosen)
    intervals, near = _intervals(chosen, seed)
    hellinger, held = pairwise("hellinger", shares), totals[totals > 0]
    per_class = chosen.sum(1) / np.maximum((chosen > 0).sum(1), 1)
    return LabelProfile(
        clients=tuple(compared.tolist()),
        left_out=len(with_samples) - len(compared),
        empty_clients=len(sizes) - len(with_samples),
        distances=intervals,
        hellinger=hellinger,
        to_pool=distance("hellinger", shares, shares_of(totals[None])[0]),
        effective_classes=np.exp(entropy(shares)),
        classes=len(held),
        sizes=sizes[compared],
        size_gini=gini(sizes[with_samples]),
        size_ratio=float(sizes.max() / sizes[with_samples].min()),
        tail_ratio=float(held.max() / held.min()),
        tail_gini=gini(totals),
        absent_classes=tuple(np.flatnonzero(totals == 0).tolist()),
        few_shot=tuple(compared[per_class < _FEW_SHOTS].tolist()),
        groups=_groups(hellinger, near),
    )


def _intervals(counts: Counts, seed: int) -> tuple[dict[str, Interval], float]:
    """Mean distances of counts [K, C] with their quantiles over random dealings of the same margins; and the Hellinger
    distance below which 97.5 % of the pairs of those dealings are."""
    rng, shape = np.random.default_rng(seed), counts.shape
    # One label and one owner for each sample: a permutation of labels keeps both margins.
    labels = np.repeat(np.arange(shape[1]), counts.sum(0))
    owners = np.repeat(np.arange(shape[0]), counts.sum(1)) * shape[1]
    drawn: dict[str, list[float]] = {kind: [] for kind in DISTANCES}
    pairs = []
    for _ in range(_PERMUTATIONS if len(counts) > 1 else 0):
        # Owners are multiplied by C, so the sum numbers the cell (client, class).
        dealt = np.bincount(owners + rng.permutation(labels), minlength=counts.size).reshape(shape)
        matrices = {kind: pairwise(kind, shares_of(dealt)) for kind in DISTANCES}
        for kind, matrix in matrices.items():
            drawn[kind].append(mean_of_pairs(matrix))
        pairs.append(squareform(matrices["hellinger"], checks=False))
    intervals: dict[str, Interval] = {}
    for kind in DISTANCES:
        low, high = np.quantile(drawn[kind], [0.025, 0.975]) if drawn[kind] else (0.0, 0.0)
        intervals[kind] = Interval(mean_of_pairs(pairwise(kind, shares_of(counts))), float(low), float(high))
    return intervals, float(np.quantile(np.concatenate(pairs), 0.975)) if pairs else 0.0


def _groups(matrix: Floats, threshold: float) -> Counts:
    """Numbers [K], from 1 on, of the clusters of average linkage below a distance."""
    if len(matrix) < 2:
        return np.ones(len(matrix), dtype=np.int64)
    joined = linkage(squareform(matrix, checks=False), method="average")
    return np.asarray(fcluster(joined, threshold, criterion="distance"), dtype=np.int64)
