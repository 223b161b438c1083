"""Private states on the node's disk, by run, client and round, written atomically.

The newest rounds are kept, and ever fewer older ones, to which a run can be rewound. The server says which round to
continue from, because a round counts only once the server has accepted its upload.
"""

from __future__ import annotations

import secrets
from pathlib import Path

from fedloom.core.errors import DataError
from fedloom.core.files import open_to_read, read_file, restrict_to_owner, user_folder, write_atomic
from fedloom.core.records import Record, RecordError, from_bytes, to_bytes
from fedloom.runs.storage.checkpoint import is_kept_for_rewind

_RECENT = 3  # newest states that are kept: a restarted server goes back one round, or two if its last file is damaged

_TOKEN = 16  # hexadecimal digits


def state_dir() -> Path:
    """Return the default folder of states: $FEDLOOM_STATE, else `fedloom` in the user's state folder."""
    return user_folder("state", "FEDLOOM_STATE")


class StateStore:
    """The states of one client in one run."""

    def __init__(self, folder: Path, run: str, client: int) -> None:
        self.path = folder / run / f"client-{client:06d}"

    def token(self) -> str:
        """Return the random token that identifies this disk, drawn once.

        Raises `DataError` if the file holds no token, or a folder is a link.
        """
        self._check_links()
        restrict_to_owner(self.path.parent)
        file = self.path / "token"
        if not file.exists():
            write_atomic(file, secrets.token_hex(8), private=True)
        with open_to_read(file) as stream:
            token = stream.read(_TOKEN + 1).decode("ascii", "replace")
        if len(token) != _TOKEN or set(token) - set("0123456789abcdef"):
            raise DataError(
                f"{file}: damaged, for a token is {_TOKEN} hexadecimal digits; delete the file, and let the server's "
                "administrator admit this client"
            )
        return token

    def save(self, round_: int, state: Record, spare: int | None = None) -> None:
        """Write the state after a round, and delete old ones, except `spare` and those of `is_kept_for_rewind`.

        Raises `OSError`, with the old states intact, and `DataError` if a folder is a link.
        """
        self._check_links()
        write_atomic(self._file(round_), to_bytes(state), private=True)
        for old in sorted(self.path.glob("round-*.safetensors"))[:-_RECENT]:
            stored = int(old.stem.removeprefix("round-"))
            if stored != spare and not is_kept_for_rewind(stored, round_):
                old.unlink(missing_ok=True)

    def load(self, round_: int) -> Record | None:
        """Read the state after a round; None if it is missing or damaged."""
        try:
            return from_bytes(read_file(self._file(round_)))
        except (FileNotFoundError, RecordError):
            return None

    def _check_links(self) -> None:
        """Refuse links in place of folders: the node would write, and delete, elsewhere."""
        for folder in (self.path.parent, self.path):
            if folder.is_symlink():
                raise DataError(f"{folder}: it is a link, and private states are not written through links; remove it")

    def _file(self, round_: int) -> Path:
        return self.path / f"round-{round_:06d}.safetensors"
