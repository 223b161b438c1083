"""Certificates for the server and keys for nodes: made for a small federation, and checked before anything starts.

ca.crt and ca.key sign; server.crt and server.key are the server's; node-000000, node-000000.pub are the first node's.
A federation with a certificate authority of its own uses that, and this only to make the nodes' keys.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from fedloom.core.errors import ConfigError
from fedloom.core.files import private_folder, write_atomic

_DAYS = 365
_SOON = timedelta(days=30)
_CERTIFICATES = ("ca.crt", "server.crt")
_ANEW = "delete the folder's .crt files, and `fedloom flower keys` makes new ones"


def make(folder: Path, hosts: list[str], nodes: int) -> None:
    """Write what is missing: an authority, a certificate for `hosts` (names or addresses), and keys of `nodes` nodes.

    Private keys can be read by their owner alone, also those that were there. Raises `ConfigError` if the folder has
    another server's certificate.
    """
    private_folder(folder)
    for key in (*folder.glob("*.key"), *(file.with_suffix("") for file in folder.glob("node-*.pub"))):
        if key.is_file() and not key.is_symlink():
            key.chmod(0o600)
    if not (folder / "server.crt").exists():
        _make_certificates(folder, hosts)
    for node in range(nodes):
        if not (folder / f"node-{node:06d}").exists():
            _make_node_key(folder / f"node-{node:06d}")


def check(folder: Path, host: str, note: Callable[[str], None], now: datetime | None = None) -> None:
    """Raises `ConfigError` if certificates are missing, damaged, expired, or for another host; notes those near their
    end."""
    from cryptography import x509
    from cryptography.x509.oid import ExtensionOID

    for name in (*_CERTIFICATES, "server.key"):
        if not (folder / name).is_file():
            raise ConfigError(f"{folder / name} is missing; {_ANEW}")
    now = now or datetime.now(UTC)
    for name in _CERTIFICATES:
        if (end := _read(folder / name).not_valid_after_utc) <= now:
            raise ConfigError(f"{folder / name} ended on {end:%Y-%m-%d}; {_ANEW}")
    for text in ending(folder, now):
        note(text)
    try:
        names: Any = (
            _read(folder / "server.crt").extensions.get_extension_for_oid(ExtensionOID.SUBJECT_ALTERNATIVE_NAME).value
        )
    except x509.ExtensionNotFound:
        names = ()
    known = [str(name.value) for name in names]
    if host not in known:
        raise ConfigError(f"{folder / 'server.crt'} is for {', '.join(known) or 'no host'}, not for {host}; {_ANEW}")


def ending(folder: Path, now: datetime | None = None) -> list[str]:
    """A sentence for each certificate of a folder that has ended, or ends within 30 days.

    Raises `ConfigError` for a damaged one.
    """
    now, told = now or datetime.now(UTC), []
    for file in (folder / name for name in _CERTIFICATES if (folder / name).is_file()):
        end = _read(file).not_valid_after_utc
        if end <= now:
            told.append(f"{file} ended on {end:%Y-%m-%d}")
        elif end - now < _SOON:
            told.append(f"{file} ends on {end:%Y-%m-%d}, in {(end - now).days} days")
    return told


def _read(file: Path) -> Any:
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificate(file.read_bytes())
    except ValueError:
        raise ConfigError(f"{file}: no certificate in PEM; {_ANEW}") from None


def _make_certificates(folder: Path, hosts: list[str]) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    now, curve = datetime.now(UTC) - timedelta(minutes=5), ec.SECP384R1()

    def named(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    def signed(name: str, key: Any, issuer: str, by: Any, *extensions: tuple[Any, bool]) -> Any:
        made = x509.CertificateBuilder().subject_name(named(name)).issuer_name(named(issuer))
        made = made.public_key(key.public_key()).serial_number(x509.random_serial_number())
        made = made.not_valid_before(now).not_valid_after(now + timedelta(days=_DAYS))
        for extension, critical in extensions:
            made = made.add_extension(extension, critical)
        return made.sign(by, hashes.SHA384())

    authority, server = ec.generate_private_key(curve), ec.generate_private_key(curve)
    usage = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        crl_sign=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    own = x509.SubjectKeyIdentifier.from_public_key(authority.public_key())
    root = signed(
        "fedloom federation", authority, "fedloom federation", authority,
        (x509.BasicConstraints(ca=True, path_length=0), True), (usage, True), (own, False),
    )  # fmt: skip
    leaf = signed(
        hosts[0], server, "fedloom federation", authority,
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (x509.SubjectAlternativeName([_host(host) for host in hosts]), False),
        (x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.SERVER_AUTH]), False),
        (x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), False),
        (x509.SubjectKeyIdentifier.from_public_key(server.public_key()), False),
    )  # fmt: skip
    for name, key in (("ca.key", authority), ("server.key", server)):
        write_atomic(folder / name, _private(key, "PKCS8"), private=True)
    from cryptography.hazmat.primitives.serialization import Encoding

    write_atomic(folder / "ca.crt", root.public_bytes(Encoding.PEM))
    write_atomic(folder / "server.crt", leaf.public_bytes(Encoding.PEM))


def _make_node_key(file: Path) -> None:
    """As `ssh-keygen -t ecdsa -b 384` would."""
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    key = ec.generate_private_key(ec.SECP384R1())
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    write_atomic(file.with_name(file.name + ".pub"), public + b"\n")
    write_atomic(file, _private(key, "OpenSSH"), private=True)


def _private(key: Any, form: str) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    made: bytes = key.private_bytes(Encoding.PEM, getattr(PrivateFormat, form), NoEncryption())
    return made


def _host(host: str) -> Any:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
