"""The client's side: a node answers the server's requests from its data and its disk."""

import functools
import re
import secrets
import time
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch

from fedloom._version import __version__
from fedloom.core.errors import ClientError, ConfigError, DataError, FedloomError, short_repr
from fedloom.core.files import open_to_read, read_file, restrict_to_owner, write_atomic
from fedloom.core.process_settings import reproducible_settings
from fedloom.core.records import Record, RecordError, from_bytes, to_bytes
from fedloom.data import Scenario
from fedloom.data.views import label_counts
from fedloom.engine import Worker
from fedloom.engine.jobs import EvalJob, Job, NewcomerResult
from fedloom.evaluation import MetricStates
from fedloom.evaluation.intervals import with_group_sums
from fedloom.evaluation.plain_states import states_from_plain
from fedloom.flower import node_data, wire
from fedloom.flower.findings import require_space, stored_bytes
from fedloom.flower.status import log
from fedloom.flower.wire import ErrorReply, JoinReply, JoinRequest, Message, MessageError, Reply, Request
from fedloom.methods.contract.contexts import ClientContext, Diagnostic, Task
from fedloom.nets.loaded_net import group_of
from fedloom.runs.config.run_config import RunConfig
from fedloom.runs.newcomers import NewcomerService
from fedloom.runs.setup import Setup
from fedloom.runs.storage.checkpoint import is_kept_for_rewind

_RECENT = 3  # newest states that are kept: a restarted server goes back one round, or two if its last file is damaged
_TOKEN = 16  # hexadecimal digits
_RUN = re.compile(r"[0-9a-f-]{1,64}")
_MAX_TRACE = 1 << 15  # characters of a traceback


class StateStore:
    """The private states of one client in one run: a file per round, the newest and ever fewer older ones.
    The server says which round to continue from, because a round only counts once it has accepted the upload."""

    def __init__(self, folder: Path, run: str, client: int) -> None:
        self.path = folder / run / f"client-{client:06d}"

    def token(self) -> str:
        """Return the random token that identifies this disk, drawn once."""
        self._check_links()
        restrict_to_owner(self.path.parent)
        file = self.path / "token"
        if not file.exists():
            write_atomic(file, secrets.token_hex(8), private=True)
        with open_to_read(file) as stream:
            token = stream.read(_TOKEN + 1).decode("ascii", "replace")  # one more shows a file that is too long
        if len(token) != _TOKEN or set(token) - set("0123456789abcdef"):
            remedy = "delete the file, and let the server's administrator admit this client"
            raise DataError(f"{file}: damaged, because a token has {_TOKEN} hexadecimal digits; {remedy}")
        return token

    def save(self, round_: int, state: Record, spare: int | None = None) -> None:
        """Write the `state` after a round, and delete old ones, except `spare` and those kept for a rewind."""
        self._check_links()
        write_atomic(self._file(round_), to_bytes(state), private=True)
        for old in sorted(self.path.glob("round-*.safetensors"))[:-_RECENT]:
            stored = int(old.stem.removeprefix("round-"))
            if stored != spare and not is_kept_for_rewind(stored, round_):
                old.unlink(missing_ok=True)

    def load(self, round_: int) -> Record | None:
        """Read the state after a round; None if it is missing or damaged."""
        try:
            return from_bytes(read_file(self._file(round_)))
        except (FileNotFoundError, RecordError):
            return None

    def _check_links(self) -> None:
        """Refuse links in place of folders: the node would write and delete files elsewhere."""
        for folder in (self.path.parent, self.path):
            if folder.is_symlink():
                raise DataError(f"{folder}: it is a link, and private states are not written through links; remove it")

    def _file(self, round_: int) -> Path:
        return self.path / f"round-{round_:06d}.safetensors"


class Node:
    """One client of a run. folder: of private states. scenario: replaces that of the config. data: the file that names
    the node's data, if the config leaves them to the nodes. template: a node of this process, whose nets it shares."""

    def __init__(
        self,
        config: RunConfig,
        client: int,
        folder: Path,
        scenario: Scenario | None = None,
        data: Path | None = None,
        template: "Node | None" = None,
    ) -> None:
        self.config, self.client, self._folder, self._data = config, client, folder, data
        self._user_scenario, self._template = scenario, template
        clients = node_data.count_nodes(config) if scenario is None else node_data.nodes_of_scenario(scenario)
        if not 0 <= client < clients:
            raise ConfigError(f"client {client}: this config has clients 0 .. {clients - 1}; set partition-id to one")
        self.fingerprint = config.fingerprint()
        self._phase, self._active = "reading data", cast(Worker | None, None)
        # A cache of this instance: as a decorator of the method it would keep all nodes alive.
        self._worker = functools.lru_cache(maxsize=1)(self._build_worker)

    def require_data(self) -> None:
        """Read the client's samples now. Raises `ConfigError` and `DataError` that name the client."""
        try:
            self._require_samples()
        except (ConfigError, DataError) as error:
            raise type(error)(f"client {self.client}: {error}") from None

    @functools.cached_property
    def scenario(self) -> Scenario:
        """The scenario with the client's samples."""
        if self._data is not None:
            return self._own_data[0]
        if node_data.node_source(self.config) is not None:
            raise ConfigError("the config leaves the data to the nodes; start this one with --node-config 'data=...'")
        return self._user_scenario or self.config.scenario.build(self.config.seed)

    @functools.cached_property
    def _own_data(self) -> tuple[Scenario, dict[str, Any]]:
        assert self._data is not None, "a node with data of its own"
        return node_data.node_scenario(self.config, self._data, self.client)

    @functools.cached_property
    def _setup(self) -> Setup:
        if self._template is not None:
            return self._template._setup
        scenario = self.scenario
        return Setup.from_config(self.config, scenario.train_set.input_shape, scenario.num_classes, scenario.clients)

    def progress(self) -> tuple[str, float | None, str]:
        """Return the phase of the work in progress, its fraction that is done, and a detail; from any thread."""
        # Read once, because the working thread may replace them meanwhile.
        phase, worker = self._phase, self._active
        training = worker.training if worker is not None and phase == "training" else None
        if training is None or not (epochs := training[1]):
            return phase, None, ""
        done = epochs[0].epoch + sum(epoch.fraction for epoch in epochs)
        number = min(int(done) + 1, training[0])
        return phase, min(1.0, done / training[0]), f"epoch {number} of {training[0]}"

    def _build_worker(self, scale: node_data.Scale | None) -> Worker:
        if self._template is not None:
            return self._template._worker(scale)
        scenario, self._phase = self._scaled(scale), "building"
        worker = self._setup.worker(self.config, scenario.train_set)
        self._setup.evaluators(self.config, worker, scenario)
        return worker

    def _scaled(self, scale: node_data.Scale | None) -> Scenario:
        nodes = node_data.node_source(self.config)
        if nodes is None or not nodes.reported_features:
            return self.scenario
        if scale is None:
            raise MessageError("a request to work before the nodes' columns are standardised")
        return scale.apply_to_scenario(self.scenario, nodes)

    def answer(self, message: Message) -> Message:
        """Answer a message from the server. An exception becomes an `ErrorReply` with its traceback."""
        run, body, reply = "", b"", None
        try:
            request = wire.read(message, Request, wire.MAX_REQUEST)
            run = request.run
            self._check(request)
            handlers = {"join": self._join, "train": self._train, "test": self._test, "serve": self._serve}
            with reproducible_settings():
                reply, body = handlers[request.do](message)
        except Exception as error:
            reply = self.failure(run, error)
        facts = {"run": run, "round": getattr(reply, "round", None), "client": self.client, "bytes": len(body)}
        log(reply.kind, facts, getattr(reply, "error", ""))
        return reply.to_message(body)

    def failure(self, run: str, error: Exception) -> ErrorReply:
        """Return the reply for an `error` in the work for a `run`."""
        text, trace, round_ = str(error), "", 0
        if isinstance(error, ClientError):
            trace, round_ = "".join(traceback.format_exception(error.__cause__)), error.round
        elif not isinstance(error, FedloomError):
            text = f"client {self.client}: {type(error).__name__}: {error}"[:1000]
            trace = "".join(traceback.format_exception(error))
        return ErrorReply(run=run, client=self.client, round=round_, error=text, raised=trace[-_MAX_TRACE:])

    def _check(self, request: Request) -> None:
        if not _RUN.fullmatch(request.run):
            raise MessageError(f"run {short_repr(request.run)}: need a name of hexadecimal digits")
        if request.version != __version__:
            versions = f"the server has fedloom {request.version}, client {self.client} has {__version__}"
            raise MessageError(f"{versions}; install the same version everywhere")
        if request.fingerprint != self.fingerprint:
            own = f"that of client {self.client} is {self.fingerprint}"
            raise MessageError(f"the server's config is {request.fingerprint}, {own}; give both the same")
        if request.do != "join" and request.client != self.client:
            raise MessageError(f"a message for client {request.client} arrived at client {self.client}")
        if request.do != "join" and (request.do == "serve") != self._never_trains:
            rule = "never trains (scenario.held_out)" if self._never_trains else "trains"
            raise MessageError(f"client {self.client} {rule}, and was asked to {request.do}")

    def _join(self, message: Message) -> tuple[Reply, bytes]:
        request = wire.read(message, JoinRequest)
        self._require_samples()
        state = self._setup.method.client_init(self._context(1))
        require_space(self._folder, stored_bytes(self.config, state), "private states")
        facts: dict[str, Any] = {"token": StateStore(self._folder, request.run, self.client).token()}
        facts |= self._own_data[1] if self._data is not None else {}
        facts |= {"classes": self.scenario.class_names, "samples": len(self.indices), "clock": time.time()}
        if request.scale is None and not self._never_trains:
            facts |= self._measured(request)
        return JoinReply(run=request.run, client=self.client, **facts), b""

    def _measured(self, request: JoinRequest) -> dict[str, Any]:
        """Return what the server pools or compares before the first round, if only the node knows its data."""
        nodes, train, rows = node_data.node_source(self.config), self.scenario.train_set, self.indices.numpy()
        facts = dict[str, Any]()
        if nodes is not None and "labels" in self.config.flower.compare:
            counts = label_counts(train.y[self.indices], self.scenario.num_classes)
            counts[counts < node_data.FEWEST_CELLS] = 0
            facts["labels"] = tuple(counts.tolist())
        if nodes is not None and nodes.reported_features:
            medians = {rule.column for rule in nodes.rules if rule.strategy == "median"}
            ranges = {name: of for name, of in request.ranges.items() if name in medians}
            facts["moments"] = node_data.moments_of(train, rows, nodes.reported_features, bool(nodes.rules), ranges)
        elif node_data.measured_names(self.config):
            facts["moments"] = node_data.levels_of(train, rows)
        return facts

    def _train(self, message: Message) -> tuple[Reply, bytes]:
        request = wire.read(message, wire.TrainRequest)
        store, notes = StateStore(self._folder, request.run, self.client), list[Diagnostic]()
        ctx = self._context(request.round)
        state = self._state(store, request.state_round, ctx, notes)
        job = Job(ctx, from_bytes(message.body), state, self.indices, request.measured, request.stage)
        worker = self._active = self._worker(request.scale)
        worker.training, self._phase = None, "training"
        result = worker.run(job)
        del job  # large
        if result.state:
            store.save(request.round, result.state, spare=request.state_round)  # before the server knows of it
        result = replace(result, notes=[*notes, *result.notes])
        return wire.reply_with(result, request), to_bytes(result.upload)

    def _test(self, message: Message) -> tuple[Reply, bytes]:
        request = wire.read(message, wire.EvalRequest, wire.MAX_REQUEST)
        ctx, store = self._context(request.round), StateStore(self._folder, request.run, self.client)
        state = self._state(store, request.state_round, ctx, [])
        worker, self._phase = self._worker(request.scale), "testing"
        if worker.evaluator_for(request.protocol).model_kind == "global":
            # the server's model is of the first architecture
            ctx = replace(ctx, task=self._setup.tasks[0])
        bins = {name: torch.tensor(counts) for name, counts in request.bins.items()}
        job = EvalJob(ctx, from_bytes(message.body), state, self.indices, request.split, request.protocol, bins)
        result = worker.test(job)
        if request.pooled is not None:
            evaluator, settings, pooled = worker.evaluator_for(request.protocol), self.config.evaluation, request.pooled
            example = evaluator.example_states()
            example = replace(example, states={name: example.states[name] for name in pooled.states})
            main, by = evaluator.names[0], "row" if settings.intervals is None else settings.intervals.by
            of_all = states_from_plain(cast(MetricStates, pooled), example)
            sums = with_group_sums(result.tested[main], evaluator, by, of_all, request.decision)
            result = replace(result, tested={**result.tested, main: sums})
        result = replace(result, tested={name: states.portable() for name, states in result.tested.items()})
        return wire.reply_with(result, request), b""

    def _serve(self, message: Message) -> tuple[Reply, bytes]:
        request = wire.read(message, wire.ServeRequest)
        worker, scenario, tasks = self._worker(request.scale), self._scaled(request.scale), self._setup.tasks
        service = NewcomerService(self._setup.method, tasks, worker, scenario, self.config.evaluation)
        self._phase = "testing"
        service.state, service.round = from_bytes(message.body), request.round
        tests = service.tests(service.newcomer(self.client - scenario.clients))
        result = NewcomerResult(self.client, {name: states.portable() for name, states in tests})
        return wire.reply_with(result, request), b""

    @property
    def indices(self) -> torch.Tensor:
        """The client's training samples [n], int64."""
        scenario, newcomers = self.scenario, self.scenario.newcomers
        if not self._never_trains or newcomers is None:
            return scenario.train.tensor(self.client)
        return newcomers.train.tensor(self.client - scenario.clients)

    @property
    def _never_trains(self) -> bool:
        return self.client >= self.scenario.clients

    def _require_samples(self) -> None:
        """Raise `DataError` for a client that never trains and has no samples to tune on or to test."""
        scenario, newcomers = self.scenario, self.scenario.newcomers
        views = (newcomers.train, newcomers.test) if self._never_trains and newcomers is not None else ()
        counts = [len(of[self.client - scenario.clients]) for of in views]
        if not all(counts):
            samples = f"{counts[0]:,} training and {counts[1]:,} test samples"
            raise DataError(f"it never trains and has {samples}; it needs both: set `split` in its file")

    def _context(self, round_: int) -> ClientContext:
        tasks: list[Task] = self._setup.tasks
        task = tasks[group_of(self.client, tasks)]
        counts = label_counts(self.scenario.train_set.y[self.indices], task.num_classes)
        return ClientContext(task, round_, self.client, len(self.indices), counts)

    def _state(self, store: StateStore, state_round: int | None, ctx: ClientContext, notes: list[Diagnostic]) -> Record:
        """Load the private state after `state_round`; a client that has lost it starts with a new one, and a note."""
        state = None if state_round is None else store.load(state_round)
        if state is None and state_round is not None:
            name = f"the private state of client {self.client} after round {state_round}"
            text = f"{name} is not on its disk: it starts with a new one"
            notes.append(Diagnostic(f"flower.state_lost/{self.client}", text, float(state_round)))
        return self._setup.method.client_init(ctx) if state is None else state
