"""The number of clients that data decide."""

import os
from pathlib import Path

import numpy as np
import pytest

import fedloom
from fedloom.core.errors import ConfigError, DataError
from fedloom.data.sources.tables.formats import Csv
from fedloom.runs.config.run_config import load, parse

ROWS = [f"{n}.5,{'NSEW'[n % 4]},{'yn'[n // 4 % 2]}" for n in range(80)]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "patients.csv"
    path.write_text("\n".join(["age,ward,ill", *ROWS]) + "\n", encoding="utf-8")
    return path


def clients(table: Path, **keys: object) -> int:
    scenario = {"source": "csv", "path": str(table), "label": "ill", "owner": "ward", "partition": "natural", **keys}
    return parse({"scenario": scenario}).scenario.clients


def test_owners_are_counted_where_clients_is_not_given(table: Path) -> None:
    assert clients(table) == 4
    scenario = parse(
        {"scenario": {"source": "csv", "path": str(table), "label": "ill", "owner": "ward", "partition": "natural"}}
    )
    assert scenario.scenario.build(0).clients == 4


def test_counted_owners_are_the_same_run_as_given_ones(table: Path) -> None:
    keys = {"source": "csv", "path": str(table), "label": "ill", "owner": "ward", "partition": "natural"}
    assert parse({"scenario": keys}).fingerprint() == parse({"scenario": {**keys, "clients": 4}}).fingerprint()


def test_what_is_given_stays(table: Path) -> None:
    assert clients(table, clients=2, sample_ids=True) == 2
    assert clients(table, clients=3) == 3  # refused when it is dealt
    assert clients(table, sample_ids=True) == 10
    assert clients(table, partition="iid") == 10


def test_owners_of_a_file_are_counted(tmp_path: Path) -> None:
    np.save(tmp_path / "owners.npy", np.array(["ann", "bob", "ann", "cy"]))
    keys = {"source": "digits", "partition": "natural", "owners": str(tmp_path / "owners.npy")}
    assert parse({"scenario": keys}).scenario.clients == 3


def test_a_partition_by_owners_that_is_typed_drops_the_clients_of_the_file(table: Path, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(
        f"scenario: {{source: csv, path: {table}, label: ill, owner: ward, partition: iid, clients: 3}}\n",
        encoding="utf-8",
    )
    assert parse(load(path, ["scenario.partition=natural"])).scenario.clients == 4
    assert parse(load(path, ["scenario.partition=natural", "scenario.clients=3"])).scenario.clients == 3


def test_data_without_owners_and_missing_data_are_refused_in_one_line(table: Path) -> None:
    with pytest.raises(ConfigError, match="this source has no domains"):
        parse({"scenario": {"source": "digits", "partition": "natural"}})
    with pytest.raises(DataError, match="no-such"):
        clients(table.with_name("no-such.csv"))


def test_owners_from_python_are_recorded_as_natural_and_older_runs_keep_their_fingerprint() -> None:
    x = np.random.default_rng(0).normal(size=(40, 3)).astype("float32")
    y = np.arange(40) % 2
    scenario = fedloom.scenario([(x[:20], y[:20]), (x[20:], y[20:])])
    result = fedloom.run("fedavg", scenario=scenario, rounds=1, engine="serial")
    assert result.config["scenario"]["partition"] == "natural"
    given = {"source": "given", "digest": scenario.digest(), "clients": 2}
    natural, earlier = (parse({"scenario": {**given, "partition": name}}) for name in ("natural", "iid"))
    assert natural.fingerprint() == earlier.fingerprint()


def test_a_study_reads_the_owners_once(tmp_path, monkeypatch):
    file, reads, load = tmp_path / "a.csv", [], Csv.load
    file.write_text("x,owner,y\n" + "".join(f"{k},{k % 3},{k % 2}\n" for k in range(24)))
    monkeypatch.setattr(Csv, "load", lambda source: reads.append(source) or load(source))
    scenario = {"source": "csv", "path": str(file), "label": "y", "owner": "owner", "partition": "natural"}
    configs = [parse({"method": method, "scenario": scenario}) for method in ("fedavg", "fedprox", "fedsc")]
    assert [config.scenario.clients for config in configs] == [3, 3, 3]
    assert len(reads) == 1
    file.write_text("x,owner,y\n" + "".join(f"{k},{k % 4},{k % 2}\n" for k in range(24)))
    os.utime(file, ns=(1, 1))
    assert parse({"scenario": scenario}).scenario.clients == 4
