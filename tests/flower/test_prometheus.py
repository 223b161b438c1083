"""The status as Prometheus text on a port of the loopback."""

import socket
import sys
import urllib.request

import pytest

from fedloom.core.errors import ConfigError, RunFolderError
from fedloom.flower.processes import free_ports
from fedloom.flower.status import NodeStatus, StatusWriter, serve_metrics
from flower_world import config_of


@pytest.fixture
def board(tmp_path):
    made = StatusWriter(config_of(), tmp_path)
    made.begin("ab12", 1)
    return made


def test_a_scrape_tells_how_the_run_is_now(board, tmp_path):
    parser = pytest.importorskip("prometheus_client.parser", reason="needs the extra prometheus")
    (port,) = free_ports(1)
    end = serve_metrics(tmp_path, port)
    try:
        board.set_nodes(
            [
                NodeStatus(client=0, node="7", online=True, samples=3),
                NodeStatus(client=1, node="8", online=False, samples=3),
            ]
        )
        board.set_wait("uploads of round 2", [1], 60.0)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as reply:
            text = reply.read().decode()
    finally:
        end()
    found = {
        family.name: sample.value
        for family in parser.text_string_to_metric_families(text)
        for sample in family.samples
        if sample.labels == {"run": "ab12", "method": "fedavg"}
    }
    assert (found["fedloom_round"], found["fedloom_rounds"], found["fedloom_nodes"]) == (1, 3, 1)
    assert (found["fedloom_waiting_clients"], found["fedloom_refused"], found["fedloom_failed"]) == (1, 0, 0)
    with socket.socket() as one:
        assert one.connect_ex(("127.0.0.1", port)) != 0


def test_without_the_package_the_extra_is_named(board, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ConfigError, match=r"pip install 'fedloom\[prometheus\]'"):
        serve_metrics(tmp_path, free_ports(1)[0])


def test_no_run_and_a_port_in_use_are_named(board, tmp_path):
    pytest.importorskip("prometheus_client", reason="needs the extra prometheus")
    with pytest.raises(RunFolderError, match="name the folder of a run over Flower"):
        serve_metrics(tmp_path / "nothing", free_ports(1)[0])
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        one.listen()
        with pytest.raises(ConfigError, match="cannot be used"):
            serve_metrics(tmp_path, one.getsockname()[1])
