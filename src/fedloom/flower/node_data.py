"""Data that one node alone can read: from the node's own file to its client, and what stands in for them at the server.

The file is YAML beside the data: a source with its keys, and how its samples are split. It is never sent.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from fedloom.config.public_data import PublicConfig
from fedloom.config.run_config import RunConfig, parse
from fedloom.config.scenario_config import ScenarioConfig
from fedloom.core.errors import ConfigError, DataError, FedloomError
from fedloom.core.safe_yaml import read_yaml
from fedloom.core.streams import Streams
from fedloom.data import Dataset, Scenario
from fedloom.data.sources.nodes import Nodes
from fedloom.data.sources.source import Splits
from fedloom.data.views import Views, starts
from fedloom.flower.logs import log

_SPLITS = ("val", "split")


def node_source(config: RunConfig) -> Nodes | None:
    """What the federation's nodes have agreed on, where each has data of its own; None where the config describes the
    data."""
    source, _ = config.scenario.parts()
    return source if isinstance(source, Nodes) else None


def node_file(folder: Path | None, client: int) -> Path | None:
    """A client's file in the folder that a federation on one machine has for all."""
    return None if folder is None else folder / f"node-{client:06d}.yaml"


def server_file(folder: Path | None) -> Path | None:
    """The server's file there, if it has test data."""
    return folder / "server.yaml" if folder is not None and (folder / "server.yaml").is_file() else None


def node_scenario(config: RunConfig, file: Path, client: int) -> Scenario:
    """The scenario in which `client` holds what its file names, and nobody else holds anything.

    Samples are in the file's order; `val` or `split`, there or else in the config, say which of them train. Raises
    `ConfigError` and `DataError`, one line that names the file, for what cannot be used.
    """
    described, splits = _read(config, file)
    seed = Streams(config.seed).key("own data", client=client)
    scenario, clients = described.build(seed, splits), config.scenario.clients
    train, val, test = (_alone(views, client, clients) for views in (scenario.train, scenario.val, scenario.test))
    return replace(scenario, train=train, val=val, test=test)


def server_data(config: RunConfig, file: Path) -> Dataset:
    """All samples that a file of the server's names: the global test set. Raises as `node_scenario`."""
    _, splits = _read(config, file)
    parts = splits.train, splits.test
    return replace(parts[0], x=torch.cat([one.x for one in parts]), y=torch.cat([one.y for one in parts]))


def server_scenario(config: RunConfig, tests: Dataset | None) -> Scenario:
    """What the server knows of a federation whose nodes have data of their own: `tests` are all the samples it has.

    Raises `ConfigError` if what the config asks for cannot be tested so.
    """
    nodes, protocol = node_source(config), config.evaluation.protocol
    assert nodes is not None, "a config of nodes"
    if protocol == "global/global" and tests is None:
        raise ConfigError(
            "evaluation.protocol = 'global/global': the server has no test data; name its file (the app's key `test`), "
            "or take global/local, which nodes test on their own data"
        )
    if protocol in ("personal/global", "few-shot"):
        raise ConfigError(
            f"evaluation.protocol = '{protocol}': with source nodes take personal/local or global/local, which nodes "
            "test on their own data, or global/global"
        )
    data, described = nodes.placeholder_data(), config.scenario
    each = np.ones(described.clients, np.int64)  # until they have joined
    streams = Streams(config.seed if described.seed is None else described.seed)
    held_out = described.val if described.split is None else described.split.val
    public = None
    if isinstance(described.public, PublicConfig):
        public = nodes.as_agreed(described.public.load(streams), "scenario.public")
    nothing = Views.from_lists([np.zeros(0, np.int64)] * described.clients)
    return Scenario(
        described.source,
        data,
        data.head(0) if tests is None else tests,
        stand_in_views(each),
        stand_in_views(each) if held_out else nothing,
        nothing,
        public=public,
        remote=True,
    )


def stand_in_views(sizes: np.ndarray) -> Views:
    """Views of clients that hold `sizes` [N] samples elsewhere: into the first sample of those that stand in for them.

    They take no memory, whatever number of samples a node claims.
    """
    order = np.lib.stride_tricks.as_strided(np.zeros(1, np.int64), (int(sizes.sum()),), (0,))
    return Views(order, starts(sizes))


def _read(config: RunConfig, file: Path) -> tuple[ScenarioConfig, Splits]:
    """What a file says, and the samples that it names, as the federation has agreed."""
    nodes, theirs = node_source(config), config.scenario
    if nodes is None:
        raise ConfigError(f"{file}: this federation's config describes the data itself (source: {theirs.source})")
    told = read_yaml(file)
    if not isinstance(told, dict) or not isinstance(told.get("source"), str) or told["source"] == nodes.kind:
        raise ConfigError(f"{file}: need a source with its keys, e.g. `source: csv`, `path: rows.csv`, `label: ill`")
    for key in told.keys() & (ScenarioConfig.model_fields.keys() - {"source", *_SPLITS}):
        raise ConfigError(f"{file}: {key} is none of a node's keys: source, its keys, val and split")
    shared = {"val": theirs.val} if theirs.split is None else {"split": theirs.split.model_dump()}
    split = {} if told.keys() & {*_SPLITS} else shared
    try:
        described = parse({"scenario": {**split, **told, "partition": "iid", "clients": 1}}).scenario
        source, _ = described.parts()
        places = {name: file.absolute().parent / value for name, value in source if isinstance(value, Path)}
        splits = source.model_copy(update=places).load()
        parts = {"train": splits.train, "test": splits.test}
        notes = [note for name, part in parts.items() for note in nodes.notes(part, f"{file} ({name})")]
        train, test = (nodes.as_agreed(part, f"{file} ({name})") for name, part in parts.items())
        for note in (*splits.notes, *notes):
            log("note", {"file": str(file)}, note, logging.WARNING)
        return described, Splits(train, test, notes=(*splits.notes, *notes))
    except FedloomError as error:
        named = str(file.absolute().parent) in str(error)
        raise DataError(str(error) if named else f"{file}: {error}") from None


def _alone(views: Views, client: int, clients: int) -> Views:
    """The only view of `views`, in the file's order, as that of one client among `clients`."""
    sizes = np.zeros(clients, np.int64)
    sizes[client] = len(views.order)
    return Views(np.sort(views.order), starts(sizes))
