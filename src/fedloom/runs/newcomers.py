"""Tests of a trained run on clients that never trained: which there are, and their rows.

`runs/newcomer_service.py` says how one of them is served. Over nodes, the newcomers' own nodes do so.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, runtime_checkable

import numpy as np

from fedloom.core.errors import ConfigError
from fedloom.core.text import counted
from fedloom.data.scenario import Scenario
from fedloom.engine import Federation, Worker
from fedloom.evaluation import MetricStates, Scores
from fedloom.runs.config.run_config import RunConfig
from fedloom.runs.config.sections import EvaluationConfig, NewcomersConfig
from fedloom.runs.newcomer_service import Newcomer, NewcomerService, TrainedServer
from fedloom.runs.rows import score_rows
from fedloom.runs.storage.log import Row

SPLIT = "newcomers"  # of their rows


@runtime_checkable
class ServesElsewhere(Protocol):
    """An engine whose newcomers keep their data to themselves, and are served where the data are."""

    def test_newcomers(self, tests: NewcomerTests) -> Iterator[tuple[Newcomer, dict[str, MetricStates]]]:
        """Yield the newcomers that could be tested, in the order of their ids, with their tests by name."""
        ...


def newcomer_notes(config: RunConfig, scenario: Scenario, tests: NewcomerTests | None) -> list[str]:
    """Say which keys of the tests on newcomers have no effect.

    Args:
        config: config of the run.
        scenario: its clients and newcomers.
        tests: those of the run; None without newcomers.
    """
    newcomers = config.evaluation.newcomers
    if scenario.newcomers is None and newcomers != NewcomersConfig():
        return ["evaluation.newcomers has no effect: no client is held out; set scenario.held_out, e.g. {share: 0.2}"]
    if tests is not None and "own" in newcomers.tunes and not tests.has_personal_models:
        method = tests.federation.method.name()
        return [f"{method} has no personal model, so newcomers are not tested after a round of its own (tunes: own)"]
    return [] if tests is None else tests.notes_on_shots()


class NewcomerTests:
    """Tests the newcomers of a scenario. Raises `ConfigError` if the method cannot serve one, before any training, and
    for few-shot tests. `ran` says whether they were tested, in this process.
    """

    def __init__(
        self, federation: Federation, worker: Worker, scenario: Scenario, evaluation: EvaluationConfig
    ) -> None:
        if evaluation.protocol == "few-shot":
            raise ConfigError("scenario.held_out: few-shot tests no clients; take another evaluation.protocol")
        self.federation, self.config, self.ids = federation, evaluation.newcomers, scenario.newcomer_ids
        self.service = NewcomerService(federation.method, federation.tasks, worker, scenario, evaluation)
        self.scenario = self.service.scenario
        self.has_personal_models = self.ran = False
        if not scenario.remote:  # else only the newcomers know their samples
            self._refuse_shots_of_nobody()
        for newcomer in self.service.newcomers():
            state = self.service.first_state(self.server, newcomer, self.service.support(newcomer, "all"))
            self.service.predictor(self.server, newcomer, state)
            self.has_personal_models = self.service.has_personal_model(self.server, newcomer)

    @property
    def server(self) -> TrainedServer:
        """The server's state after the rounds so far."""
        return TrainedServer(self.federation.server, self.federation.round)

    def rows(self, round_: int) -> list[Row]:
        """Return the rows of all tests after a round; the protocol of a row says how the newcomers were served."""
        tested: dict[str, dict[int, MetricStates]] = {}
        for newcomer, tests in self._results():
            for name, states in tests.items():
                tested.setdefault(name, {})[self.ids[newcomer.index]] = states
        rows: list[Row] = []
        for name, by_client in tested.items():
            pooled = MetricStates.merged(states.poolable() for states in by_client.values())
            kept = {client: states.reduced() for client, states in by_client.items()}
            rows += score_rows(round_, Scores(SPLIT, pooled, kept, self.service.evaluator.metrics), name)
        self.ran = True
        return rows

    def notes_on_shots(self) -> list[str]:
        """Say for which shots some newcomers tune on fewer samples of a class."""
        if self.scenario.remote:
            return []
        largest, shots = self._largest_classes(), [k for k in self.config.shots if isinstance(k, int)]
        fewer = {k: sum(size < k for size in largest) for k in shots}
        return [
            f"{k} shots: tuning has fewer samples of every class at {count} of {counted(len(largest), 'newcomer')}"
            for k, count in fewer.items()
            if count
        ]

    def zero_shot_note(self) -> str | None:
        """Return what to know of the model that a newcomer gets before it tunes; None if it comes from the server."""
        return self.service.zero_shot_note(self.server)

    def _results(self) -> Iterator[tuple[Newcomer, dict[str, MetricStates]]]:
        """The newcomers and their tests by name; over nodes, those that were there."""
        engine = self.federation.engine
        if isinstance(engine, ServesElsewhere):
            yield from engine.test_newcomers(self)
            return
        for newcomer in self.service.newcomers():
            yield newcomer, dict(self.service.tests(self.server, newcomer))

    def _largest_classes(self) -> list[int]:
        """The training samples of the largest class of each newcomer."""
        labels, clients = self.scenario.train_set.y.numpy(), range(self.scenario.clients)
        return [int(np.bincount(labels[self.scenario.train[client]]).max(initial=0)) for client in clients]

    def _refuse_shots_of_nobody(self) -> None:
        """Raise `ConfigError` for more shots, unless by default, than any newcomer has samples of a class."""
        if self.config.shots == NewcomersConfig().shots:
            return
        largest = max(self._largest_classes())
        too_many = next((k for k in self.config.shots if isinstance(k, int) and k > largest), None)
        if too_many is not None:
            raise ConfigError(
                f"evaluation.newcomers.shots = {too_many}: no client that never trains has more than {largest} samples "
                f"of a class; take {largest} or fewer, or all"
            )
