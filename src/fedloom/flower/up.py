"""A real federation on this machine: SuperLink, SuperNodes, keys and certificates; run, collect, and end everything."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fedloom.config.run_config import RunConfig
from fedloom.core.errors import FedloomError, printable
from fedloom.core.files import parse_json, restrict_to_owner, write_atomic
from fedloom.flower import certificates
from fedloom.flower.apps import FAILED
from fedloom.flower.export import export
from fedloom.flower.grid import require_flower
from fedloom.flower.node_data import node_file, server_file
from fedloom.flower.node_registry import FederationError
from fedloom.flower.processes import ChildProcesses, executable, free_ports, require_free
from fedloom.flower.remote import RemoteError
from fedloom.results.result import Result

HOST, NAME = "127.0.0.1", "fedloom"
_START = 120.0  # seconds for a process to listen
_ENVIRONMENT = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "PYTHONUNBUFFERED": "1"}


class LocalFederation:
    """SuperLink and SuperNodes of this machine, between `__enter__` and `__exit__`.

    folder: holds the app, keys, logs and, for each node, its private states; kept, so that the same command goes on.
    data: a folder with the file of each node's own data, and the server's (`node_data.py`).
    """

    def __init__(
        self,
        config: RunConfig,
        folder: Path,
        *,
        insecure: bool,
        port: int | None,
        say: Callable[[str], None],
        data: Path | None = None,
    ) -> None:
        require_flower()
        self._data = None if data is None else data.resolve()
        self.config, self.folder, self.insecure, self._say = config, folder.resolve(), insecure, say
        self.clients = config.scenario.clients
        if port is not None:
            require_free(port)
        first, *others = free_ports(self.clients + 1)
        self.port, self._node_ports = port or first, others
        restrict_to_owner(self.folder)  # of an earlier version, which let everybody read it
        home = self.folder / "home"
        path = os.pathsep.join(
            [str(Path(executable("flwr")).parent), os.environ.get("PATH", "")]
        )  # for its own children
        environment = {**_ENVIRONMENT, "FLWR_HOME": str(home), "PATH": path}
        self.processes = ChildProcesses(self.folder / "logs", environment)
        self._keys = self.folder / "keys"
        address = f'[superlink]\ndefault = "{NAME}"\n\n[superlink.{NAME}]\naddress = "{HOST}:{self.port}"\n'
        if insecure:
            address += "insecure = true\n"
        else:
            certificates.make(self._keys, [HOST, "localhost"], self.clients)
            certificates.check(self._keys, HOST, say)
            address += f'root-certificates = "{self._keys / "ca.crt"}"\n'
        write_atomic(home / "config.toml", address, private=True)
        export(config, self.folder / "app")

    def __enter__(self) -> LocalFederation:
        try:
            self._start_superlink()
            for client in range(self.clients):
                if not self.insecure:
                    self._flwr("supernode", "register", str(self._key(client)) + ".pub", NAME)
                self.start_node(client)
        except BaseException:
            self.processes.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.processes.close()

    def _start_superlink(self) -> None:
        words = [executable("flower-superlink"), "--host", HOST, "--port", str(self.port)]
        words += ["--disable-runtime-dependency-installation"]
        if self.insecure:
            words += ["--insecure"]
        else:
            words += ["--ssl-certfile", f"{self._keys / 'server.crt'}", "--ssl-keyfile", f"{self._keys / 'server.key'}"]
            words += ["--ssl-ca-certfile", f"{self._keys / 'ca.crt'}", "--enable-supernode-auth"]
        process = self.processes.start("superlink", words)
        ends = time.monotonic() + _START
        while not _listens(self.port):
            if process.poll() is not None:
                raise FederationError(f"the SuperLink ended at once: {self.processes.tail('superlink')}")
            if time.monotonic() > ends:
                raise FederationError(f"the SuperLink does not listen on port {self.port} after {_START:g} s")
            time.sleep(0.2)

    def start_node(self, client: int, key: Path | None = None, name: str | None = None) -> subprocess.Popen[bytes]:
        """Start the node of a client, again if it was lost. key: its private key, if not the registered one."""
        state = self.folder / "states" / f"node-{client:06d}"
        words = [executable("flower-supernode"), "--superlink", f"{HOST}:{self.port}"]
        words += ["--host", HOST, "--port", str(self._node_ports[client])]
        data = node_file(self._data, client)
        own = f' data="{data}"' if data else ""
        words += ["--node-config", f'partition-id={client} state="{state}"{own}']
        if self.insecure:
            words += ["--insecure"]
        else:
            words += ["--root-certificates", str(self._keys / "ca.crt")]
            words += ["--auth-supernode-private-key", str(key or self._key(client))]
        return self.processes.start(name or f"node-{client:06d}", words)

    def run(self, out: Path) -> subprocess.Popen[bytes]:
        """Start the run; its process ends with the run."""
        words = [executable("flwr"), "run", str(self.folder / "app"), NAME, "--stream"]
        tests = server_file(self._data)
        own = f' test="{tests}"' if tests else ""
        keys = "none" if self.insecure else self._keys
        return self.processes.start("run", [*words, "-c", f'out="{out.resolve()}" keys="{keys}"{own}'])

    def _key(self, client: int) -> Path:
        return self._keys / f"node-{client:06d}"

    def _flwr(self, *words: str) -> None:
        process = self.processes.start("flwr", [executable("flwr"), *words])
        try:
            code = process.wait(_START)
        except subprocess.TimeoutExpired:
            raise FederationError(f"`flwr {shlex.join(words)}` takes longer than {_START:g} s") from None
        if code and "already" not in self.processes.tail("flwr"):
            raise FederationError(f"`flwr {shlex.join(words)}` failed: {self.processes.tail('flwr')}")


def up(
    config: RunConfig,
    out: Path,
    *,
    insecure: bool = False,
    port: int | None = None,
    data: Path | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Result:
    """Run `config` on processes of this machine, and end them all, whatever happens; a run in `out` goes on.

    data: as in `LocalFederation`.
    Raises `ConfigError` before anything starts, and `FederationError` or the run's own error if it ends without result.
    """
    with (
        _ended_politely(),
        LocalFederation(config, folder_of(out), insecure=insecure, port=port, say=say, data=data) as there,
    ):
        process, read = there.run(out), _Lines(there.processes.log("run"))
        while process.poll() is None:
            for line in read:
                say(line)
            time.sleep(0.2)
        for line in read:
            say(line)
        return collected(out, there.processes)


def folder_of(out: Path) -> Path:
    """Where a run's federation keeps keys, logs and states: beside the run's folder."""
    return out.with_name(out.name + ".flower")


def collected(out: Path, processes: ChildProcesses) -> Result:
    """The result of a run that has ended. Raises what ended it."""
    with contextlib.suppress(FileNotFoundError):
        told: dict[str, Any] = parse_json((out / FAILED).read_text(encoding="utf-8"))
        raise _failure(told)
    result = Result.read(out)
    if result is None:
        raise FederationError(
            f"the run ended without a result; go on with the same command; its last words: {processes.tail('run')}"
        )
    return result


def _failure(told: dict[str, Any]) -> FedloomError:
    error = FederationError(printable(str(told["error"])))
    error.exit_code = int(told["exit_code"])
    if told["traceback"]:
        error.__cause__ = RemoteError("where it happened:")
        error.__cause__.add_note(printable(str(told["traceback"]), keep_lines=True))
    return error


class _Lines:
    """Lines that a log has got since the last look, those of the run alone: JSON."""

    def __init__(self, file: Path) -> None:
        self._file, self._place = file, file.stat().st_size if file.exists() else 0

    def __iter__(self) -> Iterator[str]:
        with self._file.open("rb") as stream:
            stream.seek(self._place)
            for line in stream:
                if not line.endswith(b"\n"):
                    break
                self._place += len(line)
                if line.startswith(b"{"):
                    yield line.decode(errors="replace").rstrip()


@contextlib.contextmanager
def _ended_politely() -> Iterator[None]:
    """SIGTERM ends this process as Ctrl-C does: what it started goes with it."""

    def handle(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _listens(port: int) -> bool:
    with socket.socket() as one:
        one.settimeout(1.0)
        return one.connect_ex((HOST, port)) == 0
