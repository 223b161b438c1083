"""Processes that are started here, and ended by their ids with all their descendants."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedloom.core.errors import ConfigError, printable
from fedloom.core.files import private_folder

_LOOPBACK = ("127.0.0.1", "localhost", "::1")
ENVIRONMENT = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "PYTHONUNBUFFERED": "1"}
_TERMINATION_SECONDS = 5.0  # between SIGTERM and SIGKILL


def executable(name: str) -> str:
    """Find a command of Flower's, first in this environment. Raises `ConfigError` if there is none."""
    beside_python = Path(sys.executable).parent / name
    path = str(beside_python) if beside_python.exists() else shutil.which(name)
    if path is None:
        raise ConfigError(f"the command {name} is not installed; pip install 'fedloom[flower]'")
    return path


def free_ports(count: int) -> list[int]:
    """Return unused ports of the loopback."""
    with contextlib.ExitStack() as stack:
        # All stay open until the last port is known, or the system could give one of them twice.
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for sock in sockets:
            sock.bind(("127.0.0.1", 0))
        return [sock.getsockname()[1] for sock in sockets]


def without_proxy(environment: Mapping[str, str]) -> dict[str, str]:
    """Return a copy of an environment in which no proxy is used for the loopback."""
    changed = dict(environment)
    for name in ("no_proxy", "no_grpc_proxy"):
        hosts = [host for key in (name, name.upper()) for host in environment.get(key, "").split(",") if host.strip()]
        exceptions = ",".join(dict.fromkeys([*map(str.strip, hosts), *_LOOPBACK]))
        changed |= {name: exceptions, name.upper(): exceptions}
    return changed


class ChildProcesses:
    """Child processes by name, each with a log file that only the owner can read."""

    def __init__(self, logs: Path, environment: Mapping[str, str]) -> None:
        self._logs, self._environment = logs, without_proxy({**os.environ, **environment})
        self._started: dict[str, subprocess.Popen[bytes]] = {}  # the latest of each name
        self._all: list[subprocess.Popen[bytes]] = []
        private_folder(logs)

    def start(self, name: str, command: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start a command in a new session, which Ctrl-C on the terminal does not reach."""
        handle = os.open(self.log(name), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        with os.fdopen(handle, "ab") as log:
            pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": subprocess.STDOUT}
            process = subprocess.Popen([*command], env=self._environment, start_new_session=True, umask=0o077, **pipes)
        self._started[name] = process
        self._all.append(process)
        return process

    def pid_of(self, name: str) -> int:
        """Return the id of the latest process with a name."""
        return self._started[name].pid

    def log(self, name: str) -> Path:
        """Return the log file of a process."""
        return self._logs / f"{name}.log"

    def tail(self, name: str, lines: int = 5) -> str:
        """Return the last lines of a process' log, joined to one line."""
        with contextlib.suppress(OSError):
            text = self.log(name).read_text(encoding="utf-8", errors="replace")
            return printable(" | ".join(" ".join(line.split()) for line in text.splitlines()[-lines:]))
        return ""

    def close(self) -> None:
        """End all processes and their descendants."""
        end(self._all)
        self._started, self._all = {}, []


def end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """End processes and all their descendants."""
    # Before the first signal: a process whose parent has ended belongs to another one, and would not be found.
    pids = {pid for process in processes if process.poll() is None for pid in family(process.pid)}
    for process in processes:
        process.terminate()
    deadline = time.monotonic() + _TERMINATION_SECONDS
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))
        process.kill()
        process.wait()
    for pid in pids - {process.pid for process in processes} - {os.getpid()}:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def family(pid: int) -> set[int]:
    """Return the ids of a process and all its descendants, from /proc; only `pid` if there is no /proc."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):  # a process that has ended meanwhile
            parent = int(stat.read_text(errors="replace").rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(stat.parent.name))
    members, pending = set[int](), [pid]
    while pending:
        members.add(parent := pending.pop())
        pending += [child for child in children.get(parent, []) if child not in members]
    return members
