"""The models of one round: what the server sent, what each participant trained, and what the server made of it."""

from __future__ import annotations

from collections.abc import Mapping
from operator import index
from typing import Any

import torch
from torch import nn

from fedloom.core.errors import ConfigError
from fedloom.core.process_settings import reproducible_settings
from fedloom.core.records import Record, get_tree
from fedloom.core.trees import Tree
from fedloom.methods.contract.contexts import ServerContext
from fedloom.methods.contract.phases import Predictor, Train
from fedloom.nets.groups import group_of
from fedloom.nets.roles import Role
from fedloom.runs.export.modules import config_of, module_of
from fedloom.runs.export.run_at_checkpoint import Memory, RunAtCheckpoint
from fedloom.runs.export.trained import FinishedRun
from fedloom.runs.storage.checkpoint import Checkpoint
from fedloom.runs.storage.client_models import KeptRound, kept_rounds, load
from fedloom.runs.storage.run_folder import RunFolder


class RoundModels:
    """The models of a round whose number `checkpoint.keep_clients` names, as plain modules in evaluation mode.

    Args:
        result: a finished run with a folder.
        round_: number of the round.

    Attributes:
        round: number of the round.
        clients: ids of the clients whose uploads the server aggregated.
        uploads: these uploads, by client id, which are read when they are asked for.
        after: the server's state after the round.

    Raises `ConfigError` for a round that was not kept or is no whole number, `CheckpointError` for damaged files.
    """

    def __init__(self, result: FinishedRun, round_: int) -> None:
        try:
            round_ = index(round_)
        except TypeError:
            raise ConfigError(f"round {round_!r}: need the number of a round, e.g. 1") from None
        memory = result.memory or Memory(config_of(result.config, None))
        folder = None if result.folder is None else RunFolder(result.folder).client_models
        kept = () if folder is None else kept_rounds(folder)
        if folder is None or round_ not in kept:
            known = f"kept are {', '.join(map(str, kept))}" if kept else "none is kept"
            raise ConfigError(
                f"round {round_}: its client models are not kept ({known}); run with a folder and "
                f"checkpoint.keep_clients=[{round_}]"
            )
        self._memory, self._described = memory, result.scenario
        self._kept: KeptRound = load(folder, round_, memory.config.fingerprint())
        self.round, self.clients = round_, tuple(self._kept.uploads)
        self.uploads: Mapping[int, Record] = self._kept.uploads
        self.after: Record = self._kept.after

    def server(self) -> nn.Module:
        """Return the server's model after the round."""
        return self._model_of(self._kept.after, self.round)

    def start(self) -> nn.Module:
        """Return the server's model before the round."""
        return self._model_of(self._kept.before, self.round - 1)

    def client(self, client: int) -> nn.Module:
        """Return the model that a participant had at the end of the round: what it sent, with what it kept to itself.

        Raises `ConfigError` for a client that did not take part, and for methods whose uploads hold no model.
        """
        if client not in self.clients:
            raise ConfigError(
                f"client {client}: not aggregated in round {self.round}; its clients are "
                f"{', '.join(map(str, self.clients))}"
            )
        opened = self._opened(self._kept.before, self.round)
        method, group = opened.method, group_of(client, opened.setup.tasks)
        net, blueprint = opened.setup.nets[group], opened.setup.blueprints[group]
        if method.spec.nets:
            raise ConfigError(
                f"{opened.config.method} trains several nets at a client: none of them is its model alone"
            )
        with reproducible_settings():
            tree = self._client_tree(opened, client)
            return module_of(net, Predictor(tree), blueprint, method)[0]

    def _client_tree(self, opened: RunAtCheckpoint, client: int) -> Tree:
        method, task = opened.method, opened.setup.tasks[group_of(client, opened.setup.tasks)]
        facts = opened.context(client)
        net = opened.setup.nets[task.group].functional
        server_ctx = ServerContext(task, self.round, net, client=client)
        upload, sent = self._kept.uploads[client], method.spec.sends.get("model")
        state = self._kept.states.get(client) or method.client_init(facts)
        tree = get_tree(state, "model") if "model" in state else {}
        if "model" in upload and isinstance(upload["model"], dict):
            if sent is not None and sent.form != "whole":  # the method alone knows its sign, scale and origin
                raise ConfigError(
                    f"{opened.config.method}: its uploads hold changes and no weights, so client models cannot be made "
                    "of them"
                )
            tree = tree | get_tree(upload, "model")
        elif "model" not in state:
            raise ConfigError(
                f"{opened.config.method}: its uploads hold {', '.join(sorted(upload))} and no model, so client models "
                "cannot be made of them"
            )
        missing = task.init.keys() - tree.keys()
        if missing:  # what is neither sent nor kept is as it was received, unless the client trained it
            start = method.begin(method.down(self._kept.before, client, server_ctx), state, facts)
            phases = [phase for phase in method.phases(start, facts) if isinstance(phase, Train)]
            trained = frozenset[Role]().union(*(phase.trains for phase in phases)) - {Role.EXTRA}  # begin knows where
            missing = {name for name in missing if name not in start.tree or task.roles[name] in trained}
            tree = start.tree | tree
        if missing:
            raise ConfigError(
                f"{opened.config.method}: {len(missing)} entries of client {client}'s net are neither in its upload "
                f"nor in its state, e.g. {min(missing)}"
            )
        return {name: torch.clone(tree[name]) for name in task.init}

    def _model_of(self, server: Record, round_: int) -> nn.Module:
        with reproducible_settings():
            return self._opened(server, round_).model(None, "last")[0]

    def _opened(self, server: Record, round_: int) -> RunAtCheckpoint:
        described: Mapping[str, Any] = self._described
        return RunAtCheckpoint(self._memory, Checkpoint(round_, server, {}), described)
