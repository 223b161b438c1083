"""What stands beside exported weights: the JSON that says which net they fit, what it takes and what comes out."""

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
    """What this version does not know is left alone: a later one may have written it."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Architecture(_Part):
    """A registered model with its options, or the class of one that came as a Python object (`given`).

    forward: "model" where the weights are the model's own; "method" where the method predicts with several nets, or
    with more than the net.
    """

    model: str
    options: dict[str, Any]
    given: bool
    forward: Literal["model", "method"]


class Input(_Part):
    """How samples must look: see `fedloom.data.describe_input`. reading: the source's keys for new files
    (`Source.reading_keys`)."""

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
    """Where the weights come from: method, round, and whose they are (`client` None: the server's)."""

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
    """All that it takes to use the weights. `weights` and `sha256` are the file's beside it."""

    fedloom: str = __version__
    architecture: Architecture
    classes: tuple[str, ...]
    input: Input
    training: Training
    weights: str = ""
    sha256: str = ""


def write(metadata: ExportMetadata, tree: Tree, path: Path) -> Path:
    """Write `tree` to `path` and the metadata beside it; the metadata's path. Raises what `check_place` raises."""
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
    """Raises `ConfigError` for a path of another suffix and for files there that fedloom did not export,
    `RunFolderError` for a place that cannot be written."""
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
    """The metadata and the weights that `write` wrote to `path`.

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
    """Whether the metadata of the weights `name` are there."""
    try:
        content = parse_json(beside.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and "fedloom" in content and content.get("weights") == name
