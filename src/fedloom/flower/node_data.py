"""Data that only one node can read: from the node's file to its client, and placeholders for them on the server.
The file is YAML next to the data: a source with its keys, and the split of its samples. It is never sent. Numeric
columns are standardised over all nodes, from the counts, means and squares that each node reports."""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field

from fedloom.core.errors import ConfigError, DataError, FedloomError
from fedloom.core.files import read_yaml
from fedloom.core.streams import Streams
from fedloom.data import Dataset, Scenario
from fedloom.data.dataset import channel_moments
from fedloom.data.imputation import ImputedColumn, impute, unobserved_error
from fedloom.data.leak import leak, leak_sentences
from fedloom.data.sources.nodes import Nodes
from fedloom.data.sources.source import Splits, load_splits
from fedloom.data.views import Views, starts
from fedloom.flower.status import Stored, Strict, log
from fedloom.runs.config.run_config import RunConfig, parse
from fedloom.runs.config.scenario_config import PublicConfig, ScenarioConfig

_SPLITS = ("val", "split")
_GROUPS = ("group", "shared_groups")
FEWEST = 4  # clients for a meaningful median: of three, one hostile client would be a third


def node_source(config: RunConfig) -> Nodes | None:
    """Return the source that stands for the nodes' data; None if the config describes the data itself."""
    source, _ = config.scenario.parts()
    return source if isinstance(source, Nodes) else None


def node_file(folder: Path | None, client: int) -> Path | None:
    """Return a client's file in the data folder of a federation on one machine."""
    return None if folder is None else folder / f"node-{client:06d}.yaml"


def server_file(folder: Path | None) -> Path | None:
    """Return the server's file in that folder, if it has test data."""
    return folder / "server.yaml" if folder is not None and (folder / "server.yaml").is_file() else None


def node_scenario(config: RunConfig, file: Path, client: int) -> tuple[Scenario, dict[str, Any]]:
    """Return a scenario in which only `client` holds data, those that its `file` names; and what it says of them when
    it joins: whether test samples seem to repeat training data, and how many samples cannot be read."""
    described, splits = _read(config, file)
    seed = Streams(config.seed).key("own data", client=client)
    own, newcomers = described.build(seed, splits), config.scenario.last_newcomers()
    alarms = leak_sentences(leak(own))
    _log_notes(file, [*own.notes[len(splits.notes) :], *alarms])
    training, facts = config.scenario.clients - newcomers, {"leaks": bool(alarms), "unreadable": splits.unreadable}
    scenario = _with_only_client(own, client, training)
    if newcomers:
        ids = tuple(range(training, config.scenario.clients))
        scenario = replace(scenario, newcomers=_with_only_client(own, client - training, newcomers), newcomer_ids=ids)
    return scenario, facts


def server_data(config: RunConfig, file: Path) -> Dataset:
    """Return all samples that the server's file names: the global test set."""
    _, splits = _read(config, file)
    train, test = splits.train, splits.test
    return replace(train, x=torch.cat([train.x, test.x]), y=torch.cat([train.y, test.y]), group=None)


def count_nodes(config: RunConfig) -> int:
    """Return the number of nodes: of clients that train, and of those that never do."""
    held_out = config.scenario.held_out
    if held_out is None or held_out.domain is None:
        return config.scenario.clients
    # The number of clients in the config does not include those of a held-out domain.
    return nodes_of_scenario(config.scenario.build(config.seed))


def nodes_of_scenario(scenario: Scenario) -> int:
    """Return the number of nodes of a scenario."""
    return scenario.clients + (0 if scenario.newcomers is None else scenario.newcomers.clients)


def server_scenario(config: RunConfig, tests: Dataset | None) -> Scenario:
    """Return the server's scenario if only the nodes can read the data; the server only has the samples of `tests`."""
    nodes, protocols = node_source(config), config.evaluation.tested_protocols
    assert nodes is not None, "a config of nodes"
    if "global/global" in protocols and tests is None:
        raise ConfigError(
            "evaluation.protocol = 'global/global': the server has no test data; name its file (the app's key `test`), "
            "or use global/local, which nodes test on their own data"
        )
    for protocol in (name for name in ("personal/global", "personal/others", "few-shot") if name in protocols):
        raise ConfigError(
            f"evaluation.protocol = '{protocol}': with source nodes use personal/local or global/local, which nodes "
            "test on their own data, or global/global"
        )
    data, described = nodes.placeholder_data(), config.scenario
    newcomers = described.last_newcomers()
    training = described.clients - newcomers
    waiting = stand_in_views(np.ones(training, np.int64))  # until the clients have joined
    streams = Streams(config.seed if described.seed is None else described.seed)
    held_out = described.val if described.split is None else described.split.val
    public = None
    if isinstance(described.public, PublicConfig):
        public = nodes.as_agreed(described.public.load(streams), "scenario.public")
    none, tests = _no_samples(training), data.head(0) if tests is None else tests
    val = waiting if held_out else none
    scenario = Scenario(described.source, data, tests, waiting, val, none, public=public, remote=True)
    if not newcomers:
        return scenario
    waiting, none = stand_in_views(np.ones(newcomers, np.int64)), _no_samples(newcomers)
    ids = tuple(range(training, described.clients))
    return replace(scenario, newcomers=replace(scenario, train=waiting, val=none, test=none), newcomer_ids=ids)


def stand_in_views(sizes: np.ndarray) -> Views:
    """Return placeholder views of clients with `sizes` [N] samples elsewhere, which take no memory for any sizes."""
    return Views(np.lib.stride_tricks.as_strided(np.zeros(1, np.int64), (int(sizes.sum()),), (0,)), starts(sizes))


def _read(config: RunConfig, file: Path) -> tuple[ScenarioConfig, Splits]:
    """Read a node's or the server's file, and the samples that it names, with the agreed classes and features."""
    nodes, agreed = node_source(config), config.scenario
    if nodes is None:
        raise ConfigError(f"{file}: this federation's config describes the data itself (source: {agreed.source})")
    keys = read_yaml(file)
    if not isinstance(keys, dict) or not isinstance(keys.get("source"), str) or keys["source"] == nodes.kind:
        raise ConfigError(f"{file}: need a source with its keys, e.g. `source: csv`, `path: rows.csv`, `label: ill`")
    for key in keys.keys() & (ScenarioConfig.model_fields.keys() - {"source", *_SPLITS, *_GROUPS}):
        raise ConfigError(f"{file}: {key} is no key of a node; use source, its keys, val, split and group")
    shared = {"val": agreed.val} if agreed.split is None else {"split": agreed.split.model_dump()}
    split = {} if keys.keys() & {*_SPLITS} else shared
    try:
        fixed = {"labels": agreed.labels, "partition": "iid", "clients": 1}
        described = parse({"scenario": {**split, **keys, **fixed}}).scenario
        source, _ = described.parts()
        if getattr(source, "drop_columns", None) and nodes.features is None:
            why = "may leave other columns at each node; the federation must name its features"
            raise ConfigError(f"drop_columns {why}")
        paths = {name: file.absolute().parent / value for name, value in source if isinstance(value, Path)}
        splits = load_splits(source.model_copy(update=paths))
        datasets = {"train": splits.train, "test": splits.test}
        notes = [note for name, data in datasets.items() for note in nodes.notes(data, f"{file} ({name})")]
        absent = -1 if getattr(source, "label_separator", None) is None else 0  # a cell names all labels of its row
        train, test = (nodes.as_agreed(data, f"{file} ({name})", absent) for name, data in datasets.items())
        notes = [*splits.notes, *notes]
        _log_notes(file, notes)
        given, bad = splits.validation, splits.unreadable
        return described, Splits(train, test, validation=given, unreadable=bad, notes=tuple(notes))
    except FedloomError as error:
        raise DataError(str(error) if str(file.absolute().parent) in str(error) else f"{file}: {error}") from None


def _log_notes(file: Path, notes: Sequence[str]) -> None:
    for note in notes:
        log("note", {"file": str(file)}, note, logging.WARNING)


def _no_samples(clients: int) -> Views:
    return Views.from_lists([np.zeros(0, np.int64)] * clients)


def _with_only_client(own: Scenario, client: int, clients: int) -> Scenario:
    """Give the samples of a one-client scenario, in the file's order, to `client` if it is one of `clients`."""

    def of_client(views: Views) -> Views:
        if not 0 <= client < clients:
            return _no_samples(clients)
        sizes = np.zeros(clients, np.int64)
        sizes[client] = len(views.order)
        return Views(np.sort(views.order), starts(sizes))

    return replace(own, train=of_client(own.train), val=of_client(own.val), test=of_client(own.test))


BINS = 64  # of a range in which nodes count cells for a median
Ranges = Mapping[str, Sequence[tuple[float, float]]]  # by feature: of the two middle cells
_Bins = Annotated[tuple[Annotated[int, Field(ge=0, le=2**40)], ...], Field(min_length=BINS + 2, max_length=BINS + 2)]
Means = tuple[Annotated[float, Field(ge=-1e30, le=1e30)], ...]  # deviations of such values fit float32
FEWEST_CELLS = 5  # whose moments a node reports where missing cells are imputed
FARTHEST = 30.0  # largest deviation from the median client, over the usual one


class ChannelMoments(Strict, frozen=True):
    """For each reported feature of a node's training samples: the mean, and the sum of squared distances from it.
    observed: cells with a value, where missing ones are imputed; of too few cells all three are 0. bins: by feature,
    the cells below, in the bins of, and above each range that the server asks about."""

    mean: Means
    squares: tuple[Annotated[float, Field(ge=0, le=1e70)], ...]
    observed: tuple[Annotated[int, Field(ge=0, le=2**40)], ...] | None = None
    bins: dict[str, tuple[_Bins, _Bins]] = Field(default_factory=dict)


class Scale(Stored, frozen=True):
    """The common standardisation: nets see (value - mean) / std of each numeric feature; and how cells are imputed."""

    FILE = "flower-scale.json"
    ADVICE = "start the run again in another folder"

    mean: Means
    std: tuple[Annotated[float, Field(gt=0, le=1e35)], ...]
    imputed: tuple[ImputedColumn, ...] = ()

    def apply(self, data: Dataset, nodes: Nodes) -> Dataset:
        """Return `data` with this standardisation; other features stay as they are stored."""
        mean, std, columns = torch.zeros(nodes.input_shape), torch.ones(nodes.input_shape), list(nodes.numeric_features)
        mean[columns], std[columns] = torch.tensor(self.mean), torch.tensor(self.std)
        scaled = replace(data, mean=mean, std=std)
        return impute(scaled, self.imputed)[0] if self.imputed else scaled

    def apply_to_scenario(self, scenario: Scenario, nodes: Nodes) -> Scenario:
        """Return a scenario with this standardisation of all its samples."""
        train, test = (self.apply(data, nodes) for data in (scenario.train_set, scenario.test_set))
        public, newcomers = None if scenario.public is None else self.apply(scenario.public, nodes), scenario.newcomers
        if newcomers is not None:
            newcomers = replace(self.apply_to_scenario(newcomers, nodes), train_set=train)
        return replace(scenario, train_set=train, test_set=test, public=public, newcomers=newcomers)


@dataclass(frozen=True, slots=True)
class ClientMoments:
    """The moments of one client's `samples` training samples."""

    samples: int
    moments: ChannelMoments

    @property
    def counts(self) -> Sequence[int]:
        """The number of cells behind the moments of each feature."""
        observed = self.moments.observed
        return [self.samples] * len(self.moments.mean) if observed is None else observed


def moments_of(
    data: Dataset, rows: np.ndarray, measured: Collection[int], imputes: bool = False, ranges: Ranges | None = None
) -> ChannelMoments:
    """Return the moments of the features `measured` over the training samples `rows` [n], computed in float64. If it
    imputes, over the observed cells, and zeros for fewer than `FEWEST_CELLS`; with the counts of cells in `ranges`."""
    mean, squares, observed, bins = [], [], [], dict[str, Any]()
    for feature in measured:
        values = data.x[torch.from_numpy(rows), feature].numpy().astype(np.float64)
        values = values[~np.isnan(values)]
        values = values[:0] if imputes and len(values) < FEWEST_CELLS else values
        observed.append(len(values))
        varies = len(values) > 0 and values.min() < values.max()  # a constant feature gets exact moments
        mean.append(float(values.mean() if varies else values[0] if len(values) else 0.0))
        squares.append(float(values.var() * len(values)) if varies else 0.0)
        if ranges and (asked := ranges.get(data.features[feature])):
            numbers = [np.searchsorted(_edges(ends), values, "right") for ends in asked]
            bins[data.features[feature]] = tuple(tuple(np.bincount(n, minlength=BINS + 2).tolist()) for n in numbers)
    cells = tuple(observed) if imputes else None
    return ChannelMoments(mean=tuple(mean), squares=tuple(squares), observed=cells, bins=bins)


def measured_names(config: RunConfig) -> tuple[str, ...]:
    """Return the features, or channels, whose moments nodes report: to standardise them, or for `flower.compare`."""
    nodes = node_source(config)
    if nodes is None or nodes.reported_features or "moments" not in config.flower.compare:
        return () if nodes is None else tuple((nodes.features or ())[index] for index in nodes.reported_features)
    return nodes.features or tuple(f"channel {channel}" for channel in range(nodes.input_shape[0]))


def levels_of(data: Dataset, rows: np.ndarray) -> ChannelMoments:
    """Return the moments of each channel or feature over samples [n], zeros for fewer than `FEWEST_CELLS`."""
    x = data.x.numpy()[rows].reshape(len(rows), data.x.shape[1], -1)
    count = len(rows) if len(rows) >= FEWEST_CELLS else 0
    mean, std = channel_moments(x[..., None]) if count else ([0.0] * x.shape[1], [0.0] * x.shape[1])
    return ChannelMoments(mean=tuple(mean), squares=tuple(s**2 * count for s in std), observed=(count,) * len(mean))


def outliers(reported: Mapping[int, ClientMoments], features: Sequence[str]) -> dict[int, str]:
    """Return why clients are refused whose moments are far from clients' medians: they would dominate the scale."""
    if len(reported) < FEWEST:
        return {}
    clients = list(reported)
    means, squares = (np.array([getattr(reported[k].moments, key) for k in clients]) for key in ("mean", "squares"))
    counts = np.array([reported[k].counts for k in clients])
    deviations = np.sqrt(squares / np.maximum(1, counts))
    means = np.where((counts > 0) | ~counts.any(0), means, np.nan)
    centre = np.nanmedian(means, axis=0)
    spread = np.nanmedian(np.sqrt(deviations**2 + (means - centre) ** 2), axis=0)
    # A feature that is constant for most clients has no usual deviation, and only absurd values are refused.
    unit = np.where(spread > 0, spread, 1e6 * np.maximum(1.0, np.abs(centre)) / FARTHEST)
    refused = {}
    for name, values in (("mean", np.abs(means - centre)), ("deviation", deviations)):
        for row, column in zip(*np.nonzero(values > FARTHEST * unit), strict=True):
            if "=" in features[column]:  # the share of a word, which is bounded
                continue
            value = (means if name == "mean" else deviations)[row, column]
            typical_value = (centre if name == "mean" else spread)[column]
            refused[clients[row]] = (
                f"its {name} of '{features[column]}' is {value:.4g}, where the median client's is {typical_value:.4g}; "
                "is it measured in another unit?"
            )
    return refused


def _edges(ends: tuple[float, float]) -> list[float]:
    return np.linspace(*ends, BINS + 1).tolist()  # type: ignore[no-any-return]


def find_medians(scale: Scale, count_cells: Callable[[Ranges], Collection[ClientMoments]]) -> dict[str, float]:
    """Return the medians that `scale` imputes, by column, each off by 1/2048 of the deviation at most. Every median is
    within one deviation of the mean; that range is cut into 64 bins, those with the two middle cells into 64 more, and
    while one has `FEWEST_CELLS` again, up to twice."""
    numbers, step, medians = [rule for rule in scale.imputed if not rule.holds_words], 0, dict[str, float]()
    of_columns = zip(numbers, scale.mean, scale.std, strict=False)  # there are none where no cell is imputed
    ranges = {rule.column: [(m - s, m + s)] * 2 for rule, m, s in of_columns if rule.strategy == "median"}
    while ranges:
        reported, step = count_cells(ranges), step + 1
        for name, asked in [*ranges.items()]:
            counts = np.array([client.moments.bins[name] for client in reported]).sum(0)
            middle = (counts[0].sum() - 1) // 2, counts[0].sum() // 2  # the same one of an odd number of cells
            bins = [int((row.cumsum() <= at).sum().clip(1, BINS)) for row, at in zip(counts, middle, strict=True)]
            ranges[name] = [(_edges(ends)[k - 1], _edges(ends)[k]) for ends, k in zip(asked, bins, strict=True)]
            if step == 4 or (step > 1 and counts[[0, 1], bins].max() < FEWEST_CELLS):
                medians[name] = sum(_shortest(*ends) for ends in ranges.pop(name)) / 2
    return medians


def _shortest(low: float, high: float) -> float:
    """Return the number of the fewest digits between two close ones: that of the cells, if they have few."""
    middle = (low + high) / 2
    return next((value for digits in range(-15, 16) if low <= (value := round(middle, digits)) <= high), middle)


def pool_moments(
    reported: Collection[ClientMoments], nodes: Nodes | None = None, medians: Mapping[str, float] | None = None
) -> Scale:
    """Return mean and deviation over all samples, in float64; a constant feature gets 1. If nodes impute: of numeric
    features alone, and cells' values, with `medians` by column. Raises `DataError` for a column without one."""
    samples = np.array([client.counts for client in reported], np.float64)
    means, squares = (np.array([getattr(client.moments, key) for client in reported]) for key in ("mean", "squares"))
    observed = samples.sum(0)
    mean = (samples * means).sum(0) / np.maximum(1, observed)
    # The mean of equal numbers may differ from them in its last bit, which would give a constant feature a deviation.
    first = means[(samples > 0).argmax(0), np.arange(len(mean))]
    mean = np.where(((means == first) | (samples == 0)).all(0), first, mean)
    variance = (squares + samples * (means - mean) ** 2).sum(0) / np.maximum(1, observed)
    std, imputed = np.where(variance > 0, np.sqrt(variance), 1.0), list[ImputedColumn]()
    if nodes is None or not nodes.rules:
        return Scale(mean=tuple(mean.tolist()), std=tuple(std.tolist()))
    cells = np.rint(samples * means.clip(0, 1)).sum(0)  # of words: how many cells hold them
    index = {(nodes.features or ())[feature]: index for index, feature in enumerate(nodes.reported_features)}
    for rule in nodes.rules:
        at = [index[name] for name in rule.features]
        count, value = int(observed[at[0]]), rule.word(cells[at]) if rule.holds_words else float(mean[at[0]])
        value = (medians or {}).get(rule.column, value) if variance[at[0]] else value
        if not count:
            raise unobserved_error(rule.column)
        facts = {"observed": count, "missing": sum(client.samples for client in reported) - count}
        imputed.append(rule.model_copy(update={"value": value if rule.value is None else rule.value, **facts}))
    numeric = [nodes.reported_features.index(feature) for feature in nodes.numeric_features]
    return Scale(mean=tuple(mean[numeric].tolist()), std=tuple(std[numeric].tolist()), imputed=tuple(imputed))
