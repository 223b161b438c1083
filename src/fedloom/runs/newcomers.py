"""Tests of a trained run on clients that never trained: as they come, and after they tuned on a few samples each.

A newcomer starts as a client does that takes part for the first time: `client_init` joined with what the server has,
never with the state of another client. Its support is k samples of each class that it holds, the first k of an order
drawn for it, so that a larger k adds samples; it is tested on its whole test split, on which it never tunes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from fedloom.config.run_config import RunConfig
from fedloom.config.sections import EvaluationConfig, NewcomersConfig
from fedloom.core.errors import ConfigError
from fedloom.core.records import Record
from fedloom.data.scenario import Scenario
from fedloom.engine import Federation, Worker
from fedloom.engine.jobs import Job
from fedloom.evaluation import Evaluator, MetricStates, Scores
from fedloom.methods.catalogue.first_model import initial_part
from fedloom.methods.contract.contexts import ClientContext, ServerContext, Task
from fedloom.methods.contract.phases import Predictor
from fedloom.methods.parts.tuning import tuning_phases
from fedloom.nets.groups import group_of
from fedloom.nets.net import Net
from fedloom.nets.roles import Role
from fedloom.results.text import counted
from fedloom.runs.rows import score_rows
from fedloom.storage.log import Row

SPLIT = "newcomers"  # of their rows
ZERO_SHOT = "zero-shot"
_LOCAL = "local"
Shots = int | Literal["all"]


@dataclass(frozen=True, slots=True)
class _Newcomer:
    """index: among the newcomers. client: its id in streams and contexts, after those of the training clients."""

    index: int
    client: int
    task: Task


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
    for few-shot tests."""

    def __init__(
        self, federation: Federation, worker: Worker, scenario: Scenario, evaluation: EvaluationConfig
    ) -> None:
        if evaluation.protocol == "few-shot":
            raise ConfigError("scenario.held_out: few-shot tests no clients; take another evaluation.protocol")
        self.federation, self.worker, self.config = federation, worker, evaluation.newcomers
        newcomers = scenario.newcomers
        assert newcomers is not None, "a scenario without newcomers"
        self.scenario, self.ids = newcomers, scenario.newcomer_ids
        on_device = replace(
            newcomers, train_set=worker.data, test_set=newcomers.test_set.to(worker.device), attack=None, bad=()
        )
        reference = worker.evaluator_for(None)
        metrics, mib = evaluation.metrics, evaluation.scores_mib
        self.evaluator = Evaluator(on_device, "global/local", batch=reference.batch, metrics=metrics, scores_mib=mib)
        method, task = federation.method, federation.tasks[0]
        self.estimates_statistics = bool(method.private_names(task) & task.names(frozenset({Role.BN_STAT})))
        self.has_personal_models = False
        self._refuse_shots_of_nobody()
        for newcomer in self._newcomers():
            state = self._first_state(newcomer, self._indices(newcomer, "all"))
            self._predictor(newcomer, state)
            offered = method.predictors(federation.server, state, self._server_context(newcomer))
            self.has_personal_models = "personal" in offered

    def rows(self, round_: int) -> list[Row]:
        """Return the rows of all tests after a round; the protocol of a row says how the newcomers were served."""
        tested: dict[str, dict[int, MetricStates]] = {}
        for newcomer in self._newcomers():
            for name, states in self._tests(newcomer):
                tested.setdefault(name, {})[self.ids[newcomer.index]] = states
        rows: list[Row] = []
        for name, by_client in tested.items():
            pooled = MetricStates.merged(states.poolable() for states in by_client.values())
            kept = {client: states.reduced() for client, states in by_client.items()}
            rows += score_rows(round_, Scores(SPLIT, pooled, kept, self.evaluator.kinds), name)
        return rows

    def notes_on_shots(self) -> list[str]:
        """Say for which shots some newcomers tune on fewer samples of a class."""
        largest, shots = self._largest_classes(), [k for k in self.config.shots if isinstance(k, int)]
        fewer = {k: sum(size < k for size in largest) for k in shots}
        return [
            f"{k} shots: tuning has fewer samples of every class at {count} of {counted(len(largest), 'newcomer')}"
            for k, count in fewer.items()
            if count
        ]

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

    def why_at_chance(self) -> str | None:
        """Return why the method's own model of a newcomer predicts at chance before it tunes; None if it need not."""
        part = initial_part(self.federation.method, self.federation.tasks[0])
        return None if part is None else f"its {part} is the initial one"

    def _newcomers(self) -> Iterator[_Newcomer]:
        tasks, first = self.federation.tasks, self.federation.scenario.clients
        for index in range(self.scenario.clients):
            yield _Newcomer(index, first + index, tasks[group_of(first + index, tasks)])

    def _tests(self, newcomer: _Newcomer) -> Iterator[tuple[str, MetricStates]]:
        """Yield the name of each way of serving the newcomer, and the metric states of its test."""
        whole = self._indices(newcomer, "all")
        predictor = self._predictor(newcomer, self._first_state(newcomer, whole))
        yield ZERO_SHOT, self._test(newcomer, predictor, whole, None)
        for shots in self.config.shots:
            support = self._indices(newcomer, shots)
            for tuned in self.config.tunes:
                if tuned != "own":
                    states = self._test(newcomer, predictor, support, tuned)
                    yield f"{shots}-shot/{tuned}/{self.config.epochs}", states
                elif self.has_personal_models:
                    yield f"{shots}-shot/{tuned}", self._after_own_round(newcomer, support)
            untrained = Predictor(newcomer.task.init, predictor.logits)
            yield f"{shots}-shot/{_LOCAL}/{self.config.epochs}", self._test(newcomer, untrained, support, "all")

    def _indices(self, newcomer: _Newcomer, shots: Shots) -> Tensor:
        """The newcomer's support [n]: up to `shots` samples of each class that it holds."""
        rows = self.scenario.train[newcomer.index]
        order = newcomer.task.streams.numpy("support", 0, newcomer.client).permutation(rows)
        if shots == "all":
            return torch.from_numpy(order)
        labels = self.scenario.train_set.y.numpy()[order]
        kept = np.concatenate([np.flatnonzero(labels == label)[:shots] for label in np.unique(labels)])
        return torch.from_numpy(order[np.sort(kept)])

    def _context(self, newcomer: _Newcomer, indices: Tensor) -> ClientContext:
        task = newcomer.task
        counts = torch.bincount(self.scenario.train_set.y[indices], minlength=task.num_classes)
        return ClientContext(task, self.federation.round + 1, newcomer.client, len(indices), counts)

    def _server_context(self, newcomer: _Newcomer) -> ServerContext:
        net = self.worker.net_of_client(newcomer.client).net.functional
        public = self.federation.scenario.public
        return ServerContext(newcomer.task, self.federation.round, net, public, client=newcomer.client)

    def _first_state(self, newcomer: _Newcomer, indices: Tensor) -> Record:
        return self.federation.method.client_init(self._context(newcomer, indices))

    def _predictor(self, newcomer: _Newcomer, state: Record) -> Predictor:
        """The model that a newcomer gets: its personal one, unless that is an initial one and there is a global one."""
        federation, ctx = self.federation, self._server_context(newcomer)
        predictors = federation.method.predictors(federation.server, None, ctx)
        predictors |= federation.method.predictors(federation.server, state, ctx)
        kinds = ("personal", "global") if self.why_at_chance() is None else ("global", "personal")
        for kind in kinds:
            if kind in predictors:
                return predictors[kind]
        raise ConfigError(
            f"scenario.held_out: {federation.method.name()} has no model for a client that never trained; leave "
            "held_out out, or take another method"
        )

    def _test(
        self, newcomer: _Newcomer, predictor: Predictor, support: Tensor, tuned: Literal["all", "head", "lp_ft"] | None
    ) -> MetricStates:
        """Test a predictor, after its weights were tuned on the support unless `tuned` is None."""
        ctx, loaded_net = self._context(newcomer, support), self.worker.net_of_client(newcomer.client)
        optimizer = replace(newcomer.task.optimizer, lr=newcomer.task.optimizer.lr_in(self.federation.round), decay=1.0)
        phases = [] if tuned is None else tuning_phases(tuned, predictor, optimizer, self.config.epochs)
        with newcomer.task.streams.isolated("newcomer", ctx.round, ctx.client, self.worker.device):
            self.worker.tune(loaded_net, predictor, ctx, support, phases)
            if tuned is None and self.estimates_statistics:
                self._estimate_statistics(loaded_net.net, support)
            return self.evaluator.states(loaded_net, predictor, newcomer.index, "test")

    @torch.no_grad()
    def _estimate_statistics(self, net: Net, support: Tensor) -> None:
        """Take the statistics of batch norm from the newcomer's samples, without their labels, in one pass."""
        layers = [module for module in net.modules() if isinstance(module, _BatchNorm)]
        momenta = [layer.momentum for layer in layers]
        net.train()
        try:
            for layer in layers:
                layer.reset_running_stats()
                layer.momentum = None  # the mean over all batches
            for rows in torch.split(support, self.evaluator.batch):
                if len(rows) > 1:  # a single sample has no spread
                    net(self.worker.data.gather(rows))
        finally:
            for layer, momentum in zip(layers, momenta, strict=True):
                layer.momentum = momentum

    def _after_own_round(self, newcomer: _Newcomer, support: Tensor) -> MetricStates:
        """Test the personal model that the method's own round on the support leaves with the newcomer."""
        federation, ctx = self.federation, self._context(newcomer, support)
        payload = federation.method.down(federation.server, newcomer.client, self._server_context(newcomer))
        with newcomer.task.streams.isolated("newcomer", ctx.round, ctx.client, self.worker.device):
            state = self.worker.run(Job(ctx, payload, self._first_state(newcomer, support), support)).state
            predictors = federation.method.predictors(federation.server, state, self._server_context(newcomer))
            loaded_net = self.worker.net_of_client(newcomer.client)
            predictor, _ = self.worker.adapt(loaded_net, predictors["personal"], ctx, support)
            return self.evaluator.states(loaded_net, predictor, newcomer.index, "test")
