"""A federation inside this process, over the same messages as a real one: for tests and debugging."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

from fedloom.data import Scenario
from fedloom.flower.node import Node
from fedloom.flower.node_data import node_file, nodes_of_scenario, server_file
from fedloom.flower.server import serve
from fedloom.flower.transport import InProcessTransport
from fedloom.results.result import Result
from fedloom.runs.callbacks import Callback
from fedloom.runs.config.run_config import RunConfig
from fedloom.runs.studies.live_progress import Forward, progress_listener


def run_in_process(
    config: RunConfig,
    *,
    scenario: Scenario | None = None,
    out: Path | None = None,
    states: Path | None = None,
    data: Path | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool = True,
) -> Result:
    """Run a config with one node for each client, without a network and without Flower.

    The result has the bits of the simulation.

    Args:
        config: the config of the run.
        scenario: used instead of the one that the config describes.
        out: the run folder; None keeps nothing on disk.
        states: folder of the nodes' private states; None uses a temporary one.
        data: folder with a file for each node's data, for `source: nodes`.
        callbacks: objects that watch the run.
        progress: as in `fedloom.run`.

    Raises what `serve` raises, and `ConfigError` or `DataError` for a node whose data cannot be used.
    """
    if data is None:
        scenario = scenario or config.scenario.build(config.seed)
    with tempfile.TemporaryDirectory(prefix="fedloom-nodes-") as temporary:
        folder = temporary if states is None else states
        clients = config.scenario.clients if scenario is None else nodes_of_scenario(scenario)
        first = Node(config, 0, Path(folder), scenario, node_file(data, 0))
        # A worker holds the data, so nodes share it only where they have one scenario in common.
        template = first if data is None else None
        nodes = {0: first} | {
            client: Node(config, client, Path(folder), scenario, node_file(data, client), template)
            for client in range(1, clients)
        }
        if data is not None:
            # Read now, or data that cannot be used would be a FederationError when their node joins.
            for node in nodes.values():
                node.require_data()
        tests, transport = server_file(data), InProcessTransport(nodes)
        with progress_listener([config], progress) as listener:
            watching = [Forward(0, listener), *callbacks]
            return Result.of(serve(config, transport, scenario=scenario, tests=tests, out=out, callbacks=watching))
