"""The base of partitions, and helpers that deal samples without a loop over clients."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from pydantic import Field, field_validator

from fedloom.core.errors import ConfigError
from fedloom.core.files import expand_if_path
from fedloom.core.key_models import Keys
from fedloom.core.registry import Registry
from fedloom.data.dataset import Dataset
from fedloom.data.scenario import TestRows
from fedloom.data.views import Indices, Views, starts

PARTITIONS: "Registry[type[Partition]]" = Registry("partition", home="fedloom.data.partitions")

MinSamples = Annotated[
    int,
    Field(
        ge=0, description="Smallest number of training samples of a client; it is drawn again until all have as many."
    ),
]
Alpha = Annotated[
    float, Field(gt=0, description="Concentration of the Dirichlet distribution; small values mean strong label skew.")
]
MaxDraws = Annotated[int, Field(ge=1, description="Largest number of draws before the partition is refused.")]


@dataclass(frozen=True, slots=True)
class Dealt:
    """The views of a partition, and how many draws it took.

    Attributes:
        train, test: views per client into the training and the test set.
        draws, accepted: how many draws the rejection loops needed, and how many of them were kept (one per loop; 0 if
            none could be, and the nearest one was changed).
        val: only from a partition that fixes the validation views too.
        test_rows: which samples the test views of such a partition index: the official test set, or the clients' own
            pool (see `fedloom.data.assemble.OwnSplit`).
        notes: sentences on a changed draw, and on samples that are in no view though a reader would expect them there.
    """

    train: Views
    test: Views
    draws: int = 1
    accepted: int = 1
    val: Views | None = None
    test_rows: TestRows = "official"
    notes: tuple[str, ...] = ()


class Partition(Keys, extra="forbid", frozen=True, allow_inf_nan=False):
    """Base of all partitions: its fields are its config keys, `deal` is pure in its arguments."""

    kind: ClassVar[str] = ""  # the name under which it is registered
    takes_thinned: ClassVar[bool] = True
    """Whether it can deal a training set that a skew has thinned."""
    takes_multi: ClassVar[bool] = False
    """Whether it can deal samples with several labels, as it does not look at them."""
    deals: ClassVar[Literal["groups", "domains", "rows"]] = "groups"
    """What is kept where samples have groups: whole groups, those of each domain apart, or rows as they are dealt."""

    _home = field_validator("*")(expand_if_path)

    def count_clients(self, load: Callable[[], Dataset]) -> int | None:
        """Return the number of clients if the data decide it (`load` reads the training set), else None."""
        return None

    def without_domain(self, domain: int, clients: int) -> "tuple[Partition, int]":
        """Return the partition without one domain (by its index), and its number of clients out of `clients`."""
        return self, clients

    def deal(self, train: Dataset, test: Dataset, clients: int, rng: np.random.Generator) -> Dealt:
        """Deal samples to clients. No training sample goes to two clients.

        Args:
            train: the training set. Only labels, classes and domains are to be looked at: where a skew has thinned the
                set, `x` is [n, 0].
            test: the official test set.
            clients: number of clients N.
            rng: draws everything that is random.

        Raises `ConfigError` if it cannot be done.
        """
        raise TypeError(f"{type(self).__name__} defines no deal()")

    def refusal(self, problem: str) -> ConfigError:
        """Return the error that names the partition and why it cannot be made."""
        return ConfigError(f"partition {self.kind}: {problem}")

    def require_clients(self, clients: int, needed: int, reason: str) -> None:
        """Raise `ConfigError` unless there are exactly `needed` clients; reason: words for the message."""
        if clients != needed:
            raise ConfigError(f"scenario.clients = {clients}: partition {self.kind} {reason}; need clients={needed}")

    def require_enough(self, clients: int, minimum: int, samples: int, noun: str = "samples") -> None:
        """Raise `ConfigError` if `samples` cannot give each of `clients` its `minimum`."""
        if clients * minimum > samples:
            raise self.refusal(
                f"{clients} clients with at least {minimum} {noun} each need {clients * minimum} {noun}, there are "
                f"{samples}; lower clients or the minimum"
            )

    def require_classes(self, per_client: int, num_classes: int) -> None:
        """Raise `ConfigError` if a client is to hold more classes than there are."""
        if per_client > num_classes:
            raise self.refusal(f"classes_per_client = {per_client}, but the source has {num_classes} classes")


partition = PARTITIONS.register
"""`partition(name)` registers the decorated partition class under `name`."""


def labels_only(
    labels: ArrayLike,
    classes: Sequence[str] | None = None,
    domain: ArrayLike | None = None,
    domains: Sequence[str] = (),
    group: ArrayLike | None = None,
) -> Dataset:
    """Build a `Dataset` without pixels, x [n, 0], for a partition.

    Args:
        labels: [n], whole numbers from 0.
        classes: names of the classes; None takes "0" .. the largest label.
        domain: origin of each sample [n], an index into the names `domains`; None if they have one origin.
        group: number of each sample's group [n]; None if there are no groups.
    """
    y = torch.from_numpy(np.array(labels, dtype=np.int64))
    names = map(str, range(int(y.max()) + 1 if len(y) else 0)) if classes is None else classes
    ids = [None if of is None else torch.from_numpy(np.array(of, dtype=np.int64)) for of in (domain, group)]
    return Dataset(torch.empty(len(y), 0), y, tuple(names), domain=ids[0], domains=tuple(domains), group=ids[1])


Shares = NDArray[np.float64]


def shuffled_classes(labels: Indices, num_classes: int, rng: np.random.Generator) -> list[Indices]:
    """Return the samples of each class in random order: `num_classes` arrays of rows, int64. labels: [n], int64."""
    order = rng.permutation(len(labels))
    # A stable sort by label keeps the random order within each class, with one permutation for all classes.
    order = order[np.argsort(labels[order], kind="stable")]
    return np.split(order, np.cumsum(np.bincount(labels, minlength=num_classes))[:-1])


def cut(shares: Shares, count: int | Indices) -> Indices:
    """Cut `count` samples (a number or [..., 1]) at the cumulative `shares` [..., N], rounded down; return sizes [...,
    N]."""
    edges = (np.cumsum(shares, axis=-1) * count).astype(np.int64)
    # Rounding may leave the sum of shares just below 1; the last edge must still take every sample.
    edges[..., -1:] = count
    # A sum just above 1 must not carry an earlier edge past the count either.
    return np.diff(np.minimum(edges, count), prepend=0)


def deal_by_shares(labels: Indices, shares: Shares, rng: np.random.Generator) -> Views:
    """Cut every class, shuffled by rng, at cumulative shares, rounded down. The views are complete and disjoint.
    labels: [n], int64. shares: of each client in each class [N, C]; columns sum to 1."""
    class_sizes = np.bincount(labels, minlength=shares.shape[1])
    return deal_by_counts(labels, cut(shares.T, class_sizes[:, None]).T, rng)


def deal_by_counts(labels: Indices, counts: Indices, rng: np.random.Generator) -> Views:
    """Give each client random samples of each class. The views are disjoint; further samples stay unused. labels: [n],
    int64. counts: samples of each client and class [N, C], at most n_c in a column. rng: draws the samples."""
    clients, num_classes = counts.shape
    owner = np.full(len(labels), -1, np.int64)
    for label, members in enumerate(shuffled_classes(labels, num_classes, rng)):
        owners = np.repeat(np.arange(clients), counts[:, label])
        owner[members[: len(owners)]] = owners
    return Views.from_owners(owner, clients)


def deal_alike(
    dealt: Views, labels: Indices, other_labels: Indices, num_classes: int, rng: np.random.Generator
) -> Views:
    """Deal samples in the proportions of another dealing: each client gets the same share of each of the C =
    `num_classes` classes, or of all samples if these have several labels. Classes that are not dealt there stay unused.
    dealt: views that deal the first samples, with `labels` [n], int64, or [n, L]. other_labels: of the samples to deal
    [n'] or [n', L]. rng: shuffles the classes."""
    if labels.ndim == 2:
        labels, other_labels = (np.zeros(len(of), np.int64) for of in (labels, other_labels))
    holders, held_labels = dealt.holders(), labels[dealt.order]
    owner = np.full(len(other_labels), -1, np.int64)
    for label, members in enumerate(shuffled_classes(other_labels, num_classes, rng)):
        counts = np.bincount(holders[held_labels == label], minlength=len(dealt))
        if counts.sum():  # whole numbers: the edges are exact
            edges = starts(counts) * len(members) // counts.sum()
            owner[members] = np.repeat(np.arange(len(dealt)), np.diff(edges))
    return Views.from_owners(owner, len(dealt))
