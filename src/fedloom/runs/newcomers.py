"""Tests of a trained run on clients that never trained: as they come, and after they tuned on a few samples.
A newcomer starts like a client in its first round: from `client_init` and the server's model, never from the state of
another client. It tunes on k samples of each class that it holds, the first k in a fixed random order, which makes the
samples for a small k a subset of those for a larger one. It is tested on its whole test split and never tunes on it. In
a federation of nodes, the newcomers' own nodes do all this."""

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
from fedloom.data.views import label_counts, positives
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
from fedloom.runs.storage.log import NEWCOMERS, Row

ZERO_SHOT, _LOCAL = "zero-shot", "local"
Shots = int | Literal["all"]


@dataclass(frozen=True, slots=True)
class Newcomer:
    """index: among the newcomers. client: its id in streams and contexts, after those of the training clients."""

    index: int
    client: int
    task: Task


class NewcomerService:
    """Gives the newcomers of a scenario a model, tunes it and tests it. `state` is the server's after `round`."""

    state: Record
    round: int

    def __init__(
        self, method: Method, tasks: Sequence[Task], worker: Worker, scenario: Scenario, evaluation: EvaluationConfig
    ) -> None:
        newcomers = scenario.newcomers
        assert newcomers is not None, "a scenario without newcomers"
        self.method, self.tasks, self.worker, self.config = method, tasks, worker, evaluation.newcomers
        self.scenario, self._first_id, self._public = newcomers, scenario.clients, scenario.public
        test_set = newcomers.test_set.to(worker.device)
        on_device = replace(newcomers, train_set=worker.data, test_set=test_set, attack=None, bad=())
        batch, metrics, mib = worker.evaluator_for(None).batch, evaluation.metrics, evaluation.scores_mib
        self.evaluator = Evaluator(on_device, "global/local", batch=batch, metrics=metrics, scores_mib=mib)
        task = tasks[0]
        self._estimates_statistics = bool(method.private_names(task) & task.names(frozenset({Role.BN_STAT})))

    def newcomers(self) -> list[Newcomer]:
        return [self.newcomer(index) for index in range(self.scenario.clients)]

    def newcomer(self, index: int) -> Newcomer:
        # after the ids of the training clients, so that no stream of random numbers is used twice
        client = self._first_id + index
        return Newcomer(index, client, self.tasks[group_of(client, self.tasks)])

    def names(self) -> list[str]:
        """Name the combinations of shots and tuning that every newcomer is tested with."""
        ways = (*self._tunes(), _LOCAL)
        return [ZERO_SHOT, *(self._name(shots, way) for shots in self.config.shots for way in ways)]

    def tests(self, newcomer: Newcomer) -> Iterator[tuple[str, MetricStates]]:
        """Yield the name of each way of serving a newcomer, and the metric states of its test."""
        whole = self.support(newcomer, "all")
        predictor = self.predictor(newcomer, self.first_state(newcomer, whole))
        self.evaluator.test_name = ZERO_SHOT
        yield ZERO_SHOT, self.test(newcomer, predictor, whole, None)
        for shots in self.config.shots:
            support = self.support(newcomer, shots)
            for tuned in self._tunes():
                self.evaluator.test_name = self._name(shots, tuned)
                if tuned == "own":
                    states = self._after_own_round(newcomer, support)
                else:
                    states = self.test(newcomer, predictor, support, tuned)
                yield self._name(shots, tuned), states
            self.evaluator.test_name = self._name(shots, _LOCAL)
            alone = Predictor(newcomer.task.init)  # and nothing of the server's, which a method's logits may use
            yield self._name(shots, _LOCAL), self.test(newcomer, alone, support, "all")

    def support(self, newcomer: Newcomer, shots: Shots) -> Tensor:
        """Return the newcomer's support, indices [n]: up to `shots` samples of each class that it holds."""
        rows = self.scenario.train[newcomer.index]
        # round 0: the order is fixed, and the samples for few shots are among those for more
        order = newcomer.task.streams.numpy("support", 0, newcomer.client).permutation(rows)
        if shots == "all":
            return torch.from_numpy(order)
        rows, labels = positives(self.scenario.train_set.y.numpy()[order])
        kept = [rows[labels == label][:shots] for label in np.unique(labels)]
        return torch.from_numpy(order[np.unique(np.concatenate([rows[:0], *kept]))])

    def first_state(self, newcomer: Newcomer, indices: Tensor) -> Record:
        """Return the private state that a newcomer starts with, given its training samples `indices`."""
        return self.method.client_init(self._context(newcomer, indices))

    def has_personal_model(self, newcomer: Newcomer) -> bool:
        """Whether the method has a personal model of a newcomer, which the method's client round can train."""
        return "personal" in self._predictors(newcomer, self.first_state(newcomer, self.support(newcomer, "all")))

    def predictor(self, newcomer: Newcomer, state: Record) -> Predictor:
        """Return the model for a newcomer: a personal one if its `state` has been trained, else the global one."""
        predictors = self._predictors(newcomer, None) | self._predictors(newcomer, state)
        own = predictors.get("personal")
        part = initial_part(self.method, self.tasks[0])
        is_initial = part is not None or (own is not None and _are_first_weights(own.tree, newcomer))
        for kind in ("global", "personal") if is_initial else ("personal", "global"):
            if kind in predictors:
                return predictors[kind]
        raise ConfigError(
            f"scenario.held_out: {self.method.name()} has no model for a client that never trained; leave "
            "held_out out, or take another method"
        )

    def zero_shot_note(self) -> str | None:
        """Return the part of a newcomer's model before tuning that does not come from the server, if any."""
        part = initial_part(self.method, self.tasks[0])
        if part is not None and "global" not in self._predictors(self.newcomer(0), None):
            return f"its {part} is the initial one"
        return "batch norm has the statistics of the newcomer's own samples" if self._estimates_statistics else None

    def test(
        self, newcomer: Newcomer, predictor: Predictor, support: Tensor, tuned: Literal["all", "head", "lp_ft"] | None
    ) -> MetricStates:
        """Tune the model `predictor` on the `support` of a newcomer (indices), unless `tuned` is None, and test it."""
        ctx, loaded_net = self._context(newcomer, support), self.worker.net_of_client(newcomer.client)
        optimizer = replace(newcomer.task.optimizer, lr=newcomer.task.optimizer.lr_in(self.round), decay=1.0)
        phases = [] if tuned is None else tuning_phases(tuned, predictor, optimizer, self.config.epochs)
        # where statistics of batch norm stay with the clients, the initial ones, 0 and 1, would ruin a trained model
        estimates = self._estimates_statistics and (tuned is None or not _are_first_weights(predictor.tree, newcomer))
        with newcomer.task.streams.isolated("newcomer", ctx.round, ctx.client, self.worker.device):
            if estimates:
                self.worker.tune(loaded_net, predictor, ctx, support, [])
                self._estimate_statistics(loaded_net.net, support)
                predictor = replace(predictor, tree=loaded_net.weights())
            self.worker.tune(loaded_net, predictor, ctx, support, phases)
            return self.evaluator.states(loaded_net, predictor, newcomer.index, "test")

    def _tunes(self) -> list[Literal["all", "head", "lp_ft", "own"]]:
        """The ways of tuning, without the method's client round if the method has no personal model."""
        personal = "own" in self.config.tunes and self.has_personal_model(self.newcomer(0))
        return [tuned for tuned in self.config.tunes if personal or tuned != "own"]

    def _name(self, shots: Shots, tuned: str) -> str:
        return f"{shots}-shot/{tuned}" if tuned == "own" else f"{shots}-shot/{tuned}/{self.config.epochs}"

    def _context(self, newcomer: Newcomer, indices: Tensor) -> ClientContext:
        counts = label_counts(self.scenario.train_set.y[indices], newcomer.task.num_classes)
        return ClientContext(newcomer.task, self.round + 1, newcomer.client, len(indices), counts)

    def _server_context(self, newcomer: Newcomer) -> ServerContext:
        client = newcomer.client
        net = self.worker.net_of_client(client).net.functional
        return ServerContext(newcomer.task, self.round, net, self._public, client=client, drawn=(client,))

    def _predictors(self, newcomer: Newcomer, state: Record | None) -> dict[str, Predictor]:
        return self.method.predictors(self.state, state, self._server_context(newcomer))

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

    def _after_own_round(self, newcomer: Newcomer, support: Tensor) -> MetricStates:
        """Test the personal model that the newcomer has after the method's client round on its support."""
        ctx = self._context(newcomer, support)
        payload = self.method.down(self.state, newcomer.client, self._server_context(newcomer))
        with newcomer.task.streams.isolated("newcomer", ctx.round, ctx.client, self.worker.device):
            state = self.worker.run(Job(ctx, payload, self.first_state(newcomer, support), support)).state
            loaded_net = self.worker.net_of_client(newcomer.client)
            predictor, _ = self.worker.adapt(loaded_net, self._predictors(newcomer, state)["personal"], ctx, support)
            return self.evaluator.states(loaded_net, predictor, newcomer.index, "test")


def _are_first_weights(tree: Tree, newcomer: Newcomer) -> bool:
    """Whether a model equals the initial one, as for methods that keep each client's last model in its state."""
    first = newcomer.task.init
    return tree.keys() == first.keys() and all(torch.equal(value, first[name]) for name, value in tree.items())


@runtime_checkable
class ServesElsewhere(Protocol):
    """An engine whose newcomers keep their data to themselves, and are served where the data are."""

    def test_newcomers(self, tests: "NewcomerTests") -> Iterator[tuple[Newcomer, dict[str, MetricStates]]]:
        """Yield the newcomers that could be tested, in the order of their ids, with their tests by name."""
        ...


def newcomer_notes(config: RunConfig, scenario: Scenario, tests: "NewcomerTests | None") -> list[str]:
    """Say which keys of `config` on newcomers have no effect in `scenario`; `tests` are the run's, if it has any."""
    newcomers = config.evaluation.newcomers
    if scenario.newcomers is None and newcomers != NewcomersConfig():
        return ["evaluation.newcomers has no effect: no client is held out; set scenario.held_out, e.g. {share: 0.2}"]
    if tests is not None and "own" in newcomers.tunes and not tests.has_personal_models:
        why = f"{tests.federation.method.name()} has no personal model"
        return [f"{why}, so newcomers are not tested after the method's client round (tunes: own)"]
    return [] if tests is None else tests.notes_on_shots()


class NewcomerTests:
    """Tests the newcomers of a scenario; `ran` says whether it did, in this process. Raises `ConfigError` for few-shot
    tests, and before any training if the method cannot serve a newcomer."""

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
            held = (positives(labels[rows[client]])[1] for client in range(self.scenario.clients))
            self._largest_classes = [*map(int, (np.bincount(of_client).max(initial=0) for of_client in held))]
            largest, shots = max(self._largest_classes), self.config.shots
            too_many = next((k for k in shots if isinstance(k, int) and k > largest), None)
            if too_many is not None and shots != NewcomersConfig().shots:
                raise ConfigError(
                    f"evaluation.newcomers.shots = {too_many}: no client that never trains has more than {largest} "
                    f"samples of a class; take {largest} or fewer, or all"
                )
        self._meet_server()
        for newcomer in self.service.newcomers():
            self.service.predictor(newcomer, self.service.first_state(newcomer, self.service.support(newcomer, "all")))
            self.has_personal_models = self.service.has_personal_model(newcomer)

    def _meet_server(self) -> None:
        self.service.state, self.service.round = self.federation.server, self.federation.round

    def rows(self, round_: int) -> list[Row]:
        """Return the rows of all tests after a round; the protocol of a row says how the newcomers were served."""
        tested: dict[str, dict[int, MetricStates]] = {}
        self._meet_server()
        engine = self.federation.engine
        if isinstance(engine, ServesElsewhere):
            results = engine.test_newcomers(self)
        else:
            results = ((newcomer, dict(self.service.tests(newcomer))) for newcomer in self.service.newcomers())
        for newcomer, tests in results:
            for name, states in tests.items():
                tested.setdefault(name, {})[self.ids[newcomer.index]] = states
        rows: list[Row] = []
        for name, by_client in tested.items():
            pooled = MetricStates.merged(states.poolable() for states in by_client.values())
            kept = {client: states.reduced() for client, states in by_client.items()}
            rows += score_rows(round_, Scores(NEWCOMERS, pooled, kept, self.service.evaluator.metrics), name)
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
        self._meet_server()
        return self.service.zero_shot_note()
