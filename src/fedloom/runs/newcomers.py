"""Tests of a trained run on clients that never trained: as they come, and after they tuned on a few samples.

A newcomer starts like a client in its first round: from `client_init` and the server's model, never from the state of
another client. It tunes on k samples of each class that it holds, the first k in a fixed random order, which makes the
samples for a small k a subset of those for a larger one. It is tested on its whole test split and never tunes on it. In
a federation of nodes, the newcomers' own nodes do all this.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from fedloom.core.errors import ConfigError
from fedloom.core.records import Record
from fedloom.core.text import counted
from fedloom.core.trees import Tree
from fedloom.data.scenario import Scenario
from fedloom.engine import Federation, Worker
from fedloom.engine.jobs import Job
from fedloom.evaluation import Evaluator, MetricStates, Scores
from fedloom.methods.catalogue import initial_part
from fedloom.methods.contract.contexts import ClientContext, ServerContext, Task
from fedloom.methods.contract.method import Method
from fedloom.methods.contract.phases import Predictor
from fedloom.methods.wrappers.finetuning import tuning_phases
from fedloom.nets.loaded_net import group_of
from fedloom.nets.net import Net, Role
from fedloom.runs.config.run_config import RunConfig
from fedloom.runs.config.sections import EvaluationConfig, NewcomersConfig
from fedloom.runs.protocol_tests import score_rows
from fedloom.runs.storage.log import Row

ZERO_SHOT, _LOCAL = "zero-shot", "local"
Shots = int | Literal["all"]


@dataclass(frozen=True, slots=True)
class Newcomer:
    """index: among the newcomers. client: its id in streams and contexts, after those of the training clients."""

    index: int
    client: int
    task: Task


@dataclass(frozen=True, slots=True)
class TrainedServer:
    """The server's state after a round of training."""

    state: Record
    round: int


class NewcomerService:
    """Gives the newcomers of a scenario a model, tunes it on their samples and tests it. There is one task for each
    architecture."""

    def __init__(
        self, method: Method, tasks: Sequence[Task], worker: Worker, scenario: Scenario, evaluation: EvaluationConfig
    ) -> None:
        newcomers = scenario.newcomers
        assert newcomers is not None, "a scenario without newcomers"
        self.method, self.tasks, self.worker, self.config = method, tasks, worker, evaluation.newcomers
        self.scenario, self._first_id, self._public = newcomers, scenario.clients, scenario.public
        on_device = replace(
            newcomers, train_set=worker.data, test_set=newcomers.test_set.to(worker.device), attack=None, bad=()
        )
        batch, metrics, mib = worker.evaluator_for(None).batch, evaluation.metrics, evaluation.scores_mib
        self.evaluator = Evaluator(on_device, "global/local", batch=batch, metrics=metrics, scores_mib=mib)
        task = tasks[0]
        self._estimates_statistics = bool(method.private_names(task) & task.names(frozenset({Role.BN_STAT})))

    def newcomers(self) -> Iterator[Newcomer]:
        """Yield all newcomers, in the order of their ids."""
        return map(self.newcomer, range(self.scenario.clients))

    def newcomer(self, index: int) -> Newcomer:
        # after the ids of the training clients, so that no stream of random numbers is used twice
        client = self._first_id + index
        return Newcomer(index, client, self.tasks[group_of(client, self.tasks)])

    def names(self, server: TrainedServer) -> list[str]:
        """Name the combinations of shots and tuning that every newcomer is tested with."""
        names = [ZERO_SHOT]
        for shots in self.config.shots:
            names += [self._name(shots, tuned) for tuned in self._tunes(server)]
            names.append(self._name(shots, _LOCAL))
        return names

    def tests(self, server: TrainedServer, newcomer: Newcomer) -> Iterator[tuple[str, MetricStates]]:
        """Yield the name of each way of serving a newcomer, and the metric states of its test."""
        whole = self.support(newcomer, "all")
        predictor = self.predictor(server, newcomer, self.first_state(server, newcomer, whole))
        yield ZERO_SHOT, self.test(server, newcomer, predictor, whole, None)
        for shots in self.config.shots:
            support = self.support(newcomer, shots)
            for tuned in self._tunes(server):
                if tuned == "own":
                    states = self._after_own_round(server, newcomer, support)
                else:
                    states = self.test(server, newcomer, predictor, support, tuned)
                yield self._name(shots, tuned), states
            alone = Predictor(newcomer.task.init)  # and nothing of the server's, which a method's logits may use
            yield self._name(shots, _LOCAL), self.test(server, newcomer, alone, support, "all")

    def support(self, newcomer: Newcomer, shots: Shots) -> Tensor:
        """Return the newcomer's support, indices [n]: up to `shots` samples of each class that it holds."""
        rows = self.scenario.train[newcomer.index]
        # round 0: the order is fixed, and the samples for few shots are among those for more
        order = newcomer.task.streams.numpy("support", 0, newcomer.client).permutation(rows)
        if shots == "all":
            return torch.from_numpy(order)
        labels = self.scenario.train_set.y.numpy()[order]
        kept = np.concatenate([np.flatnonzero(labels == label)[:shots] for label in np.unique(labels)])
        return torch.from_numpy(order[np.sort(kept)])

    def first_state(self, server: TrainedServer, newcomer: Newcomer, indices: Tensor) -> Record:
        """Return the private state that `newcomer` starts with under `server`, given its training samples `indices`."""
        return self.method.client_init(self._context(server, newcomer, indices))

    def has_personal_model(self, server: TrainedServer, newcomer: Newcomer) -> bool:
        """Whether the method has a personal model of a newcomer, which the method's client round can train."""
        state = self.first_state(server, newcomer, self.support(newcomer, "all"))
        ctx = self._server_context(server, newcomer)
        return "personal" in self.method.predictors(server.state, state, ctx)

    def predictor(self, server: TrainedServer, newcomer: Newcomer, state: Record) -> Predictor:
        """Return the model that `server` has for `newcomer`: a personal one if its private `state` has been trained,
        else the global one, if the method has one. Raises `ConfigError` if it has neither."""
        ctx = self._server_context(server, newcomer)
        predictors = self.method.predictors(server.state, None, ctx)
        predictors |= self.method.predictors(server.state, state, ctx)
        own = predictors.get("personal")
        part = initial_part(self.method, self.tasks[0])
        is_initial = part is not None or (own is not None and _are_first_weights(own.tree, newcomer))
        predictor = (
            predictors.get("global", own) if is_initial else predictors.get("personal", predictors.get("global"))
        )
        if predictor is not None:
            return predictor
        raise ConfigError(
            f"scenario.held_out: {self.method.name()} has no model for a client that never trained; leave "
            "held_out out, or take another method"
        )

    def zero_shot_note(self, server: TrainedServer) -> str | None:
        """Return the part of a newcomer's model, before it tunes, that does not come from the server; None if there is
        none.

        A part may be the initial one, at chance, unless a global model takes its place. Statistics of batch norm that
        stay with the clients are the newcomer's.
        """
        part, ctx = initial_part(self.method, self.tasks[0]), self._server_context(server, self.newcomer(0))
        if part is not None and "global" not in self.method.predictors(server.state, None, ctx):
            return f"its {part} is the initial one"
        return "batch norm has the statistics of the newcomer's own samples" if self._estimates_statistics else None

    def test(
        self,
        server: TrainedServer,
        newcomer: Newcomer,
        predictor: Predictor,
        support: Tensor,
        tuned: Literal["all", "head", "lp_ft"] | None,
    ) -> MetricStates:
        """Tune a model on the newcomer's support samples (indices), or leave it as it is if `tuned` is None, and test
        it.

        Where the statistics of batch norm stay with the clients, a trained model first gets those of the support: the
        initial statistics, mean 0 and variance 1, would ruin it.
        """
        ctx, loaded_net = self._context(server, newcomer, support), self.worker.net_of_client(newcomer.client)
        optimizer = replace(newcomer.task.optimizer, lr=newcomer.task.optimizer.lr_in(server.round), decay=1.0)
        phases = [] if tuned is None else tuning_phases(tuned, predictor, optimizer, self.config.epochs)
        estimates = self._estimates_statistics and (tuned is None or not _are_first_weights(predictor.tree, newcomer))
        with newcomer.task.streams.isolated("newcomer", ctx.round, ctx.client, self.worker.device):
            if estimates:
                self.worker.tune(loaded_net, predictor, ctx, support, [])
                self._estimate_statistics(loaded_net.net, support)
                predictor = replace(predictor, tree=loaded_net.weights())
            self.worker.tune(loaded_net, predictor, ctx, support, phases)
            return self.evaluator.states(loaded_net, predictor, newcomer.index, "test")

    def _tunes(self, server: TrainedServer) -> list[Literal["all", "head", "lp_ft", "own"]]:
        """The ways of tuning, without the method's client round if the method has no personal model."""
        personal = "own" in self.config.tunes and self.has_personal_model(server, self.newcomer(0))
        return [tuned for tuned in self.config.tunes if personal or tuned != "own"]

    def _name(self, shots: Shots, tuned: str) -> str:
        return f"{shots}-shot/{tuned}" if tuned == "own" else f"{shots}-shot/{tuned}/{self.config.epochs}"

    def _context(self, server: TrainedServer, newcomer: Newcomer, indices: Tensor) -> ClientContext:
        task = newcomer.task
        counts = torch.bincount(self.scenario.train_set.y[indices], minlength=task.num_classes)
        return ClientContext(task, server.round + 1, newcomer.client, len(indices), counts)

    def _server_context(self, server: TrainedServer, newcomer: Newcomer) -> ServerContext:
        net = self.worker.net_of_client(newcomer.client).net.functional
        client = newcomer.client
        return ServerContext(newcomer.task, server.round, net, self._public, client=client, drawn=(client,))

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

    def _after_own_round(self, server: TrainedServer, newcomer: Newcomer, support: Tensor) -> MetricStates:
        """Test the personal model that the newcomer has after the method's client round on its support."""
        ctx = self._context(server, newcomer, support)
        payload = self.method.down(server.state, newcomer.client, self._server_context(server, newcomer))
        with newcomer.task.streams.isolated("newcomer", ctx.round, ctx.client, self.worker.device):
            state = self.worker.run(Job(ctx, payload, self.first_state(server, newcomer, support), support)).state
            predictors = self.method.predictors(server.state, state, self._server_context(server, newcomer))
            loaded_net = self.worker.net_of_client(newcomer.client)
            predictor, _ = self.worker.adapt(loaded_net, predictors["personal"], ctx, support)
            return self.evaluator.states(loaded_net, predictor, newcomer.index, "test")


def _are_first_weights(tree: Tree, newcomer: Newcomer) -> bool:
    """Whether a model equals the initial one, as for methods that keep each client's last model in its state."""
    first = newcomer.task.init
    return tree.keys() == first.keys() and all(torch.equal(value, first[name]) for name, value in tree.items())


SPLIT = "newcomers"  # of their rows


@runtime_checkable
class ServesElsewhere(Protocol):
    """An engine whose newcomers keep their data to themselves, and are served where the data are."""

    def test_newcomers(self, tests: NewcomerTests) -> Iterator[tuple[Newcomer, dict[str, MetricStates]]]:
        """Yield the newcomers that could be tested, in the order of their ids, with their tests by name."""
        ...


def newcomer_notes(config: RunConfig, scenario: Scenario, tests: NewcomerTests | None) -> list[str]:
    """Say which keys of `config` on newcomers have no effect in `scenario`; `tests` are the run's, if it has any."""
    newcomers = config.evaluation.newcomers
    if scenario.newcomers is None and newcomers != NewcomersConfig():
        return ["evaluation.newcomers has no effect: no client is held out; set scenario.held_out, e.g. {share: 0.2}"]
    if tests is not None and "own" in newcomers.tunes and not tests.has_personal_models:
        why = f"{tests.federation.method.name()} has no personal model"
        return [f"{why}, so newcomers are not tested after the method's client round (tunes: own)"]
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
        self._largest_classes: list[int] = []  # training samples of each newcomer's largest class
        if not scenario.remote:  # else only the newcomers know their samples
            labels, rows = self.scenario.train_set.y.numpy(), self.scenario.train
            sizes = (np.bincount(labels[rows[client]]).max(initial=0) for client in range(self.scenario.clients))
            self._largest_classes = [*map(int, sizes)]
            largest, shots = max(self._largest_classes), self.config.shots
            too_many = next((k for k in shots if isinstance(k, int) and k > largest), None)
            if too_many is not None and shots != NewcomersConfig().shots:
                raise ConfigError(
                    f"evaluation.newcomers.shots = {too_many}: no client that never trains has more than {largest} "
                    f"samples of a class; take {largest} or fewer, or all"
                )
        for newcomer in map(self.service.newcomer, range(self.scenario.clients)):
            state = self.service.first_state(self.server, newcomer, self.service.support(newcomer, "all"))
            self.service.predictor(self.server, newcomer, state)
            self.has_personal_models = self.service.has_personal_model(self.server, newcomer)

    @property
    def server(self) -> TrainedServer:
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
        notes, newcomers = [], counted(len(self._largest_classes), "newcomer")
        for k in self.config.shots if self._largest_classes else ():
            count = sum(isinstance(k, int) and size < k for size in self._largest_classes)
            if count:
                notes.append(f"{k} shots: tuning has fewer samples of every class at {count} of {newcomers}")
        return notes

    def zero_shot_note(self) -> str | None:
        return self.service.zero_shot_note(self.server)

    def _results(self) -> Iterator[tuple[Newcomer, dict[str, MetricStates]]]:
        engine = self.federation.engine
        if isinstance(engine, ServesElsewhere):
            return engine.test_newcomers(self)
        return ((newcomer, dict(self.service.tests(self.server, newcomer))) for newcomer in self.service.newcomers())
