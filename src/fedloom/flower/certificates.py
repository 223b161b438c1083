"""Certificates and keys of a federation: creating them, and checking them with OpenSSL, which Flower also uses.
ca.crt and ca.key sign; server.crt and server.key are the server's; node-000000 and node-000000.pub are a node's. A
federation that has its own certificate authority only needs the nodes' keys."""

import contextlib
import ipaddress
import socket
import ssl
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives import serialization as pem
from cryptography.hazmat.primitives.asymmetric import ec

from fedloom.core.errors import ConfigError
from fedloom.core.files import private_folder, write_atomic
from fedloom.flower.bindings import fingerprint_of
from fedloom.flower.findings import Finding, mode_findings, read_or_explain

LOOPBACK = "127.0.0.1"  # where the SuperLink's own processes on the server connect to
_DAYS = 365
_TIMEOUT = 10.0  # seconds
_WARNING_PERIOD = timedelta(days=30)
_RENEWAL_ADVICE = "delete the folder's .crt files, and `fedloom flower keys` makes new ones"
_GET_AUTHORITY = "get ca.crt from the server's administrator"
_IGNORE_DATES = 0x200000  # X509_V_FLAG_NO_CHECK_TIME
_WRONG_HOST = (62, 64)  # X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH
_WRONG_AUTHORITY = (2, 7, 18, 19, 20, 21)  # no issuer, a wrong signature, self-signed


def create(folder: Path, hosts: list[str], nodes: int) -> None:
    """Write the files that are missing in a `folder`: an authority, a certificate for `hosts`, keys of nodes."""
    private_folder(folder)
    # Keys that an earlier version left open to others are closed.
    for key in (*folder.glob("*.key"), *(file.with_suffix("") for file in folder.glob("node-*.pub"))):
        if key.is_file() and not key.is_symlink():
            key.chmod(0o600)
    if not (folder / "server.crt").exists():
        _make_certificates(folder, list(dict.fromkeys([*hosts, LOOPBACK])))
    for node in range(nodes):
        if not (folder / f"node-{node:06d}").exists():
            make_node_key(folder / f"node-{node:06d}")


def _make_certificates(folder: Path, hosts: list[str]) -> None:
    # Valid since some minutes ago, because the clocks of nodes may be behind.
    now, curve = datetime.now(UTC) - timedelta(minutes=5), ec.SECP384R1()

    def named(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, text)])

    def signed(name: str, key: Any, issuer: str, signing_key: Any, *extensions: tuple[Any, bool]) -> Any:
        builder = x509.CertificateBuilder().subject_name(named(name)).issuer_name(named(issuer))
        builder = builder.public_key(key.public_key()).serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(now).not_valid_after(now + timedelta(days=_DAYS))
        for extension, critical in extensions:
            builder = builder.add_extension(extension, critical)
        return builder.sign(signing_key, hashes.SHA384())

    authority, server = ec.generate_private_key(curve), ec.generate_private_key(curve)
    unused = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only")
    uses = dict.fromkeys(("digital_signature", "key_cert_sign", "crl_sign"), True)
    usage = x509.KeyUsage(**uses, **dict.fromkeys((*unused, "decipher_only"), False))
    authority_id = x509.SubjectKeyIdentifier.from_public_key(authority.public_key())
    root = signed(
        "fedloom federation", authority, "fedloom federation", authority,
        (x509.BasicConstraints(ca=True, path_length=0), True), (usage, True), (authority_id, False),
    )  # fmt: skip
    leaf = signed(
        hosts[0], server, "fedloom federation", authority,
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (x509.SubjectAlternativeName([_general_name(host) for host in hosts]), False),
        (x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.SERVER_AUTH]), False),
        (x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), False),
        (x509.SubjectKeyIdentifier.from_public_key(server.public_key()), False),
    )  # fmt: skip
    for name, key in (("ca.key", authority), ("server.key", server)):
        write_atomic(folder / name, _private_bytes(key, pem.PrivateFormat.PKCS8), private=True)
    # After the keys, because `create` takes server.crt as the sign that all of them are there.
    for name, certificate in (("ca.crt", root), ("server.crt", leaf)):
        write_atomic(folder / name, certificate.public_bytes(pem.Encoding.PEM))


def make_node_key(file: Path) -> None:
    """Write a key pair as `ssh-keygen -t ecdsa -b 384` would."""
    key = ec.generate_private_key(ec.SECP384R1())
    write_atomic(file.with_name(file.name + ".pub"), _ssh_public_key(key) + b"\n")
    write_atomic(file, _private_bytes(key, pem.PrivateFormat.OpenSSH), private=True)


def _ssh_public_key(private_key: Any) -> bytes:
    encoded: bytes = private_key.public_key().public_bytes(pem.Encoding.OpenSSH, pem.PublicFormat.OpenSSH)
    return encoded


def _private_bytes(key: Any, format_: pem.PrivateFormat) -> bytes:
    encoded: bytes = key.private_bytes(pem.Encoding.PEM, format_, pem.NoEncryption())
    return encoded


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def read_certificate(file: Path) -> x509.Certificate:
    """Read the first certificate of a file. Raises `ConfigError` for anything else."""
    content = read_or_explain(file, "a certificate in PEM", _RENEWAL_ADVICE)
    try:
        return x509.load_pem_x509_certificate(content)
    except ValueError:
        raise ConfigError(f"{file}: no certificate in PEM; {_RENEWAL_ADVICE}") from None


def hosts_of(certificate: x509.Certificate) -> list[str]:
    """Return the names and addresses for which a certificate is valid."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [str(name.value) for name in names]


def date_findings(
    name: str, certificate: x509.Certificate, now: datetime, advice: str = _RENEWAL_ADVICE
) -> Iterator[Finding]:
    """Find whether a certificate is not valid yet, has expired, or expires soon; `advice` says how to replace it."""
    start, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now < start:
        text = f"{name} is valid from {start:%Y-%m-%d %H:%M} UTC, and this machine's clock says {now:%Y-%m-%d %H:%M}"
        yield Finding("certificate", "error", f"{text} UTC; set the clock, or {advice}")
    elif end <= now:
        yield Finding("certificate", "error", f"{name} ended on {end:%Y-%m-%d}; {advice}")
    elif end - now < _WARNING_PERIOD:
        days = (end - now).days
        when = "in less than a day" if days < 1 else "in 1 day" if days == 1 else f"in {days} days"
        yield Finding("certificate", "warning", f"{name} ends on {end:%Y-%m-%d}, {when}")


def server_certificate_findings(folder: Path, hosts: Sequence[str], now: datetime | None = None) -> list[Finding]:
    """Check the server's certificate and key in a `folder`, for the `hosts` at which nodes reach it and 127.0.0.1."""
    now = now or datetime.now(UTC)
    authority, certificate, key = (folder / name for name in ("ca.crt", "server.crt", "server.key"))
    try:
        for file in (authority, certificate, key):
            read_or_explain(file, "a file in PEM", _RENEWAL_ADVICE)
        parsed = {file: read_certificate(file) for file in (authority, certificate)}
        public_key = _read_private_key(key).public_key()
    except ConfigError as problem:
        return [Finding("certificate", "error", str(problem))]
    findings = [finding for file, content in parsed.items() for finding in date_findings(str(file), content, now)]
    findings += mode_findings(key)
    if public_key != parsed[certificate].public_key():
        text = f"{key} is no key of {certificate}; put its own key there, or {_RENEWAL_ADVICE}"
        return [*findings, Finding("key", "error", text)]
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), client_context(authority)
    try:
        server.load_cert_chain(certificate, key)
    except ssl.SSLError as problem:  # e.g. a key that is too short
        text = f"{certificate} cannot be used ({problem.reason}); {_RENEWAL_ADVICE}"
        return [*findings, Finding("certificate", "error", text)]
    names = hosts_of(parsed[certificate])
    for host in dict.fromkeys([*hosts, LOOPBACK]):
        try:
            _handshake(server, client, host)
        except ssl.SSLError as problem:
            text = _explain(problem, str(certificate), host, names, authority)
            findings.append(Finding("certificate", "error", text))
            # Any other problem would be the same for every host.
            if getattr(problem, "verify_code", 0) not in _WRONG_HOST:
                break
    if not any(finding.level == "error" for finding in findings):
        end = min(content.not_valid_after_utc for content in parsed.values())
        findings.append(Finding("certificate", "ok", f"{certificate} is for {', '.join(names)}, until {end:%Y-%m-%d}"))
    return findings


def client_context(authority: Path) -> ssl.SSLContext:
    """Return the TLS settings of a node, except that dates are not checked: `date_findings` does it more clearly."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.verify_flags |= _IGNORE_DATES
    content = read_or_explain(authority, "a certificate in PEM", _GET_AUTHORITY)
    try:
        context.load_verify_locations(cadata=content.decode())
    except (ssl.SSLError, ValueError):
        raise ConfigError(f"{authority}: no certificate in PEM; {_GET_AUTHORITY}") from None
    return context


def explain_refusal(problem: ssl.SSLError, address: str, host: str, port: int, authority: Path) -> str:
    """Explain the TLS `problem` of a node with the server at an `address`, `host` and `port`, by its `authority`."""
    if not isinstance(problem, ssl.SSLCertVerificationError):
        return f"{address} speaks no TLS ({problem.reason}); is the SuperLink started with its certificate?"
    context, names = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), list[str]()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # only to tell what the certificate claims
    with (
        contextlib.suppress(OSError, ValueError),
        socket.create_connection((host, port), _TIMEOUT) as plain,
        context.wrap_socket(plain) as connection,
    ):
        names = hosts_of(_shown_by(connection))
    advice = "call the server as its certificate does, or ask its administrator for a certificate for this name"
    return _explain(problem, f"the certificate of {address}", host, names, authority, advice)


def _shown_by(connection: Any) -> x509.Certificate:
    return x509.load_der_x509_certificate(connection.getpeercert(binary_form=True) or b"")


def peer_findings(connection: Any, address: str, now: datetime) -> Sequence[Finding]:
    """Check, `now`, the dates of the certificate that the server at an `address` shows on a `connection`."""
    certificate, advice = _shown_by(connection), "ask the server's administrator for a new one"
    valid = f"that of {address} is valid until {certificate.not_valid_after_utc:%Y-%m-%d}"
    findings = [*date_findings(f"the certificate of {address}", certificate, now, advice)]
    return findings or [Finding("certificate", "ok", valid)]


def key_findings(key: Path) -> list[Finding]:
    """Check a node's private key, and its public key in the same folder."""
    try:
        private_key = _read_private_key(key)
    except ConfigError as problem:
        return [Finding("key", "error", str(problem))]
    findings = [*mode_findings(key)]
    file, name = key.with_name(key.name + ".pub"), fingerprint_of(_ssh_public_key(private_key))
    if file.is_file() and fingerprint_of(read_or_explain(file, "a public key", "make it readable")) != name:
        text = f"{file} is no public key of {key}; `ssh-keygen -yf {key}` prints the right one"
        return [*findings, Finding("key", "error", text)]
    return [*findings, Finding("key", "ok", f"{key} is {name}; the server must have registered it")]


def _explain(
    problem: ssl.SSLError,
    certificate: str,
    host: str,
    names: Sequence[str],
    authority: Path,
    wrong_host_advice: str = _RENEWAL_ADVICE,
) -> str:
    code, text = getattr(problem, "verify_code", 0), getattr(problem, "verify_message", None) or str(problem.reason)
    if code in _WRONG_HOST:
        return f"{certificate} is for {', '.join(names) or 'no host'}, not for {host}; {wrong_host_advice}"
    if code in _WRONG_AUTHORITY:
        advice = "take the ca.crt of the folder that the server's certificate is from"
        return f"{certificate} is not signed by {authority} ({text}); {advice}"
    return f"{certificate} cannot be used ({text}); {_RENEWAL_ADVICE}"


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


def _read_private_key(file: Path) -> Any:
    content = read_or_explain(file, "a private key", "name the file that `fedloom flower keys` wrote")
    load = pem.load_ssh_private_key if b"OPENSSH" in content[:40] else pem.load_pem_private_key
    try:
        return load(content, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise ConfigError(f"{file}: no private key without a password; `fedloom flower keys` makes one") from None
