"""Leave one domain out of the training, so that a run can be tested on a domain that it has never seen."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from fedloom.core.errors import ConfigError, suggest_name
from fedloom.data.dataset import Dataset
from fedloom.data.partitions.partition import labels_only
from fedloom.data.sources.source import Splits
from fedloom.data.views import Indices

if TYPE_CHECKING:
    from fedloom.data.scenario import Scenario

_KEY = "scenario.held_out.domain"


@dataclass(frozen=True, slots=True)
class LeftOutDomain:
    """The samples of one domain, and of all others.

    index: of the domain in the source. train, test: its rows; other_train, other_test: those of the other domains.
    """

    name: str
    index: int
    train: Indices
    test: Indices
    other_train: Indices
    other_test: Indices

    @staticmethod
    def of(name: str, source: str, splits: Splits) -> LeftOutDomain:
        """Find a domain of a source by name.

        Raises `ConfigError` if the source has no such domain, or no other one, or no training or test samples of it.
        """
        train, test = splits.train, splits.test
        if train.domain is None or test.domain is None:
            raise ConfigError(f"{_KEY} = {name!r}: {source} has no domains; hold out clients: {{share: 0.2}}")
        if name not in train.domains:
            raise ConfigError(
                f"{_KEY} = {name!r}: {suggest_name(name, train.domains)}; {source} has {', '.join(train.domains)}"
            )
        index = train.domains.index(name)
        is_left_out = train.domain.numpy() == index, test.domain.numpy() == index
        rows = [np.flatnonzero(of) for of in (*is_left_out, ~is_left_out[0], ~is_left_out[1])]
        if not len(rows[2]):
            raise ConfigError(f"{_KEY} = {name!r}: it is the only domain of {source} with training samples")
        if not (len(rows[0]) and len(rows[1])):
            raise ConfigError(f"{_KEY} = {name!r}: {source} has no training or no test samples of it")
        return LeftOutDomain(name, index, *rows)

    def labels_of_others(self, data: Dataset, rows: Indices) -> Dataset:
        """Return the labels of samples of the other domains, whose numbers close the gap.

        Args:
            data: the set.
            rows: row numbers of the samples [n], none of which is of the domain.
        """
        assert data.domain is not None, "a source with domains"
        domain = data.domain.numpy()[rows]
        names = tuple(name for name in data.domains if name != self.name)
        return labels_only(data.y.numpy()[rows], data.classes, domain - (domain > self.index), names)

    def test_set_of_others(self, test: Dataset) -> Dataset:
        """Return the test samples of the other domains."""
        return test.take(torch.from_numpy(self.other_test))

    def add_to(self, scenario: Scenario, newcomer: Scenario) -> Scenario:
        """Return a scenario with the domain as its only newcomer.

        Args:
            scenario: the scenario of the other domains.
            newcomer: a scenario of one client that holds the domain.
        """
        note = (
            f"domain {self.name} never trains ({len(self.train):,} training samples); the {scenario.clients} clients "
            "hold the other domains"
        )
        newcomer = replace(newcomer, train_set=scenario.train_set)
        return replace(scenario, newcomers=newcomer, newcomer_ids=(scenario.clients,), notes=(*scenario.notes, note))


def domain_names(data: Dataset) -> list[str]:
    """Return the names of the domains of which a data set has samples, in the source's order."""
    if data.domain is None:
        return []
    return [data.domains[index] for index in np.unique(data.domain.numpy())]
