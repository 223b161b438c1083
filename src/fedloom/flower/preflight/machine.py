"""Checks of this machine (ports, disk) and of a node's way to the server (name, port, certificate, clock).

The server's time is in the `Date` of its answer to any HTTP request, so the clock needs no separate service.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any
from urllib.request import getproxies, proxy_bypass

from fedloom.core.errors import ConfigError, printable, short_repr
from fedloom.core.records import Record, wire_size
from fedloom.core.text import bytes_text
from fedloom.flower.absences import AHEAD_SECONDS, BEHIND_SECONDS, clock_advice
from fedloom.flower.preflight.finding import Finding, error, ok, warning, writable_findings
from fedloom.flower.preflight.tls import client_context, date_findings, explain_refusal, hosts_of
from fedloom.flower.processes import require_free
from fedloom.runs.config.run_config import RunConfig

_KEPT = 3  # newest checkpoints and states that a federation keeps at least
_SPARE = 1  # a checkpoint that is being written


def port_finding(host: str, port: int) -> Finding:
    """Check that a port is free."""
    try:
        require_free(port, host)
    except ConfigError as problem:
        return error("port", str(problem))
    return ok("port", f"{port} is free")


def disk_findings(folder: Path, needed: int, purpose: str) -> Iterator[Finding]:
    """Check that a folder, which need not be there yet, can be written and has `needed` free bytes."""
    unwritable = list(writable_findings("disk", folder))
    yield from unwritable
    if unwritable:
        return
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(existing).free
    text = f"{folder} has {bytes_text(free)} free, and {purpose} need about {bytes_text(needed)}"
    yield ok("disk", text) if free >= needed else error("disk", f"{text}; free space, or name a folder on another disk")


def require_disk(folder: Path, needed: int, purpose: str) -> None:
    """Raise `ConfigError` for a folder that cannot be written, or has too little space.

    needed: free space in bytes. purpose: what will be written there, for the message.
    """
    for finding in disk_findings(folder, needed, purpose):
        if finding.level == "error":
            raise ConfigError(finding.text)


def kept_checkpoints(rounds: int, keep: int) -> int:
    """Return how many checkpoints, or private states, of a run lie on the disk at most.

    rounds: rounds of the run. keep: the newest ones that are kept.

    >>> kept_checkpoints(2, 3), kept_checkpoints(1000, 3)
    (3, 13)
    """
    return min(rounds, keep + rounds.bit_length() - 1) + _SPARE  # about log2(rounds) older ones stay for `rewind`


def stored_bytes(config: RunConfig, record: Record) -> int:
    """Return the bytes of a state on the disk, with those of earlier rounds that are kept."""
    return kept_checkpoints(config.rounds, max(_KEPT, config.checkpoint.keep)) * wire_size(record) if record else 0


_TIMEOUT = 10.0
_DATE_RESOLUTION = 1.0  # seconds
_MAX_HEADER = 1 << 16
_ASK_ADMINISTRATOR = "ask the server's administrator for a new one"


def connection_findings(
    address: str, authority: Path | None, clock: Callable[[], float] = time.time
) -> Iterator[Finding]:
    """Check the way to the SuperLink as a node goes it, up to the first error.

    address: host:port of the SuperLink. authority: the file of the server's ca.crt; None for a SuperLink without TLS.
    clock: this machine's, in seconds since 1970.
    """
    try:
        host, port = parse_address(address)
        context = None if authority is None else client_context(authority)
    except ConfigError as problem:
        yield error("address", str(problem))
        return
    try:
        resolved = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4][0]
    except (OSError, UnicodeError) as problem:
        reason = getattr(problem, "strerror", None) or "it is no host name"
        yield error("address", f"{host} does not resolve ({reason}); correct the name, or ask who runs your DNS")
        return
    try:
        connection: socket.socket = socket.create_connection((host, port), _TIMEOUT)
    except OSError as problem:
        yield error(
            "address",
            f"{address} [{resolved}] cannot be reached ({problem.strerror or 'no answer'}); start the SuperLink there, "
            "or let a firewall pass this port",
        )
        return
    yield ok("address", f"{address} is {resolved} and answers")
    with contextlib.ExitStack() as stack:
        stack.enter_context(connection)
        if context is not None and authority is not None:
            try:
                connection = stack.enter_context(context.wrap_socket(connection, server_hostname=host))
            except ssl.SSLError as problem:
                yield error("certificate", explain_refusal(problem, address, authority, _hosts_at(host, port)))
                return
            except OSError as problem:
                yield error("certificate", f"{address} ends the connection ({problem.strerror or 'no answer'})")
                return
            yield from _peer_findings(connection, address, datetime.fromtimestamp(clock(), UTC))
        yield from clock_findings(connection, host, clock)
    yield from proxy_findings(host, "http" if authority is None else "https")


def proxy_findings(host: str, scheme: str) -> Iterator[Finding]:
    """Find a proxy of the environment through which Flower would go to a host; this check does not."""
    proxy = getproxies().get(scheme) or getproxies().get("all")
    if proxy and not proxy_bypass(host):
        name = printable(short_repr(proxy.rpartition("@")[2]))
        text = f"Flower goes to {host} through the proxy {name} of the environment, and this check did not"
        yield warning("address", f"{text}; set NO_PROXY={host} if the proxy does not pass it")


def parse_address(address: str) -> tuple[str, int]:
    """Return host and port of an address as `flower-supernode --superlink` takes it. Raises `ConfigError`.

    >>> parse_address("server.example.org:8000")
    ('server.example.org', 8000)
    """
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise ConfigError(f"the address {short_repr(address)}: need host:port, e.g. server.example.org:8000")
    return host.strip("[]"), int(port)


def clock_findings(connection: socket.socket, host: str, clock: Callable[[], float]) -> Iterator[Finding]:
    """Compare this machine's clock with the server's, by the date in the answer to a request over `connection`."""
    sent = clock()
    try:
        connection.sendall(f"HEAD / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        server_time = _date_of(connection)
    except (OSError, ValueError) as problem:
        yield warning("clock", f"{host} does not say its time ({problem}); compare the clocks by hand")
        return
    yield clock_finding(clock() - sent, (sent + clock()) / 2, server_time)


def clock_finding(seconds: float, node_time: float, server_time: float) -> Finding:
    """Say how far a node's clock is from the server's.

    seconds: time that the answer took. node_time: seconds since 1970 in the middle of that. server_time: the date of
    the answer, which leaves out parts of a second.
    """
    ahead = node_time - (server_time + _DATE_RESOLUTION / 2)
    uncertainty = (seconds + _DATE_RESOLUTION) / 2
    if abs(ahead) <= uncertainty + 1.0:
        return ok("clock", "this machine's clock agrees with the server's")
    text = f"this machine's clock is {clock_advice(ahead)}"
    return error("clock", text) if not -BEHIND_SECONDS < ahead < AHEAD_SECONDS else warning("clock", text)


def _date_of(connection: socket.socket) -> float:
    """Read the header of an answer and return its date. Raises `ValueError` if it has none."""
    header = b""
    while b"\r\n\r\n" not in header and len(header) < _MAX_HEADER and (chunk := connection.recv(4096)):
        header += chunk
    for line in header.decode("latin-1").split("\r\n"):
        name, _, value = line.partition(":")
        if name.lower() == "date":
            return parsedate_to_datetime(value.strip()).timestamp()
    raise ValueError("its answer has no date")


def _peer_findings(connection: Any, address: str, now: datetime) -> Iterator[Finding]:
    """Check the dates of the server's certificate."""
    from cryptography import x509

    certificate = x509.load_der_x509_certificate(connection.getpeercert(binary_form=True))
    findings = list(date_findings(f"the certificate of {address}", certificate, now, _ASK_ADMINISTRATOR))
    yield from findings
    if not findings:
        yield ok("certificate", f"that of {address} is valid until {certificate.not_valid_after_utc:%Y-%m-%d}")


def _hosts_at(host: str, port: int) -> list[str]:
    """Return the hosts in the certificate that a server shows, without believing it."""
    from cryptography import x509

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with socket.create_connection((host, port), _TIMEOUT) as plain, context.wrap_socket(plain) as connection:
            return hosts_of(x509.load_der_x509_certificate(connection.getpeercert(binary_form=True) or b""))
    except (OSError, ValueError):
        return []
