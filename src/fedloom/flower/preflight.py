"""All checks of a server, and all checks of a node, before they start.
The server's time is in the `Date` of its answer to any HTTP request, so comparing clocks needs no separate service."""

import contextlib
import platform
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.client import HTTPConnection, HTTPException
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.request import getproxies, proxy_bypass

import torch

from fedloom._version import __version__
from fedloom.core.errors import ConfigError, FedloomError, short_repr
from fedloom.core.files import parse_json
from fedloom.flower.apps import CONFIG
from fedloom.flower.bindings import public_keys
from fedloom.flower.findings import (
    Finding,
    clock_finding,
    finding_of,
    read_or_explain,
    require_free,
    require_space,
    stored_bytes,
)
from fedloom.flower.message import require_flower
from fedloom.flower.node import Node
from fedloom.flower.node_data import count_nodes, node_source
from fedloom.methods.contract.contexts import ClientContext, ServerContext
from fedloom.runs.config.run_config import RunConfig, load, parse
from fedloom.runs.setup import Setup

_SERVER_REPORT = "the output of `fedloom flower check server --json`"
_TIMEOUT = 10.0  # seconds
_DATE_RESOLUTION = 1.0  # seconds


def check_server(
    config: RunConfig | None,
    *,
    keys: Path | None,
    hosts: Sequence[str],
    port: int | None,
    listen: str = "0.0.0.0",
    out: Path,
) -> list[Finding]:
    """Check a server before its SuperLink starts.
    config: None checks neither disk nor number of keys. keys: folder with the certificates and the nodes' public keys;
    None for a SuperLink without TLS. hosts: names and addresses at which nodes reach it. port: the SuperLink's, which
    must be free at the address `listen`; None skips this check. out: the run's folder."""
    findings = version_findings()
    if keys is not None:
        from fedloom.flower import certificates

        findings += certificates.server_certificate_findings(keys, hosts)
        if any(keys.glob("node-*.pub")):
            clients = 0 if config is None else count_nodes(config)
            findings.append(finding_of("key", lambda: _check_public_keys(keys, clients)))
    if port is not None:
        findings.append(finding_of("port", lambda: require_free(port, listen)))
    return findings if config is None else [*findings, _disk_finding(config, out, "checkpoints")]


def check_node(
    address: str,
    *,
    authority: Path | None = None,
    key: Path | None = None,
    app: Path | None = None,
    client: int = 0,
    data: Path | None = None,
    state: Path | None = None,
    server_report: Path | None = None,
    port: int | None = None,
) -> list[Finding]:
    """Check a node before its SuperNode connects to the SuperLink at `address`; None for a file skips its check.
    authority: the server's ca.crt; None for a SuperLink without TLS. key: the private key. app: an exported app, or a
    config file. client, data: as in `--node-config`. state: the folder of private states. server_report: the file of
    the server's findings as JSON. port: on which the SuperNode listens."""
    required, findings = dict[str, str](), list[Finding]()
    if server_report is not None:
        try:
            required = _read_report(server_report)
        except ConfigError as problem:
            findings.append(Finding("versions", "error", str(problem)))
    findings += version_findings(required)
    if key is not None:
        from fedloom.flower import certificates

        findings += certificates.key_findings(key)
    if port is not None:
        findings.append(finding_of("port", lambda: require_free(port)))
    if app is not None:
        config, finding = check_app(app, required.get("fingerprint"), "the server's is")
        findings.append(finding)
        if config is not None and data is not None:
            findings.append(finding_of("data", lambda: _check_data(config, client, data)))
        if config is not None and state is not None:
            findings.append(_disk_finding(config, state, "private states"))
    return [*findings, *connection_findings(address, authority)]


# -- versions and config -----------------------------------------------------------------------------------------------
def requirements(config: RunConfig | None) -> dict[str, str] | None:
    """Return what must be equal on all nodes: versions, and the config's fingerprint; None for an untested Flower."""
    try:
        versions = _versions()
    except ConfigError:
        return None
    return versions | ({} if config is None else {"fingerprint": config.fingerprint()})


def _versions() -> dict[str, str]:
    flower, python = require_flower(), platform.python_version()
    return {"fedloom": __version__, "flwr": flower, "torch": version("torch"), "python": python}


def version_findings(required: Mapping[str, str] | None = None) -> list[Finding]:
    """Check the versions of this machine's packages; `required` are the server's, by package."""
    try:
        here = _versions()
    except ConfigError as problem:
        return [Finding("versions", "error", str(problem))]
    findings = []
    for name, other in (required or {}).items():
        if name not in here or here[name] == other:
            continue
        text = f"the server has {name} {other}, this machine {here[name]}"
        if name == "fedloom":
            advice = f"install the same version everywhere: pip install 'fedloom=={other}'"
            findings.append(Finding("versions", "error", f"{text}; {advice}"))
        elif name != "python" or here[name].split(".")[:2] != other.split(".")[:2]:
            text += "; it works, but the last bits of results may differ"
            findings.append(Finding("versions", "warning", text))
    text = ", ".join(f"{name} {number}" for name, number in here.items())
    return [*findings, Finding("versions", "ok", text if required else f"{text}; nodes need the same fedloom")]


def read_app(path: Path) -> RunConfig:
    """Read the config of an exported app, or a config file. Raises `ConfigError`."""
    return parse(load(path / CONFIG if (path / CONFIG).is_file() else path))


def check_app(app: Path, expected: str | None, origin: str) -> tuple[RunConfig | None, Finding]:
    """Read the config of an `app`, and compare its fingerprint with the `expected` one, which is from `origin`."""
    try:
        config = read_app(app)
    except (ConfigError, OSError) as problem:
        text = str(problem)
        return None, Finding("config", "error", text if str(app) in text else f"{app}: {text}")
    fingerprint = config.fingerprint()
    if expected not in (None, fingerprint):
        text = f"{app} has the config {fingerprint}, and {origin} {expected}; export the app again for all machines"
        return config, Finding("config", "error", text)
    text = f"{app}: {config.method}, {config.rounds} rounds, fingerprint {fingerprint}"
    return config, Finding("config", "ok", text)


def _check_data(config: RunConfig, client: int, data: Path) -> str:
    node = Node(config, client, data.parent, data=data)
    node.require_data()
    return f"{data}: {len(node.indices):,} training samples"


def _disk_finding(config: RunConfig, folder: Path, purpose: str) -> Finding:
    """Check the disk for the first states. A plug-in's hook may raise anything, which must not end the check."""
    try:
        of_server, of_node = sizes_of(config)
    except Exception as problem:
        text = str(problem) if isinstance(problem, FedloomError | OSError) else f"{type(problem).__name__}: {problem}"
        return Finding("config", "error", text)
    needed = of_server if purpose == "checkpoints" else of_node
    return finding_of("disk", lambda: require_space(folder, needed, purpose))


def sizes_of(config: RunConfig) -> tuple[int, int]:
    """Return the bytes that a run stores on the server, and on the node of one client, judging by its first states."""
    nodes = node_source(config)
    if nodes is None:
        scenario = config.scenario.build(config.seed)
        shape, classes, clients = scenario.train_set.input_shape, scenario.num_classes, scenario.clients
    else:
        shape, classes = nodes.input_shape, len(nodes.classes)
        clients = config.scenario.clients - config.scenario.last_newcomers()
    setup = Setup.from_config(config, shape, classes, clients)
    task = setup.tasks[0]
    server = setup.method.server_init(ServerContext(task, 0))
    state = setup.method.client_init(ClientContext(task, 0, 0, 1, torch.ones(classes, dtype=torch.int64)))
    return stored_bytes(config, server), stored_bytes(config, state)


def _check_public_keys(keys: Path, clients: int) -> str:
    by_client = public_keys(keys)
    if missing := [client for client in range(clients) if client not in by_client]:
        text = f"{keys} has no node-{missing[0]:06d}.pub for client {missing[0]}"
        raise ConfigError(f"{text}; `fedloom flower keys` with --clients {clients} makes it")
    if len(set(by_client.values())) < len(by_client):
        raise ConfigError(f"{keys} has one public key for two clients; each needs a different one")
    return f"{keys} has public keys of {len(by_client)} clients"


def _read_report(file: Path) -> dict[str, str]:
    content = read_or_explain(file, _SERVER_REPORT, "get it from the server's administrator")
    try:
        report: Any = parse_json(content)
        return {str(name): str(value) for name, value in report["requires"].items()}
    except (ValueError, LookupError, TypeError, AttributeError):
        raise ConfigError(f"{file}: need {_SERVER_REPORT}") from None


# -- the connection to the server --------------------------------------------------------------------------------------
def connection_findings(
    address: str, authority: Path | None, clock: Callable[[], float] = time.time
) -> Iterator[Finding]:
    """Check the connection to the SuperLink at an `address` (host:port) as a node would, up to the first error.
    authority: the file of the server's ca.crt; None without TLS. clock: this machine's, in seconds since 1970."""
    subject, resolved = "address", None
    with contextlib.ExitStack() as stack:
        try:
            (host, port), context = parse_address(address), None
            if authority is not None:
                from fedloom.flower import certificates

                context = certificates.client_context(authority)
            # Resolved first, because a wrong name and a silent server need different advice.
            resolved = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4][0]
            connection: socket.socket = stack.enter_context(socket.create_connection((host, port), _TIMEOUT))
            yield Finding(subject, "ok", f"{address} is {resolved} and answers")
            subject = "certificate"
            if context is not None:
                connection = stack.enter_context(context.wrap_socket(connection, server_hostname=host))
                yield from certificates.peer_findings(connection, address, datetime.fromtimestamp(clock(), UTC))
        except ConfigError as problem:
            yield Finding(subject, "error", str(problem))
            return
        except (OSError, UnicodeError) as problem:
            reason = getattr(problem, "strerror", None)
            if resolved is None:
                reason = reason or "it is no host name"
                text = f"{host} does not resolve ({reason}); correct the name, or ask who runs your DNS"
            elif subject == "address":
                text = (
                    f"{address} [{resolved}] cannot be reached ({reason or 'no answer'}); start the SuperLink there, "
                )
                text += "or let a firewall pass this port"
            elif isinstance(problem, ssl.SSLError) and authority is not None:
                text = certificates.explain_refusal(problem, address, host, port, authority)
            else:
                text = f"{address} ends the connection ({reason or 'no answer'})"
            yield Finding(subject, "error", text)
            return
        yield _clock_finding(connection, host, port, clock)
    # Flower would use a proxy of the environment, and this check does not.
    proxy = getproxies().get("http" if authority is None else "https") or getproxies().get("all")
    if proxy and not proxy_bypass(host):
        text = f"Flower goes to {host} through the proxy {short_repr(proxy.rpartition('@')[2])} of the environment"
        text += f", and this check did not; set NO_PROXY={host} if the proxy does not pass it"
        yield Finding("address", "warning", text)


def parse_address(address: str) -> tuple[str, int]:
    """Return host and port of an address as `flower-supernode --superlink` takes it. Raises `ConfigError`.

    >>> parse_address("server.example.org:8000")
    ('server.example.org', 8000)
    """
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise ConfigError(f"the address {short_repr(address)}: need host:port, e.g. server.example.org:8000")
    return host.strip("[]"), int(port)


def _clock_finding(connection: socket.socket, host: str, port: int, clock: Callable[[], float]) -> Finding:
    http, sent = HTTPConnection(host, port), clock()
    http.sock = connection
    try:
        http.request("HEAD", "/", headers={"Connection": "close"})
        date = http.getresponse().getheader("Date")
        if date is None:
            raise ValueError("its answer has no date")
        server_time = parsedate_to_datetime(date).timestamp()
    except (OSError, ValueError, HTTPException) as problem:
        return Finding("clock", "warning", f"{host} does not tell its time ({problem}); compare the clocks manually")
    received = clock()
    # The date leaves out parts of a second, and belongs to some moment between request and answer.
    ahead = (sent + received) / 2 - (server_time + _DATE_RESOLUTION / 2)
    if abs(ahead) <= (received - sent + _DATE_RESOLUTION) / 2 + 1.0:
        return Finding("clock", "ok", "this machine's clock agrees with the server's")
    return clock_finding(ahead)
