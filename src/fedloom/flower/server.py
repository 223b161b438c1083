"""The server's side of a federation: the run over a transport, and its name among nodes."""

import os
import re
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path

from fedloom._version import __version__
from fedloom.core.errors import ConfigError, FedloomError, RunFolderError
from fedloom.core.files import read_file, restrict_to_owner, write_atomic
from fedloom.data import Scenario
from fedloom.data.imputation import imputed_cells
from fedloom.data.sources.nodes import Nodes
from fedloom.engine import Engine, Federation, Worker
from fedloom.flower import node_data
from fedloom.flower.bindings import NodeBindings
from fedloom.flower.checks import shares_too_large
from fedloom.flower.comparison import compare_nodes
from fedloom.flower.exchange import facts_limit
from fedloom.flower.findings import require_space, stored_bytes
from fedloom.flower.links import Links
from fedloom.flower.logs import LogCallback
from fedloom.flower.node_registry import NodeRegistry
from fedloom.flower.remote import RemoteEngine
from fedloom.flower.status import StatusWriter, client_list
from fedloom.flower.transport import Transport
from fedloom.flower.wire import JoinRequest
from fedloom.runs.callbacks import Callback
from fedloom.runs.config.run_config import RunConfig
from fedloom.runs.config.sections import CheckpointConfig
from fedloom.runs.run import run
from fedloom.runs.storage.run_data import RunData

_NAME = "flower-run"


def serve(
    config: RunConfig,
    transport: Transport,
    *,
    scenario: Scenario | None = None,
    tests: Path | None = None,
    out: Path | None = None,
    keys: Path | None = None,
    callbacks: Sequence[Callback] = (),
) -> RunData:
    """Run a config over the nodes of a transport; an unfinished run continues after its last finished round.

    tests: the file that names the server's test data, for `source: nodes`. out: the run folder; None keeps nothing on
    disk. keys: folder with the clients' public keys; by default each client is bound to the key that it first joins
    with. scenario: used instead of the config's. callbacks: objects that watch the run.

    Raises what `fedloom.runs.run.run` raises, and `FederationError` if too few clients are online.
    """
    if config.build_method().spec.pooled:
        raise ConfigError(
            f"{config.method} trains on the pooled data of all clients, which a federation never moves; run it in "
            "simulation (fedloom run)"
        )
    # Nodes keep their newest three states, and a server that resumes needs the states of its checkpoint's round.
    config = config.model_copy(update={"checkpoint": CheckpointConfig(seconds=0, keep=max(3, config.checkpoint.keep))})
    identity = JoinRequest(run=_name(out), fingerprint=config.fingerprint(), version=__version__)
    nodes, bindings, settings = node_data.node_source(config), NodeBindings(out, keys), config.flower
    status = StatusWriter(config, out)
    links = Links(transport, settings, status)
    watchers = [LogCallback(identity.run), status, *callbacks]

    def say(text: str) -> None:
        for callback in watchers:
            callback.on_note(config, text)

    def new_registry(scenario: Scenario, measured: int = 0) -> NodeRegistry:
        return NodeRegistry(links, identity, scenario, say, bindings, measured)

    registry = None
    if nodes is not None:
        scenario = node_data.server_scenario(config, None if tests is None else node_data.server_data(config, tests))
        scale = node_data.Scale.read(out)
        measured = len(node_data.measured_names(config))
        if (measured or settings.compare) and scale is None:
            registry = new_registry(scenario, measured)
            registry.wait(range(scenario.clients), settings.min_clients, settings.join_timeout)
            compare_nodes(config, registry.training_replies(), say)
            if nodes.reported_features:
                scale = _pool_scale(registry, config, nodes, say)
        identity = identity.model_copy(update={"scale": scale})
        scenario = scenario if scale is None else scale.apply_to_scenario(scenario, nodes)
    elif tests is not None:
        raise ConfigError(f"{tests}: the config describes the test data, unless it has `source: nodes`; leave it out")

    def engine(federation: Federation, worker: Worker, note: Callable[[str], None]) -> Engine:
        if out is not None:
            require_space(out, stored_bytes(config, federation.server), "checkpoints")
            restrict_to_owner(out)  # only the server may read its checkpoints and its list of clients
            write_atomic(out / _NAME, identity.run, private=True)
            if identity.scale is not None:
                identity.scale.write(out)
        if federation.scenario.newcomers is not None:
            facts_limit(worker.evaluator_for(None), config.evaluation.newcomers.most_tests)
            first, ids = federation.scenario.clients, federation.scenario.newcomer_ids
            of_config = "" if ids[0] == first else f" (of the config's clients {client_list(ids)})"
            never_training = client_list(range(first, first + len(ids)))
            text = f"nodes 0 to {first - 1} train; nodes that never train, and are tested after the last round: "
            note(f"{text}{never_training}{of_config}")
        if federation.clients_per_round < node_data.FEWEST and settings.max_ratio is not None:
            note(_small_rounds(config, federation))
        status.begin(identity.run, federation.round)
        bindings.begin()
        joined = registry or new_registry(federation.scenario)
        remote = RemoteEngine(joined, federation, worker, out)
        if registry is None:
            train = federation.scenario.train
            clients = [client for client in range(len(train)) if len(train[client])]
            joined.wait(clients, settings.min_clients, settings.join_timeout)
        remote.update_sizes()
        federation.guard = remote.guard
        return remote

    try:
        return run(config, scenario=scenario, out=out, existing="resume", callbacks=watchers, engine_factory=engine)
    except BaseException as error:  # Ctrl-C is no Exception, and the status must tell of it as well
        status.set_failed(error)
        raise


def _small_rounds(config: RunConfig, federation: Federation) -> str:
    """Return by what the uploads of small rounds are judged, and what a robust mean would change."""
    count = federation.clients_per_round
    first = "no rehearsal" if federation.scenario.remote else "a rehearsal on the server's samples"
    text = (
        f"{count} of {federation.scenario.clients} clients take part in a round: fewer than {node_data.FEWEST} do not "
        f"judge each other alone, so uploads are also compared with those of earlier rounds, and the first ones with "
        f"{first} and twice the limit (flower.max_ratio). A lie of usual length counts in full"
    )
    try:
        robust = f"{config.method}+median"
        config.model_copy(update={"method": robust}).build_method()
    except FedloomError:
        return f"{text}, and {config.method} takes no robust mean"
    if count < 3:
        return f"{text}; a robust mean needs three clients or more in a round"
    return f"{text}; {robust} resists one, but costs accuracy where clients differ, and rules out secure sums"


def _pool_scale(registry: NodeRegistry, config: RunConfig, nodes: Nodes, say: Callable[[str], None]) -> node_data.Scale:
    settings, features = config.flower, [(nodes.features or ())[index] for index in nodes.reported_features]
    counts = {client: reported.samples for client, reported in registry.moments().items()}
    for client, reason in shares_too_large(counts, settings.max_share).items():
        registry.refuse(client, reason)
    for client, reason in node_data.outliers(registry.moments(), features).items():
        registry.refuse(client, reason)
    reported = list(registry.moments().values())
    size = sum(len(client.moments.model_dump_json()) for client in reported)
    scale = node_data.pool_moments(reported, nodes)
    limits = settings.min_clients, settings.join_timeout
    medians = node_data.find_medians(scale, lambda ranges: registry.count_cells(ranges, *limits))
    scale = node_data.pool_moments(reported, nodes, medians)
    registry.set_scale(scale)
    say(f"{len(scale.mean)} features are standardised by moments that {len(reported)} clients sent in {size:,} bytes")
    if lacking := {column.column: column.missing for column in scale.imputed if column.missing}:
        say(f"missing cells, filled by values over all nodes: {imputed_cells(scale.imputed, lacking)}")
    if len(reported) < (fewest := node_data.FEWEST):
        say(f"fewer than {fewest} clients sent moments of their features, so nothing bounds the moments of one of them")
    return scale


def _name(out: Path | None) -> str:
    """Return the run's name among nodes: that in its folder, or a new random one."""
    if out is None or not os.path.lexists(out / _NAME):
        return secrets.token_hex(8)
    try:
        name = read_file(out / _NAME).decode("ascii")
    except (OSError, UnicodeDecodeError):
        name = ""
    if not re.fullmatch("[0-9a-f]{16}", name):
        raise RunFolderError(
            f"{out / _NAME}: damaged, because a run's name has 16 hexadecimal digits; put the file back, or delete the "
            "run folder and run again"
        )
    return name
