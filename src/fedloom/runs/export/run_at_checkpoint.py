"""Open a run at one of its checkpoints, to take its models."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import nn

from fedloom.core.errors import ConfigError, RunFolderError, short_repr
from fedloom.core.records import RecordError
from fedloom.data import Scenario
from fedloom.data.sources.source import Splits
from fedloom.data.views import label_counts
from fedloom.engine import LocalTraining, Worker
from fedloom.engine.jobs import kept_since
from fedloom.engine.speedups import Speedups
from fedloom.methods.contract.contexts import ClientContext, ServerContext, Start
from fedloom.methods.contract.phases import Predictor
from fedloom.nets.loaded_net import group_of
from fedloom.nets.user_model import ModelSource, UserModel
from fedloom.runs.config.keys import UserModelConfig
from fedloom.runs.config.run_config import RunConfig
from fedloom.runs.export import modules
from fedloom.runs.export.modules import Architecture, ExportMetadata, Input, Training
from fedloom.runs.setup import Setup
from fedloom.runs.storage.checkpoint import Checkpoint, misfit_error
from fedloom.runs.storage.data_record import KEY, data_record_of, refuse_changed
from fedloom.runs.storage.log import At, Row


@dataclass(frozen=True, slots=True)
class Memory:
    """Parts that a run folder may lack: the config, a scenario passed in Python, and weights of a run in memory; and
    data that other runs have `loaded`, by their source, of which one is kept."""

    config: RunConfig
    scenario: Scenario | None = None
    weights: dict[int, Checkpoint] = field(default_factory=dict, repr=False)
    loaded: dict[str, Splits] = field(default_factory=dict, repr=False)

    def build(self) -> Scenario:
        """Return the scenario that was passed, or build it."""
        source, _ = self.config.scenario.parts()
        if self.scenario is None and (key := f"{source.kind} {source.model_dump_json()}") not in self.loaded:
            self.loaded.clear()
            self.loaded[key] = source.load()
        return self.scenario or self.config.scenario.build(self.config.seed, self.loaded[key])


class RunAtCheckpoint:
    """A run at one of its checkpoints. `described`: the contents of scenario.json. `rows`: those with its threshold."""

    def __init__(
        self, memory: Memory, checkpoint: Checkpoint, described: Mapping[str, Any], rows: Sequence[Row] = ()
    ) -> None:
        self.memory, self.config, self.checkpoint, self.rows = memory, memory.config, checkpoint, rows
        try:
            source, _ = self.config.scenario.parts()
            self.input = Input(**{**described["input"], "reading": source.reading_keys()})
            self.classes = tuple(described["classes"])
            self.clients, self.labels = int(described["clients"]), "multi" if "labels" in described else "single"
        except (KeyError, TypeError, ValueError):
            raise RunFolderError(
                "scenario.json: damaged, or of an earlier version; run again with existing='fresh'"
            ) from None
        self._data = described.get(KEY)
        self.counts: list[list[int]] = described.get("class_counts", [])
        for model in self.config.models() if self.config.share == "trainable" else ():
            shapes = self.input.shape, len(self.classes)
            if isinstance(model, UserModelConfig) and model.user_model.digest(*shapes) != model.digest:
                raise ConfigError(
                    f"model {model.title}: not the one of this run, whose frozen weights were not stored (share = "
                    "trainable); pass it with its first weights"
                )
        with modules.packages_named(self.config.model_name()):
            self.setup = Setup.from_config(self.config, self.input.shape, len(self.classes), self.clients)
        self.method = self.setup.method

    @cached_property
    def scenario(self) -> Scenario:
        """The data, for facts that the checkpoint lacks. Raises `RunFolderError` if they are not those of the run."""
        scenario = self.memory.build()
        if self._data is not None and self.checkpoint.path is not None:
            refuse_changed(self.checkpoint.path.parents[1], self._data, data_record_of(self.config, scenario))
        return scenario

    def model(self, client: int | None, at: At) -> tuple[nn.Module, ExportMetadata, ModelSource | None]:
        """Return the server's or a client's model with its metadata. Raises `ConfigError` if it does not exist."""
        # NumPy's integers are numbers of clients; True and False are not, although they have __index__ as well.
        if client is not None and (isinstance(client, bool) or not hasattr(client, "__index__")):
            raise ConfigError(f"client = {short_repr(client)}: need a client's number, or None for the server's model")
        if client is not None and not 0 <= client < self.clients:
            raise ConfigError(f"client = {client}: the run has {self.clients} clients, 0 to {self.clients - 1}")
        group = 0 if client is None else group_of(client, self.setup.tasks)
        blueprint, net = self.setup.blueprints[group], self.setup.nets[group]
        try:
            predictor = self._predictor(client)
            module, forward = modules.module_of(net, predictor, blueprint, self.method)
        except (RecordError, LookupError, RuntimeError) as error:
            # Without a checkpoint on disk there is no file to blame.
            if self.checkpoint.path is None:
                raise
            raise misfit_error(self.checkpoint, error) from error
        training = Training(
            **{key: getattr(self.config, key) for key in ("method", "preset", "seed", "rounds")},
            source=self.method.citation.source if self.method.citation else "",
            options=self.method.options.model_dump(mode="json"),
            clients=self.clients,
            round=self.checkpoint.round,
            at=at,
            client=client,
        )
        architecture = Architecture(
            model=blueprint.model, options=dict(blueprint.options), given=blueprint.factory is not None, forward=forward
        )
        # only a global model has the threshold that its run chose
        decision = None if client is not None else modules.decision_at(self.rows, self.config, training.round)
        described: dict[str, Any] = {"architecture": architecture, "training": training, "decision": decision}
        metadata = ExportMetadata(classes=self.classes, labels=self.labels, input=self.input, **described)
        return module, metadata, blueprint.factory.source if isinstance(blueprint.factory, UserModel) else None

    def _predictor(self, client: int | None) -> Predictor:
        """Return the predictor with the weights that were tested. Raises `ConfigError` if there is none."""
        name, server, round_ = self.config.method, self.checkpoint.server, self.checkpoint.round
        if client is None:
            task, own = self.setup.tasks[0], self.memory.scenario
            has_public = bool(self.config.scenario.public) if own is None else own.public is not None
            public = self.scenario.public if has_public else None
            ctx = ServerContext(task, round_, self.setup.nets[0].functional, public)
            offered = self.method.predictors(server, None, ctx)
            if "global" not in offered:
                raise ConfigError(f"{name} has no global model: name a client, 0 to {self.clients - 1}")
            return offered["global"]
        facts, states = self.context(client), self.checkpoint.states
        # Not `client in states`: a Mapping tests that by a look-up, which reads the client's state from the disk.
        state = states[client] if client in set(states) else self.method.client_init(facts)
        if kept_since(state) is not None:
            raise ConfigError(f"client = {client}: its personal model stays on its own node, the server never has it")
        offered = self.method.predictors(server, state, ServerContext(facts.task, round_, client=client))
        if "personal" not in offered:
            raise ConfigError(f"client = {client}: {name} has no personal models, only a global one; name no client")
        return self._adapted(offered["personal"], facts)

    def context(self, client: int) -> ClientContext:
        """Return a client's context, from scenario.json or else from the data."""
        # scenario.json has the counts of the first `PICTURED_CLIENTS` clients alone.
        if client < len(self.counts) and self.labels == "single":
            counts = torch.tensor(self.counts[client], dtype=torch.int64)
            samples = int(counts.sum())
        else:
            labels = self.scenario.train_set.y[self.scenario.train.tensor(client)]
            counts, samples = label_counts(labels, len(self.classes)), len(labels)
        task = self.setup.tasks[group_of(client, self.setup.tasks)]
        return ClientContext(task, self.checkpoint.round, client, samples, counts)

    def _adapted(self, predictor: Predictor, facts: ClientContext) -> Predictor:
        """Return a personal model after the method has adapted it to the client's training data, as before a test."""
        if not self.method.adapt(Start(predictor.tree, predictor.consts), facts):
            return predictor
        config, data = self.config, self.scenario
        nets = [blueprint.build(self.setup.streams) for blueprint in self.setup.blueprints]
        local = LocalTraining(config.batch_size, config.optimizer, config.augment)
        half = config.precision == "bfloat16"
        worker = Worker(self.method, nets, data.train_set, local, bfloat16=half, speedups=Speedups(steps=False))
        live = worker.loaded_nets[facts.task.group]
        return worker.adapt(live, predictor, facts, data.train.tensor(facts.client))[0]
