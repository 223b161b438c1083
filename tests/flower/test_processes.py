"""Processes that are started are ended, with all that they started; and the result that a run leaves."""

import contextlib
import json
import socket
import sys
import time
import traceback
import urllib.request
from pathlib import Path

import pytest

from fedloom.core.errors import ConfigError
from fedloom.flower.findings import require_free
from fedloom.flower.node_registry import FederationError
from fedloom.flower.processes import ChildProcesses, family, free_ports, without_proxy
from fedloom.flower.status import Failure
from fedloom.flower.up import collect_result

PARENT = """
import subprocess, sys
subprocess.run([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
"""


@pytest.fixture
def processes(tmp_path):
    made = ChildProcesses(tmp_path / "logs", {"WORD": "spoken\x1b[2J"})
    yield made
    made.close()


def test_children_in_sessions_of_their_own_end_too(processes):
    parent = processes.start("parent", [sys.executable, "-c", PARENT])
    ends = time.monotonic() + 20
    while len(family(parent.pid)) < 2 and time.monotonic() < ends:
        time.sleep(0.02)
    (child,) = family(parent.pid) - {parent.pid}
    processes.close()
    assert parent.poll() is not None
    time.sleep(0.05)
    with contextlib.suppress(OSError):  # the child is away, or a zombie
        assert Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"


def test_last_words_are_one_line(processes):
    processes.start("one", [sys.executable, "-c", "import os; print(1); print(os.environ['WORD'])"]).wait()
    assert processes.tail("one") == r"1 | spoken\x1b[2J"
    assert processes.tail("nobody") == ""


def test_a_port_in_use_is_named():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        one.listen()
        with pytest.raises(ConfigError, match=f"port {one.getsockname()[1]} cannot be used"):
            require_free(one.getsockname()[1])
    assert len(set(free_ports(5))) == 5


PROXIES = ["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy", "grpc_proxy"]


@pytest.mark.parametrize("proxy", PROXIES)
@pytest.mark.parametrize("bypass", [{}, {"no_proxy": "10.0.0.1, .example.org"}, {"NO_PROXY": "a", "no_proxy": "b"}])
def test_the_loopback_is_asked_without_a_proxy(proxy, bypass, monkeypatch):
    """As Python's own reader of these names understands them; others still go through it."""
    environment = without_proxy({proxy: "http://127.0.0.1:9", **bypass})
    for name in [*PROXIES, "no_proxy", "NO_PROXY"]:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert urllib.request.proxy_bypass("127.0.0.1:8000")
    assert urllib.request.proxy_bypass("localhost")
    assert not urllib.request.proxy_bypass("flower.ai")
    assert all(urllib.request.proxy_bypass(host) for host in ("b", "www.example.org") if host in str(bypass))
    assert environment[proxy] == "http://127.0.0.1:9"
    assert environment["no_grpc_proxy"].endswith("127.0.0.1,localhost,::1")


def test_nobody_else_reads_what_started_processes_write(processes, tmp_path):
    file = tmp_path / "state"
    processes.start("one", [sys.executable, "-c", f"open({str(file)!r}, 'w').write('x')"]).wait()
    modes = [oct(path.stat().st_mode & 0o777) for path in (tmp_path / "logs", processes.log("one"), file)]
    assert modes == ["0o700", "0o600", "0o600"]


def test_a_log_that_is_a_link_is_not_written(processes, tmp_path):
    (tmp_path / "victim").write_text("mine")
    processes.log("one").symlink_to(tmp_path / "victim")
    with pytest.raises(OSError, match="symbolic"):
        processes.start("one", [sys.executable, "-c", "print(1)"])
    assert (tmp_path / "victim").read_text() == "mine"


@pytest.mark.parametrize("told", ["", "Traceback: in the hospital"])
def test_what_ended_a_run_comes_back_with_its_code_and_traceback(told, processes, tmp_path):
    (tmp_path / Failure.FILE).write_text(json.dumps({"error": "client 1 failed", "traceback": told, "exit_code": 1}))
    with pytest.raises(FederationError, match="client 1 failed") as caught:
        collect_result(tmp_path, processes)
    assert caught.value.exit_code == 1
    assert told in "".join(traceback.format_exception(caught.value))
    assert (caught.value.__cause__ is None) == (told == "")  # the command line prints the cause, where there is one


def test_a_run_that_left_nothing_says_so_with_its_last_words(processes, tmp_path):
    processes.log("run").write_text("lost the connection\n")
    with pytest.raises(FederationError, match=r"repeat the command to continue; its last output: lost the connection"):
        collect_result(tmp_path, processes)
