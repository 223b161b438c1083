"""Partitioners of Flower's flwr-datasets."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import numpy as np
from pydantic import Field

from fedloom.core.errors import ConfigError, suggest_name
from fedloom.data.dataset import Dataset
from fedloom.data.partitions.dealing import deal_alike
from fedloom.data.partitions.partition import Dealt, Partition, partition
from fedloom.data.views import Views

_INSTALL = "install fedloom[flower-datasets]"


@partition("flower")
class Flower(Partition):
    """Any partitioner of flwr-datasets, chosen by class name.

    It sees the columns `label`, `domain` (where the source has domains) and `index`. Test samples are dealt in each
    client's share of each class. Needs flwr-datasets, an extra.

        scenario: {source: digits, partition: flower, partitioner: DirichletPartitioner, options: {alpha: 0.3}}
    """

    partitioner: str = Field(
        description="Class name of the partitioner in `flwr_datasets.partitioner`.",
        examples=["ShardPartitioner"],
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
                raise ConfigError(
                    f"partition flower: {self.partitioner} has no option '{key}': {suggest_name(key, parameters)}"
                )
        try:
            partitioner = partitioner_class(**options)
            partitioner.dataset = table
            if partitioner.num_partitions != clients:
                raise ConfigError(
                    f"scenario.clients = {clients}: {self.partitioner} makes {partitioner.num_partitions} partitions "
                    f"of these data; need clients={partitioner.num_partitions}"
                )
            lists = [np.array(partitioner.load_partition(client)["index"], np.int64) for client in range(clients)]
        except (ValueError, TypeError, KeyError) as error:
            message = " ".join(str(error).split())
            raise ConfigError(f"partition flower: {self.partitioner} refused: {message}") from None
        views = Views.from_lists(lists)
        return Dealt(views, deal_alike(views, train.y.numpy(), test.y.numpy(), train.num_classes, rng))

    def _kind(self) -> Any:
        try:
            partitioners = importlib.import_module("flwr_datasets.partitioner")
        except ImportError:
            raise ConfigError(f"partition flower: flwr-datasets is not installed; {_INSTALL}") from None
        names = [name for name in dir(partitioners) if name.endswith("Partitioner") and name != "Partitioner"]
        if self.partitioner not in names:
            raise ConfigError(
                f"partition flower: no partitioner '{self.partitioner}': {suggest_name(self.partitioner, names)}"
            )
        return getattr(partitioners, self.partitioner)

    @staticmethod
    def _table(train: Dataset) -> Any:
        columns = {"index": np.arange(len(train)), "label": train.y.numpy()}
        if train.domain is not None:
            columns["domain"] = train.domain.numpy()
        return importlib.import_module("datasets").Dataset.from_dict(columns)
