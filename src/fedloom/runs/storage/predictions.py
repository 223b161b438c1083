"""predictions.parquet: the scores of single samples in the last test of a run."""

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedloom.data.scenario import Scenario
from fedloom.evaluation.metrics.basic import SampleScores
from fedloom.runs.storage.run_folder import PREDICTIONS

if TYPE_CHECKING:
    from fedloom.runs.config.run_config import RunConfig


def no_predictions(config: "RunConfig", in_memory: bool, over_nodes: bool) -> str | None:
    """Say why a run of `config`, perhaps in_memory or over_nodes, cannot write predictions; None if it can."""
    if over_nodes or config.scenario.source == "nodes":
        return "scores of single samples never leave a node"
    if config.evaluation.protocol == "few-shot":
        return "few-shot draws episodes of samples; take another protocol"
    if config.scenario.labels == "multi":
        return "a row holds one label, and samples of these data have several; leave it out"
    return "they are written to a run folder; give the run one (out=...)" if in_memory else None


def write_predictions(folder: Path, scenario: Scenario, salt: str, tests: Iterable[tuple[int, SampleScores]]) -> None:
    """Write a row for each tested sample of the main protocol, test by test: row in the test set, client, group (a hash
    with the salt), label, logits. tests: with the client whose test it is, below 0 for the holder of each sample."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    data, holders = scenario.test_set, scenario.test.owner_of(len(scenario.test_set))
    scores = pa.list_(pa.float32(), data.num_classes)
    types = {"row": pa.int64(), "client": pa.int64(), "group": pa.string(), "label": pa.int64(), "logits": scores}
    with pq.ParquetWriter(folder / f".{PREDICTIONS}", pa.schema(types)) as writer:
        for client, samples in tests:
            rows = samples.indices.numpy()
            clients = holders[rows] if client < 0 else np.full(len(rows), client)
            ids = [] if data.group is None else data.group[samples.indices].tolist()
            hashes: list[str | None] = [hashlib.sha256(f"{salt}/{k}".encode()).hexdigest()[:16] for k in ids]
            logits = pa.array(samples.logits.float().numpy().ravel())
            columns = [
                pa.array(rows),
                pa.array(clients, mask=clients < 0),
                pa.array(hashes or [None] * len(rows), pa.string()),
                pa.array(data.y[samples.indices].numpy()),
                pa.FixedSizeListArray.from_arrays(logits, data.num_classes),
            ]
            writer.write_table(pa.Table.from_arrays(columns, schema=writer.schema))
    (folder / f".{PREDICTIONS}").replace(folder / PREDICTIONS)
