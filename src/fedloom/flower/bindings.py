"""Which node may join as a client: its key and disk are bound when it first joins, in a file of the run's folder.
The SuperLink has checked the node's key, whose fingerprint is the one that `ssh-keygen -lf` prints. A random token
identifies the disk. A node with another key or disk is refused until the administrator admits it."""

import base64
import contextlib
import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from filelock import FileLock, Timeout
from pydantic import Field

from fedloom.core.errors import ConfigError, RunFolderError, short_repr
from fedloom.flower.status import Stored, Strict
from fedloom.flower.wire import MessageError

_FINGERPRINT = re.compile(r"SHA256:[A-Za-z0-9+/]{43}")
_FILE = re.compile(r"node-(\d{6})\.pub")
_TOKEN = re.compile(r"[0-9a-f]{16}")
_LOCK_SECONDS = 10.0


def fingerprint_of(public_key: bytes) -> str:
    """Return the fingerprint of a public key, PEM or OpenSSH; empty for bytes that are no key."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization as pem

    try:
        load = pem.load_pem_public_key if public_key.startswith(b"-----") else pem.load_ssh_public_key
        text = load(public_key).public_bytes(pem.Encoding.OpenSSH, pem.PublicFormat.OpenSSH)
    except (ValueError, UnsupportedAlgorithm):
        return ""
    return "SHA256:" + base64.b64encode(hashlib.sha256(base64.b64decode(text.split()[1])).digest()).decode().rstrip("=")


def public_keys(folder: Path) -> dict[int, str]:
    """Return the fingerprints of the public keys in a folder of `fedloom flower keys`, by client."""
    matches = {file: _FILE.fullmatch(file.name) for file in sorted(folder.glob("node-*.pub"))}
    files = {int(match[1]): file for file, match in matches.items() if match}
    if not files:
        raise ConfigError(f"{folder}: it has no node-000000.pub and so on; name the folder of `fedloom flower keys`")
    keys = {client: fingerprint_of(file.read_bytes()) for client, file in files.items()}
    for client, key in keys.items():
        if not key:
            raise ConfigError(f"{files[client]}: no public key; `fedloom flower keys` makes one, or remove the file")
    return keys


class WrongClientError(MessageError):
    """A node whose key is bound to `client`, and that joins as another one."""

    def __init__(self, client: int, text: str) -> None:
        self.client = client
        super().__init__(text)


class Binding(Strict, frozen=True):
    """The fingerprint of a client's key, and the digest of its disk's token; empty if any one is admitted."""

    key: str
    token: str


class _BindingsFile(Stored):
    FILE = "flower-seats.json"
    ADVICE = "put it back, or delete it, and all clients are bound again"

    version: int = Field(1, ge=1, le=1)
    clients: dict[Annotated[str, Field(pattern=r"^\d+$")], Binding] = Field(default_factory=dict)


FILE = _BindingsFile.FILE


class NodeBindings:
    """The bindings of one run. keys: folder with the clients' public keys, which are bound from the start.
    Nothing is written before `begin`, so a server that cannot begin leaves the folder as it was. Afterwards the file
    decides, because the administrator can change it while the server runs."""

    def __init__(self, out: Path | None, keys: Path | None = None) -> None:
        self._out, self._begun = out, False
        self._pending: dict[int, tuple[Binding | None, Binding]] = {}  # not yet written: old and new binding
        self._bindings = {} if out is None else read_bindings(out)
        self._stamp = self._file_stamp()
        for client, key in ({} if keys is None else public_keys(keys)).items():
            bound = self._bindings.get(client)
            # A first key keeps the bound disk; another key means another node, whose disk is bound when it joins.
            if bound is None or bound.key != key:
                self._bind(client, Binding(key=key, token="" if bound is None or bound.key else bound.token))

    def begin(self) -> None:
        """Start writing bindings: the run belongs to this server."""
        self._begun = True
        if self._out is not None and self._stamp is None:
            _write(self._out, {})  # the administrator can admit clients before they join
            self._stamp = self._file_stamp()
        self.flush()

    def check(self, client: int, key: str, token: str) -> None:
        """Raise `MessageError` if a `client` joins with another `key` (a fingerprint, or empty) or disk's `token`."""
        if not _TOKEN.fullmatch(token):
            raise MessageError(
                f"client {client} joins with the token {short_repr(token)}; a token is 16 hexadecimal digits"
            )
        bound = self._bindings.get(client)
        holder = next((owner for owner, binding in self._bindings.items() if key and binding.key == key), client)
        if holder != client:
            raise WrongClientError(
                holder,
                f"its key {key} is that of client {holder}, and it joins as client {client}; start it with "
                f"partition-id={holder}, or make a key for each client",
            )
        if bound is not None and key and bound.key not in ("", key):
            raise MessageError(
                f"it joins as client {client} with the key {key}, and client {client} is bound to {bound.key}; if the "
                f"change is meant, run {self._command(client, key)}"
            )
        if bound is not None and bound.token not in ("", _digest(token)):
            raise MessageError(
                f"it joins as client {client} from another disk than before; if its disk was lost or moved, run "
                f"{self._command(client, key)}"
            )

    def claim(self, client: int, key: str, token: str) -> None:
        """Check as `check` does, and bind the `client` to the `key` and the digest of the `token`."""
        self.check(client, key, token)
        bound = self._bindings.get(client)
        # A SuperLink that checks no keys does not undo a key that was bound before.
        binding = Binding(key=key or (bound.key if bound else ""), token=_digest(token))
        if binding != bound:
            self._bind(client, binding)

    def _bind(self, client: int, binding: Binding) -> None:
        # Of several changes, the binding before the first is kept: `flush` compares the file with it.
        stored, _ = self._pending.get(client, (self._bindings.get(client), binding))
        self._bindings[client], self._pending[client] = binding, (stored, binding)

    def flush(self) -> None:
        """Write new bindings, except those that the administrator has changed in the file meanwhile."""
        if not self._pending or not self._begun or self._out is None:
            return
        with _locked(self._out):
            current, new = read_bindings(self._out), self._pending.items()
            unchanged = {client: binding for client, (stored, binding) in new if current.get(client) == stored}
            self._bindings = current | unchanged
            _write(self._out, self._bindings)
            self._stamp = self._file_stamp()
        self._pending = {}

    def _command(self, client: int, key: str) -> str:
        folder = "RUN" if self._out is None else self._out
        return f"`fedloom flower admit {folder} --client {client}{f' --key {key}' if key else ''}`"

    def refresh(self) -> bool:
        """Read the file again if the administrator has changed it; return whether this was so."""
        if not self._begun or self._out is None or self._file_stamp() == self._stamp:
            return False
        self._stamp = self._file_stamp()
        self._bindings = read_bindings(self._out) | {client: new for client, (_, new) in self._pending.items()}
        return True

    def _file_stamp(self) -> tuple[int, int] | None:
        try:
            status = (self._out / FILE).stat() if self._out is not None else None
        except FileNotFoundError:
            return None
        # A file that replaces another has a different inode, even if both were written in one tick of the clock.
        return None if status is None else (status.st_ino, status.st_mtime_ns)


def read_bindings(out: Path) -> dict[int, Binding]:
    """Read the bindings in a run's folder, by client. Raises `RunFolderError` for a damaged file."""
    content = _BindingsFile.read(out) or _BindingsFile()
    return {int(client): binding for client, binding in content.clients.items()}


def admit(out: Path, client: int, key: str | None = None) -> None:
    """Let another key or disk join as a `client` of the run in `out`, also while its server runs.
    key: a fingerprint, or the file of a public key; None admits the next node that joins as this client."""
    if not (out / FILE).is_file():
        raise RunFolderError(f"{out}: it has no {FILE}; name the folder of a run over Flower, on its server")
    fingerprint = key
    if key is not None and not _FINGERPRINT.fullmatch(key):
        with contextlib.suppress(OSError, ValueError):
            fingerprint = fingerprint_of(Path(key).read_bytes())
        if fingerprint in ("", key):
            needed = "SHA256:... as `ssh-keygen -lf` prints it, or a public key's file"
            raise ConfigError(f"--key {short_repr(key)}: need {needed}")
    with _locked(out):
        bindings = read_bindings(out)
        holders = [owner for owner, binding in bindings.items() if binding.key == fingerprint and owner != client]
        if fingerprint and holders:
            raise ConfigError(
                f"the key {fingerprint} is that of client {holders[0]}; each client needs a different key"
            )
        bindings.pop(client, None)
        if fingerprint is not None:
            bindings[client] = Binding(key=fingerprint, token="")
        _write(out, bindings)


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def _write(out: Path, bindings: dict[int, Binding]) -> None:
    _BindingsFile(clients={str(client): bindings[client] for client in sorted(bindings)}).write(out)


@contextlib.contextmanager
def _locked(out: Path) -> Iterator[None]:
    try:
        with FileLock(out / f".{FILE}.lock", timeout=_LOCK_SECONDS, mode=0o600):
            yield
    except Timeout:
        raise RunFolderError(f"{out / FILE} is locked by another process; try again") from None
