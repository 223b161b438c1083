"""The server's side of a run: what it is called among nodes, and the run itself over a link."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from fedloom.config.run_config import RunConfig
from fedloom.config.sections import CheckpointConfig
from fedloom.core.errors import ConfigError
from fedloom.core.files import restrict_to_owner, write_atomic
from fedloom.data import Scenario
from fedloom.data.sources.nodes import Nodes
from fedloom.engine import Engine, Federation, Worker
from fedloom.flower.bindings import NodeBindings
from fedloom.flower.bounds import FEWEST
from fedloom.flower.checks import shares_too_large
from fedloom.flower.logs import LogCallback
from fedloom.flower.moments import Scale, keep_scale, outliers, pooled, read_scale
from fedloom.flower.node_data import node_source, server_data, server_scenario
from fedloom.flower.node_registry import NodeRegistry, RunIdentity
from fedloom.flower.remote import RemoteEngine
from fedloom.flower.status import StatusWriter
from fedloom.flower.transport import Transport
from fedloom.results.result import Result
from fedloom.runs.callbacks import Callback
from fedloom.runs.run import run

_NAME = "flower-run"


def serve(
    config: RunConfig,
    link: Transport,
    *,
    scenario: Scenario | None = None,
    tests: Path | None = None,
    out: Path | None = None,
    keys: Path | None = None,
    callbacks: Sequence[Callback] = (),
) -> Result:
    """Run `config` over the nodes of a link; a run that was begun in `out` goes on after its last whole round.

    tests: the file that names the server's own test data, where nodes have data of their own. keys: a folder with the
    public keys of clients (`bindings.py`); without it each client is bound to the key that it first joins with. What
    happens is logged (`logs.py`), and how it is now stands in the run's folder (`status.py`). Raises what
    `fedloom.runs.run.run` raises, and `FederationError` if too few clients are there.
    """
    kept = CheckpointConfig(seconds=0, keep=max(3, config.checkpoint.keep))  # each round is kept
    config = config.model_copy(update={"checkpoint": kept})
    name, nodes, seats = RunIdentity(_name(out), config.fingerprint()), node_source(config), NodeBindings(out, keys)

    board = StatusWriter(config, out)
    watching = [LogCallback(lambda: board.status.run), board, *callbacks]

    def say(text: str) -> None:
        for callback in watching:
            callback.on_note(config, text)

    roster = None
    if nodes is not None:
        scenario = server_scenario(config, None if tests is None else server_data(config, tests))
        name = replace(name, scale=read_scale(out))
        if nodes.numeric_features and name.scale is None:
            measured = len(nodes.numeric_features)
            roster = NodeRegistry(link, name, scenario.clients, nodes.classes, board, say, measured, seats=seats)
            name = replace(name, scale=_pooled(roster, config, nodes, say))
        scenario = scenario if name.scale is None else name.scale.on_all(scenario, nodes)
    elif tests is not None:
        raise ConfigError(f"{tests}: only with `source: nodes` the server has test data of its own; leave it out")

    def engine(federation: Federation, worker: Worker, note: Callable[[str], None]) -> Engine:
        if out is not None:
            restrict_to_owner(out)  # its checkpoints and its list of clients are the server's alone
            write_atomic(out / _NAME, name.name, private=True)
        if out is not None and name.scale is not None:
            keep_scale(out, name.scale)
        board.begin(name.name, federation.round)
        seats.begin()
        remote = RemoteEngine(link, name, federation, worker, config.flower, board, note, roster, out, seats)
        federation.guard = remote.guard
        return remote

    try:
        return run(config, scenario=scenario, out=out, existing="resume", callbacks=watching, engine_factory=engine)
    except BaseException as error:
        board.failed(error)
        raise


def _pooled(roster: NodeRegistry, config: RunConfig, nodes: Nodes, say: Callable[[str], None]) -> Scale:
    """How measured features are standardised, by the training samples of all clients that are there.

    Clients whose moments, or number of samples, are far from those of the others are left out of the run.
    """
    wait, features = config.flower, [(nodes.features or ())[index] for index in nodes.numeric_features]
    roster.wait(range(config.scenario.clients), wait.min_clients, wait.join_timeout, "join_timeout")
    counts = {client: told.samples for client, told in roster.moments().items()}
    for client, why in shares_too_large(counts, wait.max_share).items():
        roster.refuse(client, why)
    for client, why in outliers(roster.moments(), features).items():
        roster.refuse(client, why)
    reported = list(roster.moments().values())
    size = sum(len(one.moments.model_dump_json()) for one in reported)
    scale = pooled(reported)
    roster.settle(scale)
    say(f"{len(scale.mean)} features are standardised by what {len(reported)} clients told of them, in {size:,} bytes")
    if len(reported) < FEWEST:
        say(f"fewer than {FEWEST} clients told of their features: nothing bounds what one of them tells")
    return scale


def _name(out: Path | None) -> str:
    """What the run is called among nodes: kept in its folder, and drawn for a new one."""
    if out is None or not (out / _NAME).exists():
        return secrets.token_hex(8)
    return (out / _NAME).read_text(encoding="utf-8")
