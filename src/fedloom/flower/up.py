"""A federation of real processes on this machine: SuperLink, SuperNodes, keys and certificates."""

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

from fedloom.core.errors import printable
from fedloom.core.files import parse_json, read_file, restrict_to_owner, write_atomic
from fedloom.flower.apps import FAILED, export
from fedloom.flower.findings import refuse_errors
from fedloom.flower.node_data import count_nodes, node_file, server_file
from fedloom.flower.node_registry import FederationError
from fedloom.flower.preflight import check_server
from fedloom.flower.processes import ChildProcesses, executable, free_ports, require_free
from fedloom.flower.replies import RemoteError
from fedloom.flower.transport import require_flower
from fedloom.runs.config.run_config import RunConfig
from fedloom.runs.storage.run_data import RunData

HOST, NAME = "127.0.0.1", "fedloom"
_START_SECONDS = 120.0  # for a process to listen
_ENVIRONMENT = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "PYTHONUNBUFFERED": "1"}


class LocalFederation:
    """SuperLink and SuperNodes on this machine, as a context manager.

    folder: of the app, keys, logs and the nodes' private states; it is kept, so that the run can continue. data: folder
    with the files of the nodes' data and the server's. say: called with warnings.
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
        self.clients = count_nodes(config)
        if port is not None:
            require_free(port)
        free_port, *node_ports = free_ports(self.clients + 1)
        self.port, self._node_ports = port or free_port, node_ports
        restrict_to_owner(self.folder)  # an earlier version let other users read it
        home = self.folder / "home"
        path = os.pathsep.join([str(Path(executable("flwr")).parent), os.environ.get("PATH", "")])
        environment = {**_ENVIRONMENT, "FLWR_HOME": str(home), "PATH": path}
        self.processes = ChildProcesses(self.folder / "logs", environment)
        self._keys = self.folder / "keys"
        address = f'[superlink]\ndefault = "{NAME}"\n\n[superlink.{NAME}]\naddress = "{HOST}:{self.port}"\n'
        if insecure:
            address += "insecure = true\n"
        else:
            from fedloom.flower import certificates

            certificates.create(self._keys, [HOST, "localhost"], self.clients)
            address += f'root-certificates = "{self._keys / "ca.crt"}"\n'
        keys = None if insecure else self._keys
        refuse_errors(check_server(config, keys=keys, hosts=[HOST], port=port, listen=HOST, out=self.folder), say)
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
        command = [executable("flower-superlink"), "--host", HOST, "--port", str(self.port)]
        command += ["--disable-runtime-dependency-installation"]
        if self.insecure:
            command += ["--insecure"]
        else:
            for option, file in (("certfile", "server.crt"), ("keyfile", "server.key"), ("ca-certfile", "ca.crt")):
                command += [f"--ssl-{option}", str(self._keys / file)]
            command += ["--enable-supernode-auth"]
        process = self.processes.start("superlink", command)
        deadline = time.monotonic() + _START_SECONDS
        while True:
            with contextlib.suppress(OSError), socket.create_connection((HOST, self.port), 1.0):
                return
            if process.poll() is not None:
                raise FederationError(f"the SuperLink ended at once: {self.processes.tail('superlink')}")
            if time.monotonic() > deadline:
                raise FederationError(f"the SuperLink does not listen on port {self.port} after {_START_SECONDS:g} s")
            time.sleep(0.2)

    def start_node(self, client: int, key: Path | None = None, name: str | None = None) -> subprocess.Popen[bytes]:
        """Start the node of a `client`. key: a private key instead of the registered one. name: of the process."""
        state = self.folder / "states" / f"node-{client:06d}"
        command = [executable("flower-supernode"), "--superlink", f"{HOST}:{self.port}"]
        command += ["--host", HOST, "--port", str(self._node_ports[client])]
        data = node_file(self._data, client)
        data_key = f' data="{data}"' if data else ""
        command += ["--node-config", f'partition-id={client} state="{state}"{data_key}']
        if self.insecure:
            command += ["--insecure"]
        else:
            command += ["--root-certificates", str(self._keys / "ca.crt")]
            command += ["--auth-supernode-private-key", str(key or self._key(client))]
        return self.processes.start(name or f"node-{client:06d}", command)

    def run(self, out: Path) -> subprocess.Popen[bytes]:
        """Start the run in `out`, and return its process, which ends with the run."""
        command = [executable("flwr"), "run", str(self.folder / "app"), NAME, "--stream"]
        tests = server_file(self._data)
        test_key = f' test="{tests}"' if tests else ""
        keys = "none" if self.insecure else self._keys
        return self.processes.start("run", [*command, "-c", f'out="{out.resolve()}" keys="{keys}"{test_key}'])

    def _key(self, client: int) -> Path:
        return self._keys / f"node-{client:06d}"

    def _flwr(self, *arguments: str) -> None:
        process = self.processes.start("flwr", [executable("flwr"), *arguments])
        try:
            code = process.wait(_START_SECONDS)
        except subprocess.TimeoutExpired:
            raise FederationError(f"`flwr {shlex.join(arguments)}` takes longer than {_START_SECONDS:g} s") from None
        if code and "already" not in self.processes.tail("flwr"):
            raise FederationError(f"`flwr {shlex.join(arguments)}` failed: {self.processes.tail('flwr')}")


def up(
    config: RunConfig,
    out: Path,
    *,
    insecure: bool = False,
    port: int | None = None,
    data: Path | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> RunData:
    """Run a `config` in `out` on processes of this machine, and end them all afterwards; an unfinished run continues.

    insecure: without TLS and node keys. port: the SuperLink's; None uses a free one. data: folder with the files of the
    nodes' data and the server's. say: called with warnings and with lines of the log. Raises `ConfigError` before
    anything starts, and `FederationError` or the run's error if there is no result.
    """
    with (
        _sigterm_as_interrupt(),
        LocalFederation(config, folder_of(out), insecure=insecure, port=port, say=say, data=data) as federation,
    ):
        process, new_lines = federation.run(out), _JsonLines(federation.processes.log("run"))
        while process.poll() is None:
            for line in new_lines:
                say(line)
            time.sleep(0.2)
        for line in new_lines:
            say(line)
        return collect_result(out, federation.processes)


def folder_of(out: Path) -> Path:
    """Return the folder of a federation's keys, logs and states, next to the run's folder `out`."""
    return out.with_name(out.name + ".flower")


def expiring_certificates(keys: Path) -> list[str]:
    """Return a sentence for each certificate in a folder that has expired, or expires soon."""
    if not any(keys.glob("*.crt")):
        return []
    from fedloom.flower.certificates import expiring

    return expiring(keys)


def collect_result(out: Path, processes: ChildProcesses) -> RunData:
    """Return the result of a run that has ended. Raises the error that ended it."""
    with contextlib.suppress(FileNotFoundError):
        facts: dict[str, Any] = parse_json(read_file(out / FAILED))
        error = FederationError(printable(str(facts["error"])))
        error.exit_code = int(facts["exit_code"])
        if facts["traceback"]:
            error.__cause__ = RemoteError("where it happened:")
            error.__cause__.add_note(printable(str(facts["traceback"]), keep_lines=True))
        raise error
    result = RunData.read(out)
    if result is None:
        raise FederationError(
            f"the run ended without a result; repeat the command to continue; its last output: {processes.tail('run')}"
        )
    return result


class _JsonLines:
    """The JSON lines that were added to a log since the last iteration."""

    def __init__(self, file: Path) -> None:
        self._file, self._offset = file, file.stat().st_size if file.exists() else 0

    def __iter__(self) -> Iterator[str]:
        with self._file.open("rb") as stream:
            stream.seek(self._offset)
            for line in stream:
                if not line.endswith(b"\n"):
                    break
                self._offset += len(line)
                if line.startswith(b"{"):
                    yield line.decode(errors="replace").rstrip()


@contextlib.contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    """Let SIGTERM end this process as Ctrl-C does, which also ends its child processes."""

    def handle(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    previous_handler = signal.signal(signal.SIGTERM, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous_handler)
