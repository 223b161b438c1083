"""The cluster that is there, or not: then one line says what to do."""

import os
import socket
import subprocess
import sys
from types import SimpleNamespace

import pytest

from fedloom.core.errors import ConfigError
from fedloom.engine.ray import connected

CONFIG = """
method: fedavg
model: mlp
rounds: 1
local_epochs: 1
engine: ray
scenario: {source: digits, partition: iid, clients: 2}
"""


def test_without_ray_one_line_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"^engine: ray: Ray is not installed; pip install 'fedloom\[ray\]'$"):
        connected("engine: ray").__enter__()


def test_an_address_at_which_nobody_answers_is_named_at_once(monkeypatch):
    """Ray would wait for minutes, and end the process."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{taken.getsockname()[1]}")
        monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False))
        with pytest.raises(ConfigError, match=r"^--on ray: no cluster answers at RAY_ADDRESS = 127\.0\.0\.1:\d+; "):
            connected("--on ray").__enter__()


def fedloom(tmp_path, **surroundings):
    """What a command in a process of its own exits with and says."""
    (tmp_path / "mine.yaml").write_text(CONFIG)
    words = [sys.executable, "-m", "fedloom", "run", str(tmp_path / "mine.yaml"), "--out", str(tmp_path / "run"), "-q"]
    kept = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    done = subprocess.run(words, env=kept | surroundings, capture_output=True, text=True, timeout=100)
    return done.returncode, done.stderr


def test_without_a_cluster_one_line_says_how_to_start_one(ray, tmp_path):
    code, said = fedloom(tmp_path, RAY_TMPDIR=str(tmp_path))
    assert (code, said.count("\n")) == (2, 1)
    assert "engine: ray: no Ray cluster is there; start one with `ray start --head` (Ray: " in said


def test_a_command_finds_the_cluster_that_is_there(tmp_path, cluster):
    assert fedloom(tmp_path, RAY_ADDRESS=cluster) == (0, "")


def test_another_version_of_fedloom_on_a_node_is_refused(cluster, monkeypatch):
    monkeypatch.setattr("fedloom.engine.ray.__version__", "0.0.1")
    with connected("engine: ray") as there:
        calls = [("one", there.call(os.getpid))]
        with pytest.raises(ConfigError, match=r"^node .* has fedloom .*, and this one 0\.0\.1; install the same"):
            list(there.ended(calls))
