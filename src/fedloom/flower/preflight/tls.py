"""Checks of certificates and keys, with the library that Flower's connections use (OpenSSL).

OpenSSL checks names and signatures; dates are compared here, with the clock that the caller gives.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from fedloom.core.errors import ConfigError
from fedloom.flower.bindings import fingerprint_of
from fedloom.flower.preflight.finding import Finding, error, mode_findings, ok, read_or_explain, warning

LOOPBACK = "127.0.0.1"  # where the SuperLink's own processes on the server connect to
RENEWAL_ADVICE = "delete the folder's .crt files, and `fedloom flower keys` makes new ones"
WARNING_PERIOD = timedelta(days=30)
_GET_AUTHORITY = "get ca.crt from the server's administrator"
_IGNORE_DATES = 0x200000  # X509_V_FLAG_NO_CHECK_TIME
_WRONG_HOST = (62, 64)  # X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH
_WRONG_AUTHORITY = (2, 7, 18, 19, 20, 21)  # no issuer, a wrong signature, self-signed


def read_certificate(file: Path) -> Any:
    """Read the first certificate of a file. Raises `ConfigError` for anything else."""
    from cryptography import x509

    content = read_or_explain(file, "a certificate in PEM", RENEWAL_ADVICE)
    try:
        return x509.load_pem_x509_certificate(content)
    except ValueError:
        raise ConfigError(f"{file}: no certificate in PEM; {RENEWAL_ADVICE}") from None


def hosts_of(certificate: Any) -> list[str]:
    """Return the names and addresses that a certificate is for."""
    from cryptography import x509

    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [str(name.value) for name in names]


def date_findings(name: str, certificate: Any, now: datetime, advice: str = RENEWAL_ADVICE) -> Iterator[Finding]:
    """Find whether a certificate has not begun, has ended, or ends soon.

    advice: what to do about one that ends.
    """
    start, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now < start:
        clock = f"this machine's clock says {now:%Y-%m-%d %H:%M} UTC"
        yield error(
            "certificate", f"{name} is valid from {start:%Y-%m-%d %H:%M} UTC, and {clock}; set the clock, or {advice}"
        )
    elif end <= now:
        yield error("certificate", f"{name} ended on {end:%Y-%m-%d}; {advice}")
    elif end - now < WARNING_PERIOD:
        days = (end - now).days
        when = "in less than a day" if days < 1 else "in 1 day" if days == 1 else f"in {days} days"
        yield warning("certificate", f"{name} ends on {end:%Y-%m-%d}, {when}")


def server_certificate_findings(folder: Path, hosts: Sequence[str], now: datetime) -> list[Finding]:
    """Check the server's certificate in a folder: files, dates, key, authority, and names.

    folder: folder with the certificate and its key. hosts: names and addresses at which nodes reach the server;
    127.0.0.1 is always needed.
    """
    authority, certificate, key = (folder / name for name in ("ca.crt", "server.crt", "server.key"))
    try:
        for file in (authority, certificate, key):
            read_or_explain(file, "a file in PEM", RENEWAL_ADVICE)
        read = {file: read_certificate(file) for file in (authority, certificate)}
        public_key = _public_bytes(_private_key(key))
    except ConfigError as problem:
        return [error("certificate", str(problem))]
    findings = [finding for file, parsed in read.items() for finding in date_findings(str(file), parsed, now)]
    findings += mode_findings(key)
    if public_key != _public_bytes(read[certificate]):
        text = f"{key} is no key of {certificate}; put its own key there, or {RENEWAL_ADVICE}"
        return [*findings, error("key", text)]
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), client_context(authority)
    try:
        server.load_cert_chain(certificate, key)
    except ssl.SSLError as problem:  # e.g. a key that is too short
        return [*findings, error("certificate", f"{certificate} cannot be used ({problem.reason}); {RENEWAL_ADVICE}")]
    names = hosts_of(read[certificate])
    for host in dict.fromkeys([*hosts, LOOPBACK]):
        try:
            _handshake(server, client, host)
        except ssl.SSLError as problem:
            findings.append(error("certificate", _explain(problem, str(certificate), host, names, str(authority))))
            if getattr(problem, "verify_code", 0) not in _WRONG_HOST:
                break
    if not any(finding.level == "error" for finding in findings):
        end = min(parsed.not_valid_after_utc for parsed in read.values())
        findings.append(ok("certificate", f"{certificate} is for {', '.join(names)}, until {end:%Y-%m-%d}"))
    return findings


def client_context(authority: Path) -> ssl.SSLContext:
    """Return how a node checks the server's certificate, without its dates. Raises `ConfigError` for a damaged file."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.verify_flags |= _IGNORE_DATES
    content = read_or_explain(authority, "a certificate in PEM", _GET_AUTHORITY)
    try:
        context.load_verify_locations(cadata=content.decode())
    except (ssl.SSLError, ValueError):
        raise ConfigError(f"{authority}: no certificate in PEM; {_GET_AUTHORITY}") from None
    return context


def explain_refusal(problem: ssl.SSLError, address: str, authority: Path, names: Sequence[str]) -> str:
    """Say why a node cannot believe the server at an address, and what to do.

    problem: the error of the handshake. address: host:port of the server. authority: the file of the server's ca.crt.
    names: names of the server's certificate.
    """
    host = address.rpartition(":")[0].strip("[]")
    if isinstance(problem, ssl.SSLCertVerificationError):
        advice = "call the server as its certificate does, or ask its administrator for a certificate for this name"
        return _explain(problem, f"the certificate of {address}", host, names, str(authority), advice)
    return f"{address} speaks no TLS ({problem.reason}); is the SuperLink started with its certificate?"


def key_findings(key: Path) -> list[Finding]:
    """Check a node's private key, and its public key in the same folder."""
    try:
        private = _private_key(key)
    except ConfigError as problem:
        return [error("key", str(problem))]
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    findings = [*mode_findings(key)]
    public = private.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    file, name = key.with_name(key.name + ".pub"), fingerprint_of(public)
    if file.is_file() and fingerprint_of(read_or_explain(file, "a public key", "make it readable")) != name:
        text = f"{file} is no public key of {key}; `ssh-keygen -yf {key}` prints the right one"
        return [*findings, error("key", text)]
    return [*findings, ok("key", f"{key} is {name}; the server must have registered it")]


def _explain(
    problem: ssl.SSLError,
    certificate: str,
    host: str,
    names: Sequence[str],
    authority: str,
    advice: str = RENEWAL_ADVICE,
) -> str:
    """Say why a certificate is refused for a host. advice: for a certificate of other hosts."""
    code, text = getattr(problem, "verify_code", 0), getattr(problem, "verify_message", None) or str(problem.reason)
    if code in _WRONG_HOST:
        return f"{certificate} is for {', '.join(names) or 'no host'}, not for {host}; {advice}"
    if code in _WRONG_AUTHORITY:
        return (
            f"{certificate} is not signed by {authority} ({text}); take the ca.crt of the folder that the server's "
            "certificate is from"
        )
    return f"{certificate} cannot be used ({text}); {RENEWAL_ADVICE}"


def _handshake(server: ssl.SSLContext, client: ssl.SSLContext, host: str) -> None:
    """Shake hands in memory. Raises `ssl.SSLError` if the client does not believe that the server is `host`."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    client_side = client.wrap_bio(to_client, to_server, server_hostname=host)
    sides = [client_side, server.wrap_bio(to_server, to_client, server_side=True)]
    while sides:  # each side waits in turn for bytes of the other
        side = sides.pop(0)
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            sides.append(side)


def _private_key(file: Path) -> Any:
    """Read a private key, PEM or OpenSSH. Raises `ConfigError` for anything else, and for one with a password."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_ssh_private_key

    content = read_or_explain(file, "a private key", "name the file that `fedloom flower keys` wrote")
    load = load_ssh_private_key if b"OPENSSH" in content[:40] else load_pem_private_key
    try:
        return load(content, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise ConfigError(f"{file}: no private key without a password; `fedloom flower keys` makes one") from None


def _public_bytes(holder: Any) -> bytes:
    """Return the public key of a private key or a certificate as bytes."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    encoded: bytes = holder.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return encoded
