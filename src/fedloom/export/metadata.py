"""The JSON beside exported weights: the net that they fit, its input and its classes."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load, save

from fedloom._version import __version__
from fedloom.core.errors import ConfigError, RunFolderError
from fedloom.core.files import parse_json, refuse_unwritable, write_atomic
from fedloom.core.trees import Tree
from fedloom.storage.curves import RoundSelection

SUFFIX = ".safetensors"


class _Part(BaseModel):
    """A base of metadata that ignores unknown keys, because a later version may have written them."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Architecture(_Part):
    """A registered model with its options, or the class of one that the user passed as a Python object (`given`).

    forward: "model" if the weights are the model's own; "method" if the method predicts with several nets or more.
    """

    model: str
    options: dict[str, Any]
    given: bool
    forward: Literal["model", "method"]


class Input(_Part):
    """The format of samples, as `fedloom.data.describe_input` gives it. reading: the source's keys for new files."""

    shape: tuple[int, ...]
    dtype: Literal["uint8", "float32", "int64"]
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None
    white: float | None
    ids: int | None
    words: tuple[str, ...]
    features: tuple[str, ...] = ()
    reading: dict[str, Any] = {}


class Training(_Part):
    """The origin of the weights: method, round and client (None for the server's model)."""

    method: str
    preset: str
    options: dict[str, Any]
    seed: int
    clients: int
    rounds: int
    round: int
    at: RoundSelection
    client: int | None


class ExportMetadata(_Part):
    """All that is needed to use the weights. `weights` and `sha256`: name and hash of the weights' file."""

    fedloom: str = __version__
    architecture: Architecture
    classes: tuple[str, ...]
    input: Input
    training: Training
    weights: str = ""
    sha256: str = ""


def write(metadata: ExportMetadata, tree: Tree, path: Path) -> Path:
    """Write `tree` to `path` and metadata beside it, and return the latter's path. Raises as `check_place`."""
    check_place(path)
    beside = path.with_suffix(".json")
    raw = save({name: value.detach().cpu().clone().contiguous() for name, value in tree.items()}, {"format": "pt"})
    described = metadata.model_copy(update={"weights": path.name, "sha256": hashlib.sha256(raw).hexdigest()})
    try:
        write_atomic(path, raw)
        write_atomic(beside, described.model_dump_json(indent=1) + "\n")
    except OSError as error:
        raise RunFolderError(f"{path}: cannot be written ({error.strerror})") from None
    return beside


def check_place(path: Path) -> None:
    """Raise `ConfigError` for a wrong suffix or foreign files at `path`, `RunFolderError` if it is not writable."""
    if path.suffix != SUFFIX:
        raise ConfigError(
            f"{path}: weights are written as {SUFFIX}; take a name such as {path.stem or 'model'}{SUFFIX}"
        )
    beside = path.with_suffix(".json")
    for file in (path, beside):
        if file.exists() and not _exported(beside, path.name):
            raise ConfigError(f"{file} is there, and no export of fedloom's; choose another name with --out")
        try:
            refuse_unwritable(file)
        except OSError as error:
            raise RunFolderError(f"{file}: cannot be written ({error.strerror})") from None


def read(path: Path) -> tuple[ExportMetadata, Tree]:
    """Read the metadata and the weights that `write` wrote to `path`.

    Raises `RunFolderError` for files that are missing, damaged, or do not belong together.
    """
    beside = path.with_suffix(".json")
    try:
        metadata = ExportMetadata.model_validate_json(beside.read_bytes())
        raw = path.read_bytes()
        tree = load(raw)
    except FileNotFoundError as error:
        raise RunFolderError(f"{error.filename}: no such file; an export is {path.name} and {beside.name}") from None
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"]) or "it"
        raise RunFolderError(
            f"{beside}: no metadata of an export ({key}: {first['msg']}); export the run again"
        ) from None
    except (SafetensorError, OSError) as error:
        raise RunFolderError(f"{path}: cannot be read ({error}); export the run again") from None
    if hashlib.sha256(raw).hexdigest() != metadata.sha256:
        raise RunFolderError(f"{path}: does not match the sha256 in {beside.name}; export the run again")
    return metadata, tree


def _exported(beside: Path, name: str) -> bool:
    """Whether `beside` is the metadata of the weights `name`."""
    try:
        content = parse_json(beside.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and "fedloom" in content and content.get("weights") == name
