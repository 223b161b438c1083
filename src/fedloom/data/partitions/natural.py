"""Clients that the data come with, or that a partitioner of flwr-datasets makes."""

import importlib
import inspect
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from fedloom.core.errors import ConfigError, DataError, suggest_name
from fedloom.data.dataset import Dataset
from fedloom.data.partitions.domains import domains_of
from fedloom.data.partitions.partition import Dealt, Partition, deal_alike, partition
from fedloom.data.views import Indices, Views

_SHOWN_OWNERS = 5  # in a note


@partition("natural")
class Natural(Partition):
    """One client per id: per writer, hospital, device. Ids are the source's domains, or come from a file.

    Without ids of the test samples, these are dealt in each client's share of each class. Clients follow the sorted ids
    (the source's order for domains). The number of clients is the number of ids, and a config may leave it out.

    Example:
        >>> data = labels_only([0, 1, 1], domain=[1, 0, 1], domains=["north", "south"])
        >>> Natural().deal(data, data, 2, rng).train.sizes
        array([1, 2])
    """

    takes_multi = True
    deals = "rows"
    owners: Path | None = Field(
        None,
        description="Path of a `.npy` file with the id (number or word) of each training sample; null takes the "
        "source's domains.",
        examples=["writers.npy"],
    )
    test_owners: Path | None = Field(
        None,
        description="Path of a `.npy` file with the id of each test sample; null deals test samples in each "
        "client's share of each class.",
    )
    sample_ids: bool = Field(
        False,
        description="Whether `clients` may be smaller than the number of ids; ids are then chosen at random, and "
        "the samples of the others are left out.",
    )

    def count_clients(self, load: Callable[[], Dataset]) -> int | None:
        if self.sample_ids:
            return None
        if self.owners is None:
            return len(np.unique(domains_of(self, load())))
        return len(np.unique(_read(self.owners, None, "training")))

    def without_domain(self, domain: int, clients: int) -> tuple[Partition, int]:
        return self, clients - 1 if self.owners is None and not self.sample_ids else clients

    def deal(self, train: Dataset, test: Dataset, clients: int, rng: np.random.Generator) -> Dealt:
        if self.test_owners is not None and self.owners is None:
            raise self.refusal("test_owners without owners; name the file with the training ids too")
        if self.owners is None:
            ids, test_ids = domains_of(self, train), None if test.domain is None else test.domain.numpy()
        else:
            ids = _read(self.owners, len(train), "training")
            test_ids = None if self.test_owners is None else _read(self.test_owners, len(test), "test")
        present = np.unique(ids)
        if clients > len(present) or (clients < len(present) and not self.sample_ids):
            fewer = "" if clients > len(present) else ", or sample_ids=true to leave the other ids out"
            raise ConfigError(
                f"scenario.clients = {clients}: partition natural makes one client per id and the data have "
                f"{len(present)}; need clients={len(present)}{fewer}"
            )
        chosen = np.sort(rng.choice(present, clients, replace=False)) if self.sample_ids else present
        views = Views.from_owners(_positions(chosen, ids), clients)
        if test_ids is None:
            return Dealt(views, deal_alike(views, train.y.numpy(), test.y.numpy(), train.num_classes, rng))
        names = train.domains if self.owners is None else None
        notes = _untrained_owners(test_ids[_positions(present, test_ids) < 0], len(test_ids), names)
        return Dealt(views, Views.from_owners(_positions(chosen, test_ids), clients), notes=notes)


def _untrained_owners(ids: np.ndarray, test_samples: int, names: Sequence[str] | None) -> tuple[str, ...]:
    """Return a note on the test samples [n] of owners without training samples, or nothing; names: of the ids, if not
    they."""
    if not len(ids):
        return ()
    counts = Counter(ids.tolist() if names is None else [names[owner] for owner in ids.tolist()])
    listed = ", ".join(f"{count:,} of '{owner}'" for owner, count in counts.most_common(_SHOWN_OWNERS))
    more = f", and those of {len(counts) - _SHOWN_OWNERS:,} more" if len(counts) > _SHOWN_OWNERS else ""
    counted = f"{len(ids):,} of {test_samples:,} ({listed}{more})"
    return (f"test samples of owners without training samples, which are in no client's test: {counted}",)


def _positions(names: np.ndarray, ids: np.ndarray) -> Indices:
    """Return the index of each of `ids` in the sorted `names`; -1 if it is missing."""
    # An id above all names has the position behind the last one, where there is no name to compare.
    positions = np.minimum(np.searchsorted(names, ids), len(names) - 1)
    return np.where(names[positions] == ids, positions, -1).astype(np.int64)


def _read(path: Path, samples: int | None, split: str) -> np.ndarray:
    try:
        ids: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)  # checks the size it states
    except Exception as error:  # numpy has no one kind of error for damaged headers
        raise DataError(f"partition natural: {path}: not readable as .npy: {' '.join(str(error).split())}") from None
    if not isinstance(ids, np.ndarray) or ids.ndim != 1 or samples not in (None, len(ids)):
        raise DataError(
            f"partition natural: {path} holds ids of shape {getattr(ids, 'shape', '?')}; need one for each of "
            f"{'the' if samples is None else samples} {split} samples"
        )
    if ids.dtype.kind not in "iuU":
        raise DataError(f"partition natural: {path} holds {ids.dtype}; need whole numbers or words")
    return ids


@partition("flower")
class Flower(Partition):
    """Any partitioner of flwr-datasets, chosen by class name.

    It sees the columns `label`, `domain` (where the source has domains) and `index`. Test samples are dealt in each
    client's share of each class. Needs flwr-datasets, an extra.

        scenario: {source: digits, partition: flower, partitioner: DirichletPartitioner, options: {alpha: 0.3}}"""

    partitioner: str = Field(
        description="Class name of the partitioner in `flwr_datasets.partitioner`.", examples=["ShardPartitioner"]
    )
    options: dict[str, Any] = Field(
        default_factory=dict,
        description="Arguments of the partitioner. Unless they are set here, `num_partitions` is the number of "
        'clients, `partition_by` is "label" and `seed` is drawn from the scenario\'s seed.',
    )

    def deal(self, train: Dataset, test: Dataset, clients: int, rng: np.random.Generator) -> Dealt:
        partitioner_class, table = self._kind(), self._table(train)
        defaults = {"num_partitions": clients, "partition_by": "label", "seed": int(rng.integers(2**31))}
        parameters = inspect.signature(partitioner_class).parameters
        options = {key: value for key, value in defaults.items() if key in parameters} | self.options
        for key in options:
            if key not in parameters:
                raise self.refusal(f"{self.partitioner} has no option '{key}': {suggest_name(key, parameters)}")
        try:
            partitioner = partitioner_class(**options)
            partitioner.dataset = table
            # Asked after the data are set: partitioners by a column count its values.
            if partitioner.num_partitions != clients:
                raise ConfigError(
                    f"scenario.clients = {clients}: {self.partitioner} makes {partitioner.num_partitions} partitions "
                    f"of these data; need clients={partitioner.num_partitions}"
                )
            lists = [np.array(partitioner.load_partition(client)["index"], np.int64) for client in range(clients)]
        except (ValueError, TypeError, KeyError) as error:
            raise self.refusal(f"{self.partitioner} refused: {' '.join(str(error).split())}") from None
        views = Views.from_lists(lists)
        return Dealt(views, deal_alike(views, train.y.numpy(), test.y.numpy(), train.num_classes, rng))

    def _kind(self) -> Any:
        try:
            partitioners = importlib.import_module("flwr_datasets.partitioner")
        except ImportError:
            raise self.refusal("flwr-datasets is not installed; install fedloom[flower-datasets]") from None
        names = [name for name in dir(partitioners) if name.endswith("Partitioner") and name != "Partitioner"]
        if self.partitioner not in names:
            raise self.refusal(f"no partitioner '{self.partitioner}': {suggest_name(self.partitioner, names)}")
        return getattr(partitioners, self.partitioner)

    @staticmethod
    def _table(train: Dataset) -> Any:
        columns = {"index": np.arange(len(train)), "label": train.y.numpy()}
        if train.domain is not None:
            columns["domain"] = train.domain.numpy()
        return importlib.import_module("datasets").Dataset.from_dict(columns)
