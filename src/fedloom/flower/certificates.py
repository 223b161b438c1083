"""Certificates for the server and keys for the nodes of a small federation.

ca.crt and ca.key sign; server.crt and server.key are the server's; node-000000, node-000000.pub are the first node's.
A federation that has its own certificate authority needs only the nodes' keys.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from fedloom.core.files import private_folder, write_atomic
from fedloom.flower.preflight.finding import refuse_errors
from fedloom.flower.preflight.tls import LOOPBACK, date_findings, read_certificate, server_certificate_findings

_DAYS = 365


def create(folder: Path, hosts: list[str], nodes: int) -> None:
    """Write the missing files: an authority, a certificate for `hosts` (names or addresses), keys of `nodes` nodes.

    The certificate is for 127.0.0.1 too, because the SuperLink's own processes connect there. Only their owner can read
    private keys, including keys that were there before.
    """
    private_folder(folder)
    for key in (*folder.glob("*.key"), *(file.with_suffix("") for file in folder.glob("node-*.pub"))):
        if key.is_file() and not key.is_symlink():
            key.chmod(0o600)
    if not (folder / "server.crt").exists():
        _make_certificates(folder, list(dict.fromkeys([*hosts, LOOPBACK])))
    for node in range(nodes):
        if not (folder / f"node-{node:06d}").exists():
            _make_node_key(folder / f"node-{node:06d}")


def check(folder: Path, host: str, note: Callable[[str], None], now: datetime | None = None) -> None:
    """Check the certificates of a folder, and note those that expire soon.

    Raises `ConfigError` if one is missing, damaged, expired, or not for `host` and 127.0.0.1.
    """
    refuse_errors(server_certificate_findings(folder, [host], now or datetime.now(UTC)), note)


def expiring(folder: Path, now: datetime | None = None) -> list[str]:
    """Return a sentence for each certificate that has expired, or expires within 30 days.

    Raises `ConfigError` for a damaged certificate.
    """
    files = [folder / name for name in ("ca.crt", "server.crt") if (folder / name).is_file()]
    now = now or datetime.now(UTC)
    return [finding.text for file in files for finding in date_findings(str(file), read_certificate(file), now)]


def _make_certificates(folder: Path, hosts: list[str]) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    now, curve = datetime.now(UTC) - timedelta(minutes=5), ec.SECP384R1()

    def named(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

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
        write_atomic(folder / name, _private_pem(key, "PKCS8"), private=True)
    from cryptography.hazmat.primitives.serialization import Encoding

    write_atomic(folder / "ca.crt", root.public_bytes(Encoding.PEM))
    write_atomic(folder / "server.crt", leaf.public_bytes(Encoding.PEM))


def _make_node_key(file: Path) -> None:
    """Write a key pair as `ssh-keygen -t ecdsa -b 384` would."""
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    key = ec.generate_private_key(ec.SECP384R1())
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    write_atomic(file.with_name(file.name + ".pub"), public + b"\n")
    write_atomic(file, _private_pem(key, "OpenSSH"), private=True)


def _private_pem(key: Any, format_name: str) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    pem: bytes = key.private_bytes(Encoding.PEM, getattr(PrivateFormat, format_name), NoEncryption())
    return pem


def _general_name(host: str) -> Any:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
