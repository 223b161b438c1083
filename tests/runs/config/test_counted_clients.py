"""Owners are counted once for all configs of a study, and anew once their file has changed."""

import os

from fedloom.data.sources.tables.formats import Csv
from fedloom.runs.config.run_config import parse


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
