"""Small JSON files that the server of a federation keeps in the run's folder."""

from pathlib import Path
from typing import ClassVar, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from fedloom.core.errors import RunFolderError
from fedloom.core.files import read_file, write_atomic


class Stored(BaseModel):
    """The content of one file of a run's folder. ADVICE: what to do about a damaged one."""

    model_config = ConfigDict(extra="forbid", strict=True)
    FILE: ClassVar[str]
    ADVICE: ClassVar[str]

    @classmethod
    def read(cls, out: Path | None) -> Self | None:
        """Read the file in the folder `out`; None if there is none. Raises `RunFolderError` for a damaged file."""
        if out is None:
            return None
        try:
            return cls.model_validate_json(read_file(out / cls.FILE))
        except FileNotFoundError:
            return None
        except (OSError, ValidationError) as error:
            reason = "damaged" if isinstance(error, ValidationError) else f"cannot be read ({error.strerror})"
            raise RunFolderError(f"{out / cls.FILE}: {reason}; {cls.ADVICE}") from None

    def write(self, out: Path) -> None:
        """Write the file, which only its owner can read."""
        write_atomic(out / self.FILE, self.model_dump_json(indent=1) + "\n", private=True)
