"""The client's side: it answers the server's letters from its own data and its own disk."""

from __future__ import annotations

import functools
import re
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from fedloom._version import __version__
from fedloom.config.run_config import RunConfig
from fedloom.config.setup import Setup
from fedloom.core.errors import ClientError, ConfigError, DataError, FedloomError, short_repr
from fedloom.core.process_settings import reproducible_settings
from fedloom.core.records import Record, from_bytes, to_bytes
from fedloom.data import Scenario
from fedloom.engine import Worker
from fedloom.engine.jobs import EvalJob, Job
from fedloom.flower.logs import log
from fedloom.flower.moments import Scale, moments_of
from fedloom.flower.node_data import node_scenario, node_source
from fedloom.flower.store import StateStore
from fedloom.flower.wire import (
    ErrorReply,
    EvalReply,
    JoinReply,
    Message,
    MessageError,
    Note,
    PredictorResult,
    Reply,
    Request,
    TrainReply,
    read,
)
from fedloom.methods.contract.contexts import ClientContext, Task
from fedloom.nets.groups import group_of

_RUN = re.compile(r"[0-9a-f-]{1,64}")
_LOST = "flower.state_lost"


class Node:
    """One client of a run: its share of the scenario that the config describes, or data of its own.

    folder: where it keeps private states. scenario: used instead of the one that the config describes. data: the file
    that names its own data (`node_data.py`), where the config leaves them to the nodes. like: a node of the same
    scenario in this process, whose nets it uses in turn. Raises `ConfigError` for a client that the config does not
    have, and for data that are missing, or that nobody asked for.
    """

    def __init__(
        self,
        config: RunConfig,
        client: int,
        folder: Path,
        scenario: Scenario | None = None,
        data: Path | None = None,
        like: Node | None = None,
    ) -> None:
        self.config, self.client, self._folder, self._data, self._given = config, client, folder, data, scenario
        self._like = like
        clients = config.scenario.clients if scenario is None else scenario.clients
        if not 0 <= client < clients:
            raise ConfigError(f"client {client}: this config has clients 0 .. {clients - 1}; set partition-id to one")
        self.fingerprint = config.fingerprint()
        self._worker = functools.lru_cache(maxsize=1)(self._made)

    def require_data(self) -> None:
        """Read the client's samples now. Raises `ConfigError` and `DataError`, in one line that names the client."""
        try:
            _ = self.scenario
        except (ConfigError, DataError) as error:
            raise type(error)(f"client {self.client}: {error}") from None

    @functools.cached_property
    def scenario(self) -> Scenario:
        """Where the client's samples are. Raises `ConfigError` and `DataError` for what cannot be used."""
        config, own = self.config, node_source(self.config) is not None
        if own and self._data is None:
            raise ConfigError("its node has data of its own, and names no file; start it with --node-config 'data=...'")
        if self._data is not None:
            return node_scenario(config, self._data, self.client)
        return self._given or config.scenario.build(config.seed)

    @functools.cached_property
    def _setup(self) -> Setup:
        if self._like is not None:
            return self._like._setup
        scenario = self.scenario
        return Setup.from_config(self.config, scenario.train_set.input_shape, scenario.num_classes, scenario.clients)

    def _made(self, scale: Scale | None) -> Worker:
        """What trains and tests, with measured columns as nodes have agreed. Raises `MessageError` before they have."""
        if self._like is not None:
            return self._like._worker(scale)
        nodes, scenario = node_source(self.config), self.scenario
        if nodes is not None and nodes.numeric_features:
            if scale is None:
                raise MessageError("an order to work before the nodes' columns are standardised")
            scenario = scale.on_all(scenario, nodes)
        worker = self._setup.worker(self.config, scenario.train_set)
        self._setup.evaluator(self.config, worker, scenario)
        return worker

    def answer(self, letter: Message) -> Message:
        """The answer to a letter from the server. Exceptions become answers, with their traceback."""
        run = ""
        try:
            order = read(letter, Request)
            run = order.run
            self._check(order)
            asked: dict[str, Callable[[Request, bytes], tuple[Reply, bytes]]] = {
                "join": self._join,
                "train": self._train,
                "test": self._test,
            }
            with reproducible_settings():
                answer, body = asked[order.do](order, letter.body)
        except ClientError as error:
            told = "".join(traceback.format_exception(error.__cause__))[-(1 << 15) :]
            answer, body = (
                ErrorReply(run=run, client=self.client, round=error.round, error=str(error), raised=told),
                b"",
            )
        except FedloomError as error:
            answer, body = ErrorReply(run=run, client=self.client, error=str(error)), b""
        except Exception as error:
            told = traceback.format_exc()[-(1 << 15) :]
            said = f"client {self.client}: {type(error).__name__}: {error}"
            answer, body = ErrorReply(run=run, client=self.client, error=said[:1000], raised=told), b""
        about = {"run": run, "round": getattr(answer, "round", None), "client": self.client, "bytes": len(body)}
        log(answer.kind, about, getattr(answer, "error", ""))
        return answer.to_message(body)

    def _check(self, order: Request) -> None:
        if not _RUN.fullmatch(order.run):
            raise MessageError(f"run {short_repr(order.run)}: a run is called by hexadecimal digits")
        if order.version != __version__:
            raise MessageError(
                f"the server has fedloom {order.version}, client {self.client} has {__version__}; install the same "
                "version everywhere"
            )
        if order.fingerprint != self.fingerprint:
            raise MessageError(
                f"the server's config is {order.fingerprint}, that of client {self.client} is {self.fingerprint}; give "
                "both the same"
            )
        if order.do != "join" and order.client != self.client:
            raise MessageError(f"a letter for client {order.client} came to client {self.client}")

    def _join(self, order: Request, body: bytes) -> tuple[Reply, bytes]:
        scenario = self.scenario
        samples, names = len(scenario.train[self.client]), scenario.class_names
        token = StateStore(self._folder, order.run, self.client).token()
        told = JoinReply(run=order.run, client=self.client, token=token, samples=samples, classes=names)
        nodes = node_source(self.config)
        if nodes is None or not nodes.numeric_features or order.scale is not None:
            return told, b""
        moments = moments_of(scenario.train_set, scenario.train[self.client], nodes.numeric_features)
        return told.model_copy(update={"moments": moments}), b""

    def _train(self, order: Request, body: bytes) -> tuple[Reply, bytes]:
        ctx, store, notes = self._context(order.round), StateStore(self._folder, order.run, self.client), list[Note]()
        state = self._state(store, order.kept, ctx, notes)
        job = Job(ctx, from_bytes(body), state, self._indices, order.measured, order.closing)
        done = self._worker(order.scale).run(job)
        del job  # large
        if done.state:
            store.save(order.round, done.state, spare=order.kept)  # before the server knows of it
        notes += [Note(code=note.code, message=note.message, figure=note.figure) for note in done.notes]
        told = TrainReply(
            run=order.run,
            client=self.client,
            round=order.round,
            steps=done.steps,
            samples=done.samples,
            seconds=done.seconds,
            terms=dict(done.terms),
            norms=dict(done.norms),
            notes=notes,
            kept=bool(done.state),
        )
        return told, to_bytes(done.payload)

    def _test(self, order: Request, body: bytes) -> tuple[Reply, bytes]:
        ctx, store = self._context(order.round), StateStore(self._folder, order.run, self.client)
        state = self._state(store, order.kept, ctx, [])
        if self.config.evaluation.protocol.startswith("global/"):  # the server's model is of the first architecture
            ctx = replace(ctx, task=self._setup.tasks[0])
        done = self._worker(order.scale).test(EvalJob(ctx, from_bytes(body), state, self._indices, order.split))
        results = {
            name: PredictorResult(total=states.total, states=states.to_plain()) for name, states in done.tested.items()
        }
        told = EvalReply(run=order.run, client=self.client, round=order.round, results=results, samples=done.samples)
        return told, b""

    # -- what it has ---------------------------------------------------------------------------------------------
    @property
    def _indices(self) -> torch.Tensor:
        return self.scenario.train.tensor(self.client)

    def _context(self, round_: int) -> ClientContext:
        tasks: list[Task] = self._setup.tasks
        task = tasks[group_of(self.client, tasks)]
        counts = torch.bincount(self.scenario.train_set.y[self._indices], minlength=task.num_classes)
        return ClientContext(task, round_, self.client, len(self._indices), counts)

    def _state(self, store: StateStore, kept: int, ctx: ClientContext, notes: list[Note]) -> Record:
        """The private state after the round `kept`; one that is lost starts again from the first."""
        state = store.load(kept) if kept else None
        if state is None and kept:
            message = f"the private state of client {self.client} after round {kept} is not on its disk: it starts anew"
            notes.append(Note(code=f"{_LOST}/{self.client}", message=message, figure=float(kept)))
        return self._setup.method.client_init(ctx) if state is None else state
