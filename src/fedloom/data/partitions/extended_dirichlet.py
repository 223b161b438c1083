"""A fixed number of classes per client, and Dirichlet shares among the clients that hold a class."""

from __future__ import annotations

import numpy as np
from pydantic import Field

from fedloom.core.errors import ConfigError
from fedloom.data.dataset import Dataset
from fedloom.data.partitions.partition import Dealt, Partition, cut, partition, require_enough, shuffled_classes
from fedloom.data.views import Indices, Views

_HOLDERS_OF_EVEN = 5  # a class needs a fifth of the clients that it would have if classes were drawn evenly


@partition("extended-dirichlet")
class ExtendedDirichlet(Partition):
    """Each client draws its classes, then each class is dealt by Dirichlet(alpha) among the clients that drew it.

    ExDir(C, alpha) of Li and Lyu, NeurIPS 2023, arXiv 2311.03154. A client's classes are drawn all alike, without
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

    classes_per_client: int = Field(
        ge=1,
        description="Number of classes that each client draws; of some of them it may get no sample.",
        examples=[2],
    )
    alpha: float = Field(
        gt=0,
        allow_inf_nan=False,
        description="Concentration of the Dirichlet distribution over the clients of a class. Small values give one "
        "of them nearly all samples, large ones even shares.",
        examples=[10.0],
    )
    balanced: bool = Field(
        False,
        description="Whether a client that holds its fair part of all samples gets none of the classes that follow, "
        "as in the released code.",
    )
    min_samples: int = Field(
        10,
        ge=0,
        description="Smallest number of training samples of a client; shares are drawn until all have as many.",
    )
    max_draws: int = Field(
        1000, ge=1, description="Largest number of draws of classes, and of shares, before the partition is refused."
    )

    def deal(self, train: Dataset, test: Dataset, clients: int, rng: np.random.Generator) -> Dealt:
        require_enough("extended-dirichlet", clients, self.min_samples, len(train))
        holders = self._holders(clients, train.num_classes, rng)
        class_rows, test_class_rows = (
            shuffled_classes(data.y.numpy(), train.num_classes, rng) for data in (train, test)
        )
        owner, test_owner = np.empty(len(train), np.int64), np.empty(len(test), np.int64)
        for draw in range(1, self.max_draws + 1):
            held_counts = np.zeros(clients, np.int64)
            for class_holders, rows, test_rows in zip(holders, class_rows, test_class_rows, strict=True):
                shares = rng.dirichlet(np.full(len(class_holders), self.alpha))
                free = held_counts[class_holders] * clients < len(train)
                if self.balanced and (shares * free).sum() > 0:
                    shares = shares * free / (shares * free).sum()
                sizes = cut(shares, len(rows))
                owner[rows] = np.repeat(class_holders, sizes)
                test_owner[test_rows] = np.repeat(class_holders, cut(shares, len(test_rows)))
                held_counts[class_holders] += sizes
            if held_counts.min() >= self.min_samples:
                return Dealt(Views.from_owners(owner, clients), Views.from_owners(test_owner, clients), draw)
        raise ConfigError(
            f"partition extended-dirichlet: none of {self.max_draws} draws with alpha {self.alpha} gave each of "
            f"{clients} clients {self.min_samples} samples; raise alpha or classes_per_client, or lower clients or "
            "min_samples"
        )

    def _holders(self, clients: int, num_classes: int, rng: np.random.Generator) -> list[Indices]:
        """The clients of each class, ascending."""
        per_client = self.classes_per_client
        if per_client > num_classes:
            raise ConfigError(
                f"partition extended-dirichlet: classes_per_client = {per_client}, but the source has {num_classes} "
                "classes"
            )
        if per_client * clients < num_classes:
            raise ConfigError(
                f"partition extended-dirichlet: {clients} clients with {per_client} classes each cannot hold all "
                f"{num_classes} classes; raise clients or classes_per_client"
            )
        fewest = max(1, per_client * clients // num_classes // _HOLDERS_OF_EVEN)
        all_classes = np.tile(np.arange(num_classes), (clients, 1))
        for _ in range(self.max_draws):
            drawn = np.zeros((clients, num_classes), bool)
            np.put_along_axis(drawn, rng.permuted(all_classes, axis=1)[:, :per_client], True, axis=1)
            if drawn.sum(0).min() >= fewest:
                return [np.flatnonzero(holds) for holds in drawn.T]
        raise ConfigError(
            f"partition extended-dirichlet: none of {self.max_draws} draws of {per_client} classes for {clients} "
            f"clients gave each of {num_classes} classes {fewest} clients; raise clients, classes_per_client or "
            "max_draws"
        )
