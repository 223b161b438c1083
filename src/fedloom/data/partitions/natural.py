"""Clients that come with the data, from a partitioner of flwr-datasets, or as index lists in a file."""

import hashlib
import importlib
import inspect
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from fedloom.core.errors import ConfigError, DataError, suggest_name
from fedloom.core.files import parse_json, write_atomic
from fedloom.data.dataset import Dataset, sets_digest
from fedloom.data.partitions.domains import domains_of
from fedloom.data.partitions.partition import Dealt, Partition, deal_alike, partition
from fedloom.data.scenario import Scenario
from fedloom.data.views import Indices, Views

_SHOWN_OWNERS = 5  # in a note


@partition("natural")
class Natural(Partition):
    """One client per id: per writer, hospital, device. Ids are the source's domains, or come from a file.

    Without ids of the test samples, these are dealt in each client's share of each class. Clients follow the sorted ids
    (the source's order for domains). The number of clients is the number of ids, and a config may leave it out.

    Example:
        >>> data = labels_only([0, 1, 1], domain=[1, 0, 1], domains=["north", "south"])
        >>> Natural().deal(data, data, 2, rng).train.sizes
        array([1, 2])
    """

    takes_multi = True
    deals = "rows"
    owners: Path | None = Field(None, examples=["writers.npy"])
    test_owners: Path | None = None
    sample_ids: bool = False

    def count_clients(self, load: Callable[[], Dataset]) -> int | None:
        if self.sample_ids:
            return None
        if self.owners is None:
            return len(np.unique(domains_of(self, load())))
        return len(np.unique(_read(self.owners, None, "training")))

    def without_domain(self, domain: int, clients: int) -> tuple[Partition, int]:
        return self, clients - 1 if self.owners is None and not self.sample_ids else clients

    def deal(self, train: Dataset, test: Dataset, clients: int, rng: np.random.Generator) -> Dealt:
        if self.test_owners is not None and self.owners is None:
            raise self.refusal("test_owners without owners; name the file with the training ids too")
        if self.owners is None:
            ids, test_ids = domains_of(self, train), None if test.domain is None else test.domain.numpy()
        else:
            ids = _read(self.owners, len(train), "training")
            test_ids = None if self.test_owners is None else _read(self.test_owners, len(test), "test")
        present = np.unique(ids)
        if clients > len(present) or (clients < len(present) and not self.sample_ids):
            fewer = "" if clients > len(present) else ", or sample_ids=true to leave the other ids out"
            raise ConfigError(
                f"scenario.clients = {clients}: partition natural makes one client per id and the data have "
                f"{len(present)}; need clients={len(present)}{fewer}"
            )
        chosen = np.sort(rng.choice(present, clients, replace=False)) if self.sample_ids else present
        views = Views.from_owners(_positions(chosen, ids), clients)
        if test_ids is None:
            return Dealt(views, deal_alike(views, train.y.numpy(), test.y.numpy(), train.num_classes, rng))
        names = train.domains if self.owners is None else None
        notes = _untrained_owners(test_ids[_positions(present, test_ids) < 0], len(test_ids), names)
        return Dealt(views, Views.from_owners(_positions(chosen, test_ids), clients), notes=notes)


def _untrained_owners(ids: np.ndarray, test_samples: int, names: Sequence[str] | None) -> tuple[str, ...]:
    """Return a note on the test samples [n] of owners (`names`) without training samples, or nothing."""
    if not len(ids):
        return ()
    counts = Counter(ids.tolist() if names is None else [names[owner] for owner in ids.tolist()])
    listed = ", ".join(f"{count:,} of '{owner}'" for owner, count in counts.most_common(_SHOWN_OWNERS))
    more = f", and those of {len(counts) - _SHOWN_OWNERS:,} more" if len(counts) > _SHOWN_OWNERS else ""
    counted = f"{len(ids):,} of {test_samples:,} ({listed}{more})"
    return (f"test samples of owners without training samples, which are in no client's test: {counted}",)


def _positions(names: np.ndarray, ids: np.ndarray) -> Indices:
    """Return the index of each of `ids` in the sorted `names`; -1 if it is missing."""
    # An id above all names has the position behind the last one, where there is no name to compare.
    positions = np.minimum(np.searchsorted(names, ids), len(names) - 1)
    return np.where(names[positions] == ids, positions, -1).astype(np.int64)


def _read(path: Path, samples: int | None, split: str) -> np.ndarray:
    try:
        ids: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)  # checks the size it states
    except Exception as error:  # numpy has no one kind of error for damaged headers
        raise DataError(f"partition natural: {path}: not readable as .npy: {' '.join(str(error).split())}") from None
    if not isinstance(ids, np.ndarray) or ids.ndim != 1 or samples not in (None, len(ids)):
        need = f"need one for each of {'the' if samples is None else samples} {split} samples"
        raise DataError(f"partition natural: {path} holds ids of shape {getattr(ids, 'shape', '?')}; {need}")
    if ids.dtype.kind not in "iuU":
        raise DataError(f"partition natural: {path} holds {ids.dtype}; need whole numbers or words")
    return ids


@partition("flower")
class Flower(Partition):
    """Any partitioner of flwr-datasets, chosen by class name.

    It sees the columns `label`, `domain` (where the source has domains) and `index`. Test samples are dealt in each
    client's share of each class. Needs flwr-datasets, an extra.

        scenario: {source: digits, partition: flower, partitioner: DirichletPartitioner, options: {alpha: 0.3}}"""

    partitioner: str = Field(examples=["ShardPartitioner"])
    options: dict[str, Any] = Field(default_factory=dict)

    def deal(self, train: Dataset, test: Dataset, clients: int, rng: np.random.Generator) -> Dealt:
        partitioner_class, table = self._kind(), self._table(train)
        defaults = {"num_partitions": clients, "partition_by": "label", "seed": int(rng.integers(2**31))}
        parameters = inspect.signature(partitioner_class).parameters
        options = {key: value for key, value in defaults.items() if key in parameters} | self.options
        for key in options:
            if key not in parameters:
                raise self.refusal(f"{self.partitioner} has no option '{key}': {suggest_name(key, parameters)}")
        try:
            partitioner = partitioner_class(**options)
            partitioner.dataset = table
            # Asked after the data are set: partitioners by a column count its values.
            if partitioner.num_partitions != clients:
                raise ConfigError(
                    f"scenario.clients = {clients}: {self.partitioner} makes {partitioner.num_partitions} partitions "
                    f"of these data; need clients={partitioner.num_partitions}"
                )
            lists = [np.array(partitioner.load_partition(client)["index"], np.int64) for client in range(clients)]
        except (ValueError, TypeError, KeyError) as error:
            raise self.refusal(f"{self.partitioner} refused: {' '.join(str(error).split())}") from None
        views = Views.from_lists(lists)
        return Dealt(views, deal_alike(views, train.y.numpy(), test.y.numpy(), train.num_classes, rng))

    def _kind(self) -> Any:
        try:
            partitioners = importlib.import_module("flwr_datasets.partitioner")
        except ImportError:
            raise self.refusal("flwr-datasets is not installed; install fedloom[flower-datasets]") from None
        names = [name for name in dir(partitioners) if name.endswith("Partitioner") and name != "Partitioner"]
        if self.partitioner not in names:
            raise self.refusal(f"no partitioner '{self.partitioner}': {suggest_name(self.partitioner, names)}")
        return getattr(partitioners, self.partitioner)

    @staticmethod
    def _table(train: Dataset) -> Any:
        columns = {"index": np.arange(len(train)), "label": train.y.numpy()}
        if train.domain is not None:
            columns["domain"] = train.domain.numpy()
        return importlib.import_module("datasets").Dataset.from_dict(columns)


_FORMAT = "fedloom indices 1"


@partition("indices")
class IndexLists(Partition):
    """The index lists of a JSON file, as `export_indices` writes them.

    The least that such a file must hold is {"clients": [{"train": [3, 5], "test": [0]}, ...]}; `test` and `val` may
    be missing. Lists of validation samples are taken as they are; without them the scenario's `val` holds out its
    share. An exported file names the source's classes and sizes, and is refused for other data.

        scenario: {source: digits, partition: indices, partition_file: dealt.json, clients: 10}"""

    takes_thinned, takes_multi = False, True
    deals = "rows"
    partition_file: Path = Field(examples=["dealt.json"])

    def deal(self, train: Dataset, test: Dataset, clients: int, rng: np.random.Generator) -> Dealt:
        path = self.partition_file
        content = _load(path)
        dealt = _dealt(path, content)
        self.require_clients(clients, len(dealt.train), f"reads {path}, which holds {len(dealt.train)} clients")
        facts = source_facts(train, test)
        if "source_digest" in content:
            facts["source_digest"] = sets_digest([train, test])
        for key, value in facts.items():
            if key in content and content[key] != value:
                raise DataError(f"{path}: was made of other data ({key} differ)")
        pool_size = len(train) + len(test) * (dealt.test_rows == "train+test")
        test_limit = len(test) if dealt.test_rows == "official" else pool_size
        for split, limit in (("train", pool_size), ("val", pool_size), ("test", test_limit)):
            views = getattr(dealt, split)
            if views is not None and len(views.order) and views.order.max() >= limit:
                outside = f"{split} index {views.order.max()} is outside 0 .. {limit - 1}"
                raise DataError(f"{path}: {outside}, the samples that there are")
        return dealt


def export_indices(scenario: Scenario, path: Path, *, config: Mapping[str, Any] | None = None) -> None:
    """Write a scenario's index lists as JSON: client -> train, val, test, with class counts, and `config`. Indices
    count samples in the source's order; with `split`, the test rows are in the training set, then the test set."""
    test = scenario.test if scenario.test_rows is None else scenario.test.renumber(scenario.test_rows)
    counts = scenario.class_counts()
    lists: dict[str, Any] = {"train": scenario.train, "val": scenario.val, "test": test, "class_counts": counts}
    clients = [{key: rows[client].tolist() for key, rows in lists.items()} for client in range(scenario.clients)]
    header: dict[str, Any] = {
        "format": _FORMAT,
        "source": scenario.name,
        "classes": list(scenario.train_set.classes),
        "test_rows": scenario.test_origin,
        "draws": scenario.draws,
        "accepted": scenario.accepted,
        "config": dict(config) if config is not None else None,
    }
    # Not with `split`: its sets are parts of a pool, while `deal` compares those of the source.
    if scenario.test_origin == "official":
        header |= source_facts(scenario.train_set, scenario.test_set)
        if scenario.source_digest:  # of the samples before a skew, which may rename the test labels
            del header["test_labels_sha256"]
            header["source_digest"] = scenario.source_digest
    write_atomic(path, json.dumps(header | {"clients": clients}))


def _load(path: Path) -> dict[str, Any]:
    try:
        content = parse_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{path}: no such file of index lists") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: not readable as JSON: {' '.join(str(error).split())}") from None
    clients = content.get("clients") if isinstance(content, dict) else None
    if not isinstance(clients, list) or not clients or not all(isinstance(c, dict) and "train" in c for c in clients):
        raise DataError(f"{path}: holds no index lists; need {{'clients': [{{'train': [...], 'test': [...]}}, ...]}}")
    return {**content}


def _dealt(path: Path, content: dict[str, Any]) -> Dealt:
    clients: list[dict[str, Any]] = content["clients"]
    rows = content.get("test_rows", "official")
    if rows not in ("official", "train", "train+test"):
        raise DataError(f"{path}: test_rows = {rows!r}; need official, train or train+test")
    views = {split: _views(path, clients, split) for split in ("train", "val", "test")}
    # Official test samples are another set, in which clients may share samples.
    owned_rows = np.concatenate([views[split].order for split in views if split != "test" or rows != "official"])
    duplicates = np.flatnonzero(np.bincount(owned_rows) > 1)
    if len(duplicates):
        raise DataError(f"{path}: sample {duplicates[0]} is listed twice; a training sample has one owner and one use")
    val = views["val"] if any("val" in client for client in clients) else None
    draws, accepted = (content.get(key, 1) for key in ("draws", "accepted"))
    # By type: true and false are integers to isinstance.
    if not (type(draws) is type(accepted) is int and 1 <= accepted <= draws):
        need = "need whole numbers, 1 <= accepted <= draws"
        raise DataError(f"{path}: draws = {draws!r}, accepted = {accepted!r}; {need}")
    return Dealt(views["train"], views["test"], draws, accepted, val, rows)


def _views(path: Path, clients: list[dict[str, Any]], split: str) -> Views:
    lists: list[Indices] = []
    for number, client in enumerate(clients):
        listed = client.get(split, [])
        if not isinstance(listed, list) or any(type(index) is not int or index < 0 for index in listed):
            raise DataError(f"{path}: client {number}, {split}: need a list of whole numbers from 0 on")
        lists.append(np.array(listed, np.int64))
    return Views.from_lists(lists)


def source_facts(train: Dataset, test: Dataset) -> dict[str, Any]:
    """Return facts that identify a source: sizes, classes, order of the test labels."""
    digest = hashlib.sha256(test.y.contiguous().numpy().data).hexdigest()
    return {
        "classes": list(train.classes),
        "train_samples": len(train),
        "test_samples": len(test),
        "test_labels_sha256": digest,
    }
