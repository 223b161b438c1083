"""Every script of `make bench` runs, with everything tiny and without peers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import bounds
import needs

FOLDER = Path(__file__).parents[2] / "benchmarks"
# Parts of engines.py that start no processes of their own but those of the engine.
PARTS = "cnn,logistic-sizes,command,memory,scale,evaluation,short-runs,methods,every-round"


def output_of(script: str, *arguments: str) -> str:
    """What a script prints; it must end well."""
    words = [sys.executable, str(FOLDER / script), "--smoke", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
    assert ran.returncode == 0, ran.stderr[-3000:]
    return ran.stdout


def test_the_bench_of_engines_runs():
    printed = output_of("engines.py", "--only", PARTS)
    assert "it runs" in printed
    assert "short-runs: 50 rounds: default / former default" in printed


@pytest.mark.parametrize("script", ["overhead.py", "steps.py"])
def test_the_bench_of_rounds_and_of_steps_run(script):
    assert "fed" in output_of(script)


def test_time_is_compared_with_operations():
    assert "pfedme: 5.00 times the operations" in output_of("operations.py", "pfedme")


def test_the_bench_of_a_gpu_runs_and_goes_on(tmp_path):
    results = tmp_path / "gpu.json"
    arguments = ("--device", "cpu", "--json", str(results))
    assert "copies: {" in output_of("gpu.py", *arguments, "--only", "copies")
    printed = output_of("gpu.py", *arguments)
    assert "copies: measured before" in printed
    assert set(json.loads(results.read_text())) >= {"step", "round", "copies", "evaluation", "fedsc"}
    assert "0 minutes are over" in output_of("gpu.py", "--device", "cpu", "--minutes", "0", "--only", "fedsc")


def test_what_is_missing_is_named_before_anything_is_installed(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(needs, "FASHION_MNIST", tmp_path / "nothing")
    monkeypatch.setattr(sys, "argv", ["needs.py"])
    assert needs.main() == 1
    lines = capsys.readouterr().out.splitlines()
    assert "MISSING the data set Fashion-MNIST: install Debian's package dataset-fashion-mnist" in lines
    assert sum(line.startswith("MISSING") for line in lines) >= 1


def test_a_bound_is_met_missed_or_not_measured():
    least, most = bounds.Bound("p", "a / b", 2.0), bounds.Bound("p", "a / b", 2.0, most=True)
    results = {"p": {"figures": {"a / b": 2.5}, "ranges": {"a / b": [2.1, 2.9]}}}
    assert least.judged(results)["verdict"] == "MET"
    assert most.judged(results)["verdict"] == "MISSED"
    assert bounds.range_of(least.judged(results)) == " (2.1 to 2.9)"
    assert least.judged({"p": {"left out": {"b": "no Python"}}})["verdict"] == "no Python"
    assert least.judged({})["verdict"] == "not measured"
