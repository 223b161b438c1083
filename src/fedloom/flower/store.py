"""What a client keeps on its node's own disk: private states by run, client and round, written whole or not at all.

The newest few rounds stay, and ever fewer older ones, to which a run can be taken back. The server says from which
round to go on, for a round counts only once the server has it: an upload that was lost, refused or late leaves the
state before it in force.
"""

from __future__ import annotations

import secrets
from pathlib import Path

from fedloom.core.errors import DataError
from fedloom.core.files import restrict_to_owner, user_folder, write_atomic
from fedloom.core.records import Record, RecordError, from_bytes, to_bytes
from fedloom.storage.checkpoint import is_kept_for_rewind

_KEPT = 3  # states of a client; a server that starts again goes back by one round, or two if its last file is damaged

_TOKEN = 16  # hexadecimal digits


def state_dir() -> Path:
    """Return the default folder of nodes' states: $FEDLOOM_STATE, else the platform's state folder for fedloom."""
    return user_folder("state", "FEDLOOM_STATE")


class StateStore:
    """The states of one client in one run. `run` and the folder's other parts are made by fedloom, never by letters of
    other clients."""

    def __init__(self, folder: Path, run: str, client: int) -> None:
        self.path = folder / run / f"client-{client:06d}"

    def token(self) -> str:
        """A word that tells this disk from others, drawn once; what earlier versions let others read is closed.

        Raises `DataError` if the file holds no token, or a folder is a link.
        """
        self._check_links()
        restrict_to_owner(self.path.parent)
        file = self.path / "token"
        if not file.exists():
            write_atomic(file, secrets.token_hex(8), private=True)
        with file.open("rb") as stream:
            token = stream.read(_TOKEN + 1).decode("ascii", "replace")
        if len(token) != _TOKEN or set(token) - set("0123456789abcdef"):
            raise DataError(
                f"{file}: damaged, for a token is {_TOKEN} hexadecimal digits; delete the file, and let the server's "
                "administrator admit this client"
            )
        return token

    def save(self, round_: int, state: Record, spare: int = 0) -> None:
        """Keep the state after a round, that of the round `spare`, and older ones as `is_kept_for_rewind` says.

        Raises `OSError` and then leaves the others as they were; `DataError` if a folder is a link.
        """
        self._check_links()
        write_atomic(self._file(round_), to_bytes(state), private=True)
        for old in sorted(self.path.glob("round-*.safetensors"))[:-_KEPT]:
            if old != self._file(spare) and not is_kept_for_rewind(int(old.stem.removeprefix("round-")), round_):
                old.unlink(missing_ok=True)

    def load(self, round_: int) -> Record | None:
        """The state after a round; None if it is not there, or damaged."""
        try:
            return from_bytes(self._file(round_).read_bytes())
        except (FileNotFoundError, RecordError):
            return None

    def _check_links(self) -> None:
        """A link in place of a folder would have this node write, and delete, elsewhere."""
        for folder in (self.path.parent, self.path):
            if folder.is_symlink():
                raise DataError(f"{folder}: it is a link, and private states are not written through links; remove it")

    def _file(self, round_: int) -> Path:
        return self.path / f"round-{round_:06d}.safetensors"
