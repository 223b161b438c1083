"""A federation of real processes on this machine: SuperLink, SuperNodes, keys and certificates."""

import contextlib
import os
import shlex
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from fedloom.core.errors import printable
from fedloom.core.files import restrict_to_owner, write_atomic
from fedloom.flower.apps import export
from fedloom.flower.exchange import RemoteError
from fedloom.flower.findings import refuse_errors, require_free
from fedloom.flower.message import require_flower
from fedloom.flower.node_data import count_nodes, node_file, server_file
from fedloom.flower.node_registry import FederationError
from fedloom.flower.preflight import check_server
from fedloom.flower.processes import ENVIRONMENT, ChildProcesses, executable, free_ports
from fedloom.flower.status import Failure
from fedloom.flower.supernode import HOST, supernode_options
from fedloom.runs.config.run_config import RunConfig
from fedloom.runs.storage.run_data import RunData

NAME = "fedloom"
_START_SECONDS = 120.0  # for a process to listen


class LocalFederation:
    """SuperLink and SuperNodes on this machine, as a context manager.
    folder: of the app, keys, logs and the nodes' private states; it is kept, so that the run can continue."""

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
        self.folder, self.clients = folder.resolve(), count_nodes(config)
        if port is not None:
            require_free(port)
        free_port, *node_ports = free_ports(self.clients + 1)
        self.port, self._node_ports = port or free_port, node_ports
        restrict_to_owner(self.folder)  # an earlier version let other users read it
        home = self.folder / "home"
        path = os.pathsep.join([str(Path(executable("flwr")).parent), os.environ.get("PATH", "")])
        self.processes = ChildProcesses(self.folder / "logs", {**ENVIRONMENT, "FLWR_HOME": str(home), "PATH": path})
        self._keys = None if insecure else self.folder / "keys"
        address = f'[superlink]\ndefault = "{NAME}"\n\n[superlink.{NAME}]\naddress = "{HOST}:{self.port}"\n'
        if self._keys is None:
            address += "insecure = true\n"
        else:
            from fedloom.flower import certificates

            certificates.create(self._keys, [HOST, "localhost"], self.clients)
            address += f'root-certificates = "{self._keys / "ca.crt"}"\n'
        refuse_errors(check_server(config, keys=self._keys, hosts=[HOST], port=port, listen=HOST, out=self.folder), say)
        write_atomic(home / "config.toml", address, private=True)
        export(config, self.folder / "app")

    def __enter__(self) -> "LocalFederation":
        try:
            self._start_superlink()
            for client in range(self.clients):
                if self._keys is not None:
                    self._flwr("supernode", "register", str(self._keys / f"node-{client:06d}.pub"), NAME)
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
        if self._keys is None:
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
        node = f"node-{client:06d}"
        files = {"state": self.folder / "states" / node, "data": node_file(self._data, client)}
        files |= {"authority": self._keys and self._keys / "ca.crt", "key": key or (self._keys and self._keys / node)}
        options = supernode_options(f"{HOST}:{self.port}", client, self._node_ports[client], **files)
        command = [executable("flower-supernode"), *options]
        return self.processes.start(name or node, command)

    def run(self, out: Path) -> subprocess.Popen[bytes]:
        """Start the run in `out`, and return its process, which ends with the run."""
        command = [executable("flwr"), "run", str(self.folder / "app"), NAME, "--stream"]
        tests = server_file(self._data)
        keys = self._keys or "none"
        test_key = f' test="{tests}"' if tests else ""
        return self.processes.start("run", [*command, "-c", f'out="{out.resolve()}" keys="{keys}"{test_key}'])

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
    anything starts, and `FederationError` or the run's error if there is no result."""
    with LocalFederation(config, folder_of(out), insecure=insecure, port=port, say=say, data=data) as federation:
        process, has_ended = federation.run(out), False
        with federation.processes.log("run").open("rb") as log:
            # The log is appended to, so it begins with the lines of earlier calls.
            log.seek(0, os.SEEK_END)
            while not has_ended:
                time.sleep(0.2)
                has_ended = process.poll() is not None  # before its last lines are read
                for line in _new_lines(log):
                    say(line)
        return collect_result(out, federation.processes)


def folder_of(out: Path) -> Path:
    """Return the folder of a federation's keys, logs and states, next to the run's folder `out`."""
    return out.with_name(out.name + ".flower")


def expiring_certificates(keys: Path, now: datetime | None = None) -> list[str]:
    """Return a sentence for each certificate in a folder that has expired, or expires within 30 days."""
    files = [file for name in ("ca.crt", "server.crt") if (file := keys / name).is_file()]
    if not files:
        return []  # without importing cryptography, which may not be installed
    from fedloom.flower.certificates import date_findings, read_certificate

    now = now or datetime.now(UTC)
    return [finding.text for file in files for finding in date_findings(str(file), read_certificate(file), now)]


def collect_result(out: Path, processes: ChildProcesses) -> RunData:
    """Return the result of a run that has ended. Raises the error that ended it."""
    if (failure := Failure.read(out)) is not None:
        error = FederationError(printable(failure.error))
        error.exit_code = failure.exit_code
        if failure.traceback:
            error.__cause__ = RemoteError("where it happened:")
            error.__cause__.add_note(printable(failure.traceback, keep_lines=True))
        raise error
    result = RunData.read(out)
    if result is None:
        raise FederationError(
            f"the run ended without a result; repeat the command to continue; its last output: {processes.tail('run')}"
        )
    return result


def _new_lines(log: BinaryIO) -> Iterator[str]:
    """Yield the JSON lines that were added to a log since the last call; one that is not complete stays for later."""
    while (line := log.readline()).endswith(b"\n"):
        if line.startswith(b"{"):
            yield line.decode(errors="replace").rstrip()
    log.seek(-len(line), os.SEEK_CUR)
