"""All checks of a server, and all checks of a node, before they start."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedloom.core.errors import ConfigError, FedloomError
from fedloom.core.files import parse_json
from fedloom.flower.bindings import public_keys
from fedloom.flower.node import Node
from fedloom.flower.node_data import count_nodes
from fedloom.flower.preflight.app import fingerprint_findings, read_app_or_explain, sizes_of, version_findings, versions
from fedloom.flower.preflight.finding import Finding, error, ok, read_or_explain
from fedloom.flower.preflight.machine import connection_findings, disk_findings, port_finding
from fedloom.flower.preflight.tls import key_findings, server_certificate_findings
from fedloom.runs.config.run_config import RunConfig

_SERVER_REPORT = "what `fedloom flower check server --json` printed"


@dataclass(frozen=True, slots=True)
class NodeFiles:
    """The files with which a node starts; None for one that is not checked.

    authority: the server's ca.crt; None for a SuperLink without TLS. key: the private key. app: an exported app, or a
    config file. client, data: as in `--node-config`. state: the folder of private states. server_report: the file of
    the server's findings as JSON.
    """

    authority: Path | None = None
    key: Path | None = None
    app: Path | None = None
    client: int = 0
    data: Path | None = None
    state: Path | None = None
    server_report: Path | None = None


def check_server(
    config: RunConfig | None,
    *,
    keys: Path | None,
    hosts: Sequence[str],
    port: int | None,
    listen: str = "0.0.0.0",
    out: Path,
    clock: Callable[[], float] = time.time,
) -> list[Finding]:
    """Check a server before its SuperLink starts.

    config: config of the run; None checks neither disk nor number of keys. keys: folder with the certificates and the
    nodes' public keys; None for a SuperLink without TLS. hosts: names and addresses at which nodes reach it. port: port
    of the SuperLink; None if it is certainly free. listen: address at which the port is tried. clock: this machine's,
    in seconds since 1970.
    """
    findings = version_findings()
    if keys is not None:
        findings += server_certificate_findings(keys, hosts, datetime.fromtimestamp(clock(), UTC))
        findings += _public_key_findings(keys, 0 if config is None else count_nodes(config))
    if port is not None:
        findings.append(port_finding(listen, port))
    return findings if config is None else [*findings, *_disk_findings(config, out, "server")]


def requirements(config: RunConfig | None) -> dict[str, str]:
    """Return what nodes must have the same. Raises `ConfigError` as `versions` does."""
    return versions() | ({} if config is None else {"fingerprint": config.fingerprint()})


def check_node(
    address: str, files: NodeFiles, *, port: int | None = None, clock: Callable[[], float] = time.time
) -> list[Finding]:
    """Check a node before its SuperNode starts.

    address: host:port of the SuperLink. files: the node's files: app, keys, state and data. port: port that the
    SuperNode listens on. clock: this machine's, in seconds since 1970.
    """
    required, findings = dict[str, str](), list[Finding]()
    if files.server_report is not None:
        try:
            required = _read_report(files.server_report)
        except ConfigError as problem:
            findings.append(error("versions", str(problem)))
    findings += version_findings(required)
    if files.key is not None:
        findings += key_findings(files.key)
    if port is not None:
        findings.append(port_finding("127.0.0.1", port))
    if files.app is not None:
        findings += _app_findings(files, required.get("fingerprint"))
    return [*findings, *connection_findings(address, files.authority, clock)]


def _app_findings(files: NodeFiles, fingerprint: str | None) -> list[Finding]:
    """Check config, data and disk of a node."""
    assert files.app is not None, "there is an app to check"
    config = read_app_or_explain(files.app)
    if isinstance(config, Finding):
        return [config]
    findings = fingerprint_findings(files.app, config, fingerprint, "the server's is")
    if files.data is not None:
        findings.append(_data_finding(config, files.client, files.data))
    return findings if files.state is None else [*findings, *_disk_findings(config, files.state, "node")]


def _data_finding(config: RunConfig, client: int, data: Path) -> Finding:
    """Read a node's data as its app will do."""
    try:
        node = Node(config, client, data.parent, data=data)
        node.require_data()
    except (FedloomError, OSError) as problem:
        return error("data", str(problem))
    return ok("data", f"{data}: {len(node.indices):,} training samples")


def _disk_findings(config: RunConfig, folder: Path, side: str) -> list[Finding]:
    try:
        of_server, of_node = sizes_of(config)
    except (FedloomError, OSError) as problem:
        return [error("config", str(problem))]
    if side == "server":
        return list(disk_findings(folder, of_server, "checkpoints"))
    return list(disk_findings(folder, of_node, "private states"))


def _public_key_findings(keys: Path, clients: int) -> list[Finding]:
    """Check that the folder has a different public key for every client, if it has any."""
    if not any(keys.glob("node-*.pub")):
        return []
    try:
        by_client = public_keys(keys)
    except ConfigError as problem:
        return [error("key", str(problem))]
    missing = [client for client in range(clients) if client not in by_client]
    if missing:
        text = f"{keys} has no node-{missing[0]:06d}.pub for client {missing[0]}"
        return [error("key", f"{text}; `fedloom flower keys` with --clients {clients} makes it")]
    if len(set(by_client.values())) < len(by_client):
        return [error("key", f"{keys} has one public key for two clients; each needs its own")]
    return [ok("key", f"{keys} has public keys of {len(by_client)} clients")]


def _read_report(file: Path) -> dict[str, str]:
    """Read the server's requirements. Raises `ConfigError` for another file."""
    content = read_or_explain(file, _SERVER_REPORT, "get it from the server's administrator")
    try:
        report: Any = parse_json(content)
        required: Mapping[str, Any] = report["requires"]
        return {str(name): str(value) for name, value in required.items()}
    except (ValueError, LookupError, TypeError, AttributeError):
        raise ConfigError(f"{file}: need {_SERVER_REPORT}") from None
