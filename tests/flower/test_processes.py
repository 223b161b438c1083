"""Processes that are started are ended, with all that they started."""

import socket
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from fedloom.core.errors import ConfigError
from fedloom.flower.processes import ChildProcesses, family, free_ports, require_free, without_proxy

PARENT = """
import subprocess, sys
subprocess.run([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
"""


def test_children_in_sessions_of_their_own_end_too(tmp_path):
    processes = ChildProcesses(tmp_path, {})
    parent = processes.start("parent", [sys.executable, "-c", PARENT])
    ends = time.monotonic() + 20
    while len(family(parent.pid)) < 2 and time.monotonic() < ends:
        time.sleep(0.02)
    (child,) = family(parent.pid) - {parent.pid}
    processes.close()
    assert parent.poll() is not None
    time.sleep(0.05)
    assert not _runs(child)


def _runs(pid):
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_last_words_are_one_line(tmp_path):
    processes = ChildProcesses(tmp_path, {"WORD": "spoken\x1b[2J"})
    processes.start("one", [sys.executable, "-c", "import os; print(1); print(os.environ['WORD'])"]).wait()
    assert processes.tail("one") == r"1 | spoken\x1b[2J"
    assert processes.tail("nobody") == ""
    processes.close()


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
def test_the_loopback_is_asked_without_a_proxy(proxy, bypass):
    """As Python's own reader of these names understands them; others still go through it."""
    environment = without_proxy({proxy: "http://127.0.0.1:9", **bypass})
    with pytest.MonkeyPatch.context() as patch:
        for name in [*PROXIES, "no_proxy", "NO_PROXY"]:
            patch.delenv(name, raising=False)
        for name, value in environment.items():
            patch.setenv(name, value)
        assert urllib.request.proxy_bypass("127.0.0.1:8000")
        assert urllib.request.proxy_bypass("localhost")
        assert not urllib.request.proxy_bypass("flower.ai")
        assert all(urllib.request.proxy_bypass(host) for host in ("b", "www.example.org") if host in str(bypass))
    assert environment[proxy] == "http://127.0.0.1:9"
    assert environment["no_grpc_proxy"].endswith("127.0.0.1,localhost,::1")


def test_nobody_else_reads_what_started_processes_write(tmp_path):
    processes = ChildProcesses(tmp_path / "logs", {})
    file = tmp_path / "state"
    processes.start("one", [sys.executable, "-c", f"open({str(file)!r}, 'w').write('x')"]).wait()
    processes.close()
    assert [oct(path.stat().st_mode & 0o777) for path in (tmp_path / "logs", processes.log("one"), file)] == [
        "0o700",
        "0o600",
        "0o600",
    ]


def test_a_log_that_is_a_link_is_not_written(tmp_path):
    (tmp_path / "victim").write_text("mine")
    processes = ChildProcesses(tmp_path / "logs", {})
    processes.log("one").symlink_to(tmp_path / "victim")
    with pytest.raises(OSError, match="symbolic"):
        processes.start("one", [sys.executable, "-c", "print(1)"])
    processes.close()
    assert (tmp_path / "victim").read_text() == "mine"
