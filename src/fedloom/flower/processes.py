"""Processes that this one starts, and ends again with all that they started: by their ids, never by a name."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from fedloom.core.errors import ConfigError, printable
from fedloom.core.files import private_folder

_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_POLITE = 5.0  # seconds to end by themselves


def executable(name: str) -> str:
    """A command of Flower's, from this environment first. Raises `ConfigError` if there is none."""
    own = Path(sys.executable).parent / name
    found = str(own) if own.exists() else shutil.which(name)
    if found is None:
        raise ConfigError(f"the command {name} is not there; pip install 'fedloom[flower]'")
    return found


def free_ports(count: int) -> list[int]:
    """Ports of the loopback that nobody uses now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def require_free(port: int, host: str = "127.0.0.1") -> None:
    """Raises `ConfigError` if somebody uses the port."""
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind((host, port))
        except OSError as error:
            raise ConfigError(f"port {port} cannot be used ({error.strerror}); name another with --port") from None


def without_proxy(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment in which nothing asks a proxy for the loopback, whatever HTTP_PROXY and its kin say."""
    changed = dict(environment)
    for name in ("no_proxy", "no_grpc_proxy"):
        known = [host for key in (name, name.upper()) for host in environment.get(key, "").split(",") if host.strip()]
        hosts = ",".join(dict.fromkeys([*map(str.strip, known), *_LOOPBACK]))
        changed |= {name: hosts, name.upper(): hosts}
    return changed


class ChildProcesses:
    """Started processes by name; each writes into a log file of its own. What they write, nobody else can read."""

    def __init__(self, logs: Path, environment: Mapping[str, str]) -> None:
        self._logs, self._environment = logs, without_proxy({**os.environ, **environment})
        self._started: dict[str, subprocess.Popen[bytes]] = {}  # the last of each name
        self._all: list[subprocess.Popen[bytes]] = []
        private_folder(logs)

    def start(self, name: str, words: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start a command in a session of its own: Ctrl-C on a terminal does not reach it."""
        handle = os.open(self.log(name), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        with os.fdopen(handle, "ab") as log:
            made = subprocess.Popen(
                list(words),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,
                umask=0o077,
            )
        self._started[name] = made
        self._all.append(made)
        return made

    def pid_of(self, name: str) -> int:
        """The process that was last started under a name."""
        return self._started[name].pid

    def log(self, name: str) -> Path:
        """Where a process writes."""
        return self._logs / f"{name}.log"

    def tail(self, name: str, lines: int = 5) -> str:
        """The last words of a process, in one line."""
        with contextlib.suppress(OSError):
            text = self.log(name).read_text(encoding="utf-8", errors="replace")
            return printable(" | ".join(" ".join(line.split()) for line in text.splitlines()[-lines:]))
        return ""

    def close(self) -> None:
        """End them all, and what they started."""
        everything = {pid for one in self._all for pid in family(one.pid)}
        for one in self._all:
            if one.poll() is None:
                one.terminate()
        ends = time.monotonic() + _POLITE
        for one in self._all:
            with contextlib.suppress(subprocess.TimeoutExpired):
                one.wait(max(0.0, ends - time.monotonic()))
        for pid in everything - {os.getpid()}:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        for one in self._all:
            one.wait()
        self._started, self._all = {}, []


def family(pid: int) -> set[int]:
    """A process and all that descend from it, as far as the system tells."""
    children: dict[int, list[int]] = {}
    for child, parent in _parents():
        children.setdefault(parent, []).append(child)
    found, waiting = set[int](), [pid]
    while waiting:
        found.add(now := waiting.pop())
        waiting += [child for child in children.get(now, []) if child not in found]
    return found


def _parents() -> Iterator[tuple[int, int]]:
    """Process and parent, of all processes; nothing where there is no /proc."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            yield int(stat.parent.name), int(stat.read_text(errors="replace").rpartition(")")[2].split()[1])
