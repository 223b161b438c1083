"""Fingerprints of the nodes' public keys, as `ssh-keygen -lf` prints them."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path

from fedloom.core.errors import ConfigError, short_repr

_FINGERPRINT = re.compile(r"SHA256:[A-Za-z0-9+/]{43}")
_FILE = re.compile(r"node-(\d{6})\.pub")


def fingerprint_of(public_key: bytes) -> str:
    """Return the fingerprint of a public key, PEM or OpenSSH; empty for bytes that are no key."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        PublicFormat,
        load_pem_public_key,
        load_ssh_public_key,
    )

    try:
        load = load_pem_public_key if public_key.startswith(b"-----") else load_ssh_public_key
        text = load(public_key).public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    except (ValueError, UnsupportedAlgorithm):
        return ""
    digest = hashlib.sha256(base64.b64decode(text.split()[1])).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def public_keys(folder: Path) -> dict[int, str]:
    """Return the fingerprints of a folder's public keys by client; `fedloom flower keys` writes such a folder.

    Raises `ConfigError` for a file that is no key, and for a folder without keys.
    """
    matches = {file: _FILE.fullmatch(file.name) for file in sorted(folder.glob("node-*.pub"))}
    files = {int(match[1]): file for file, match in matches.items() if match}
    if not files:
        raise ConfigError(f"{folder}: it has no node-000000.pub and so on; name the folder of `fedloom flower keys`")
    keys = {client: fingerprint_of(file.read_bytes()) for client, file in files.items()}
    for client, key in keys.items():
        if not key:
            raise ConfigError(f"{files[client]}: no public key; `fedloom flower keys` makes one, or remove the file")
    return keys


def read_fingerprint(key: str) -> str:
    """Return `key` if it is a fingerprint, or that of the public key's file `key`. Raises `ConfigError` otherwise."""
    if _FINGERPRINT.fullmatch(key):
        return key
    try:
        fingerprint = fingerprint_of(Path(key).read_bytes())
    except (OSError, ValueError):
        fingerprint = ""
    if not fingerprint:
        raise ConfigError(
            f"--key {short_repr(key)}: need SHA256:... as `ssh-keygen -lf` prints it, or a public key's file"
        )
    return fingerprint
