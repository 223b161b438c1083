"""Clients and domains that never train, and are tested after training."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from pydantic import Field, StrictInt, model_validator

from fedloom.core.errors import ConfigError, suggest_name
from fedloom.core.key_models import Keys
from fedloom.data.dataset import Dataset
from fedloom.data.sources.source import Splits
from fedloom.data.views import Indices, Views

if TYPE_CHECKING:
    from fedloom.data.scenario import Scenario


_SHOWN = 10  # ids in a note
MIN_TRAINING_CLIENTS = 2  # that must remain for training


class HeldOut(Keys, extra="forbid", frozen=True, allow_inf_nan=False):
    """Clients that never train: a share of all clients, a list of their ids, or all data of one domain."""

    share: float | None = Field(None, gt=0, lt=1, examples=[0.2])
    clients: tuple[StrictInt, ...] | None = Field(None, examples=[[3, 7]])

    domain: str | None = Field(None, min_length=1, examples=["dslr"])

    @model_validator(mode="after")
    def _one_of_them(self) -> "HeldOut":
        if sum(value is not None for value in (self.share, self.clients, self.domain)) != 1:
            problem = "need one of share, e.g. 0.2, clients, a list of their ids, and domain, a name"
            raise ConfigError(f"scenario.held_out: {problem}")
        return self

    def draw(self, scenario: "Scenario", rng: np.random.Generator) -> list[int]:
        """Return the ids of the clients to hold out, ascending; rng draws them where only their share is given. Raises
        `ConfigError` for ids that are unknown, repeated or without test data, and for fewer than two other clients."""
        eligible = np.flatnonzero((scenario.train.sizes > 0) & (scenario.test.sizes > 0))
        if self.clients is not None:
            newcomers = sorted(self.clients)
            if not newcomers or len({*newcomers}) < len(newcomers):
                raise ConfigError(f"scenario.held_out.clients = {newcomers}: need different ids, and at least one")
            for client in newcomers:
                if not 0 <= client < scenario.clients:
                    ids = f"ids go from 0 to {scenario.clients - 1}"
                    raise ConfigError(f"scenario.held_out.clients: there is no client {client}; {ids}")
                if client not in eligible:
                    raise ConfigError(f"scenario.held_out.clients: client {client} has no training or no test data")
        else:
            # Half up, because `round` takes every other half down.
            count = max(1, int(np.floor((self.share or 0.0) * scenario.clients + 0.5)))
            if count > len(eligible):
                raise ConfigError(
                    f"scenario.held_out.share = {self.share:g}: that is {count} of {scenario.clients} clients, and "
                    f"{len(eligible)} have training and test data; lower it"
                )
            newcomers = np.sort(rng.choice(eligible, count, replace=False)).tolist()
        remaining = int((scenario.train.sizes > 0).sum()) - len(newcomers)
        if remaining < MIN_TRAINING_CLIENTS:
            raise ConfigError(
                f"scenario.held_out: {len(newcomers)} of {scenario.clients} clients leave {remaining} with training "
                f"data; {MIN_TRAINING_CLIENTS} or more must train"
            )
        return newcomers


def without_newcomers(scenario: "Scenario", newcomers: Sequence[int]) -> "Scenario":
    """Return a scenario of the other clients, renumbered from 0, with the newcomers (ascending ids) as
    `Scenario.newcomers`. A test set that is the union of clients' samples is split with them."""
    rest = np.setdiff1d(np.arange(scenario.clients), newcomers)
    held = np.asarray(newcomers, np.int64)
    training, others = _of_clients(scenario, rest), _of_clients(scenario, held)
    shown = ", ".join(map(str, newcomers[:_SHOWN])) + (", ..." if len(newcomers) > _SHOWN else "")
    detail = "the others are renumbered from 0, and all later keys, such as participation, count them alone"
    note = f"{len(newcomers)} of {scenario.clients} clients never train ({shown}); {detail}"
    notes = (*scenario.notes, note)
    return replace(training, newcomers=others, newcomer_ids=tuple(newcomers), notes=notes)


def _of_clients(scenario: "Scenario", clients: Indices) -> "Scenario":
    train, val, test = (views.of_clients(clients) for views in (scenario.train, scenario.val, scenario.test))
    if scenario.test_origin == "official" or scenario.test_rows is None:
        return replace(scenario, train=train, val=val, test=test)
    return replace(
        scenario,
        train=train,
        val=val,
        test=Views(np.arange(len(test.order), dtype=np.int64), test.offsets),
        test_set=scenario.test_set.take(torch.from_numpy(test.order)),
        test_rows=scenario.test_rows[test.order],
    )


_KEY = "scenario.held_out.domain"


@dataclass(frozen=True, slots=True)
class LeftOutDomain:
    """The rows of one domain (its index in the source: train, test), and of all others (other_train, other_test)."""

    name: str
    index: int
    train: Indices
    test: Indices
    other_train: Indices
    other_test: Indices

    @staticmethod
    def of(name: str, source: str, splits: Splits) -> "LeftOutDomain":
        """Find a domain of a source by name, in its splits. Raises `ConfigError` if the source has no such domain, or
        no other one, or no training or test samples of it."""
        train, test = splits.train, splits.test
        if train.domain is None or test.domain is None:
            raise ConfigError(f"{_KEY} = {name!r}: {source} has no domains; hold out clients: {{share: 0.2}}")
        if name not in train.domains:
            domains = ", ".join(train.domains)
            raise ConfigError(f"{_KEY} = {name!r}: {suggest_name(name, train.domains)}; {source} has {domains}")
        index = train.domains.index(name)
        is_left_out = train.domain.numpy() == index, test.domain.numpy() == index
        rows = [np.flatnonzero(of) for of in (*is_left_out, ~is_left_out[0], ~is_left_out[1])]
        if not len(rows[2]):
            raise ConfigError(f"{_KEY} = {name!r}: it is the only domain of {source} with training samples")
        if not (len(rows[0]) and len(rows[1])):
            raise ConfigError(f"{_KEY} = {name!r}: {source} has no training or no test samples of it")
        return LeftOutDomain(name, index, *rows)

    def labels_of_others(self, data: Dataset, rows: Indices) -> Dataset:
        """Return the labels of the rows of `data` from other domains, whose numbers close the gap."""
        others = data.without_values(rows)
        assert others.domain is not None, "a source with domains"
        names = tuple(name for name in data.domains if name != self.name)
        return replace(others, domain=others.domain - (others.domain > self.index).long(), domains=names)

    def add_to(self, scenario: "Scenario", newcomer: "Scenario") -> "Scenario":
        """Return a scenario with the domain as its only newcomer (a scenario of one client)."""
        detail = f"the {scenario.clients} clients hold the other domains"
        note = f"domain {self.name} never trains ({len(self.train):,} training samples); {detail}"
        # One array serves both: its rows are the same, and skews leave samples without a client unchanged.
        newcomer = replace(newcomer, train_set=scenario.train_set)
        return replace(scenario, newcomers=newcomer, newcomer_ids=(scenario.clients,), notes=(*scenario.notes, note))


def domain_names(data: Dataset) -> list[str]:
    """Return the names of the domains that have samples in a data set, in the source's order."""
    if data.domain is None:
        return []
    return [data.domains[index] for index in np.unique(data.domain.numpy())]
