"""Every benchmark is listed, and those that need no peers or hours run with everything tiny."""

import ast
import functools
import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import __main__ as command
from benchmarks import bounds, data, gpu, hostile, kernels, needs, privacy, workloads

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "benchmarks").rglob("*.py"))
# Parts of `engines` that start no processes of their own but those of the engine.
PARTS = "cnn,logistic-sizes,command,memory,scale,partition,evaluation,short-runs,methods,every-round,operations,no-op"


def output_of(name: str, *arguments: str) -> str:
    """Run a benchmark and return what it prints; it must end well."""
    words = [sys.executable, "-m", "benchmarks", name, *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(words, capture_output=True, text=True, check=False, env=environment, cwd=ROOT)
    assert ran.returncode == 0, ran.stderr[-3000:]
    return ran.stdout


def test_all_benchmarks_are_listed_with_their_purpose(capsys):
    assert command.main([]) == 0
    printed = capsys.readouterr().out
    for name in command.NAMES:
        assert f"  {name.replace('_', '-')} " in printed
        assert callable(importlib.import_module(f"benchmarks.{name}").main)
    assert command.main(["engine"]) == 2


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_of_a_benchmark_are_there(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "fedloom":
            module = importlib.import_module(str(node.module))
            lost = [a.name for a in node.names if not hasattr(module, a.name) and not _is_module(node.module, a.name)]
            assert not lost, f"{node.module} has no {', '.join(lost)}"


def _is_module(package: str | None, name: str) -> bool:
    return importlib.util.find_spec(f"{package}.{name}") is not None


@pytest.mark.matrix
def test_the_bench_of_engines_runs():
    printed = output_of("engines", "--smoke", "--only", PARTS)
    assert "it runs" in printed
    assert "short-runs: 50 rounds: default / former default" in printed
    assert '"pfedme: operations / fedavg\'s": 5.0' in printed


@pytest.mark.matrix
def test_the_bench_of_a_gpu_runs_on_a_cpu():
    lines = [line for line in output_of("gpu", "--device", "cpu", "--smoke").splitlines() if ": {" in line]
    parts = {part: json.loads(figures) for part, _, figures in (line.partition(": ") for line in lines)}
    works = [f"{kind}, {work}" for kind in ("float32", "methods", "whole-runs", "peers") for work in workloads.ON_GPU]
    assert {*works, "bits, fedavg", "bits, fedsc", "bfloat16, mlp", "tf32, mlp"} <= parts.keys()
    assert all(figures["same bits"] for part, figures in parts.items() if "bits, " in part)
    assert parts["bits, fedavg"]["batched"]["difference"] < 1e-5
    assert parts["float32, lenet"]["serial"]["replayed"] > 0
    left_out = {name for figures in parts.values() for name in figures.get("left out", {})}
    assert left_out <= {"serial", "batched", "jax"}
    assert not any(parts[work].get("left out") for work in works if not work.startswith("peers"))


def test_bits_and_differences_of_weights():
    weights = [torch.tensor([1.0, float("nan"), float("inf")]), torch.tensor([3])]
    assert gpu.difference(weights, [weight.clone() for weight in weights]) == 0
    assert gpu.difference(weights, [weights[0], torch.tensor([5])]) == 0.5
    assert gpu.difference(weights, [torch.ones(3), weights[1]]) == float("inf")
    assert gpu.sha256(weights) == gpu.sha256([weight.clone() for weight in weights])
    assert gpu.sha256([torch.tensor([0.0])]) != gpu.sha256([torch.tensor([-0.0])])


def test_parts_on_a_gpu_are_kept_one_by_one_and_measured_once(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(data, "RESULTS", tmp_path)
    measured = []

    def part(name):
        measured.append(name)
        return {"serial": {"median": 0.5}, "same bits": 1 / len(name) == 1.0}

    parts = {name: functools.partial(part, name) for name in ("a", "", "b")}
    results = {"environment": {"device": "cuda", "versions": {"torch": "2.11"}}}
    assert not gpu.measure_parts(parts, results, 7.0)
    assert "\n: ZeroDivisionError: " in capsys.readouterr().out
    assert data.read_results("gpu") == results
    assert gpu.measure_parts({"a": parts["a"]}, data.read_results("gpu"), 7.0)
    assert gpu.measure_parts({"c": functools.partial(part, "c")}, data.read_results("gpu"), -1.0)
    assert measured == ["a", "", "b"]
    assert "minutes are over; the same command continues with c" in capsys.readouterr().out


def test_a_hostile_node_and_a_curious_server_are_measured(capsys):
    hostile.main(["--methods", "fedavg", "--attacks", "x100", "--rounds", "1", "--epochs", "1"])
    privacy.main(["--only", "labels", "--methods", "fedavg", "--seeds", "1"])
    privacy.main(["--only", "stages", "--methods", "fedncm", "fedavg", "--seeds", "1", "--rounds", "1"])
    first, second, third = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"fedavg: honest [\d.]+, x100 [\d.]+", first)
    assert json.loads(second)["from"] == ["last layer"]
    closing = json.loads(third)  # fedavg has neither an opening nor a closing round
    assert (closing["method"], closing["stage"], closing["error"]) == ("fedncm", "closing", 0)
    assert closing["means.lone"] > closing["means.inverted"] > closing["means.mean image"]


def test_own_kernels_are_compared(capsys, monkeypatch):
    monkeypatch.setattr(kernels, "SECONDS", 0.0)
    monkeypatch.setattr(kernels, "IN_OUT", "1-6")
    monkeypatch.setattr(kernels.MODELS, "names", lambda: ["digits-cnn"])
    kernels.main([])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == [*["1"] * len(kernels.SIDES), *["2x2"] * 5, "digits-cnn"]


def test_what_is_missing_is_named_before_anything_is_installed(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(needs, "FASHION_MNIST", tmp_path / "nothing")
    assert needs.main([]) == 1
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
