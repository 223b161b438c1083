"""Partitions as index lists in a file: write one, read one back."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from fedloom.core.errors import DataError
from fedloom.core.files import parse_json, write_atomic
from fedloom.data.dataset import Dataset, sets_digest
from fedloom.data.partitions.partition import Dealt, Partition, partition
from fedloom.data.scenario import Scenario
from fedloom.data.views import Indices, Views

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
    partition_file: Path = Field(
        description="Path of the JSON file with the index lists of the clients.", examples=["dealt.json"]
    )

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
    """Write a scenario's index lists as JSON: client -> train, val, test, with class counts, and `config` as given.

    Indices count samples in the source's order, whatever a skew has left out: in its training set, and for `test` in
    its official test set (for a scenario with `split` in the clients' pool: the training set, then the test set)."""
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
        raise DataError(
            f"{path}: draws = {draws!r}, accepted = {accepted!r}; need whole numbers, 1 <= accepted <= draws"
        )
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
