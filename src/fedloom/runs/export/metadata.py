"""The JSON beside an exported model: the net that its weights fit, its input and its classes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load

from fedloom._version import __version__
from fedloom.core.errors import ConfigError, RunFolderError, short_repr, suggest_name
from fedloom.core.files import parse_json, refuse_unwritable, write_atomic
from fedloom.core.trees import Tree
from fedloom.runs.storage.curves import RoundSelection

ExportFormat = Literal["safetensors", "onnx", "torch-export"]
SUFFIX = ".safetensors"
SUFFIXES: Mapping[ExportFormat, str] = {"safetensors": SUFFIX, "onnx": ".onnx", "torch-export": ".pt2"}


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
    ranges: tuple[tuple[float, float], ...] = ()
    reading: dict[str, Any] = {}


class Training(_Part):
    """The origin of the weights: method, round and client (None for the server's model). source: the method's paper."""

    method: str
    source: str = ""
    preset: str
    options: dict[str, Any]
    seed: int
    clients: int
    rounds: int
    round: int
    at: RoundSelection
    client: int | None


class Graph(_Part):
    """How an exported graph is called, and how it was checked against the module.

    Attributes:
        inputs: names of its inputs, whose first dimension is the batch, of any size.
        outputs: names of its outputs, whose first dimension is the batch.
        opset: version of ONNX's operators; None for torch.export.
        checked_with: package that ran the graph.
        batches: sizes of the checked batches of random samples.
        difference: the largest one between class scores of the graph and of the module.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    opset: int | None
    torch: str
    checked_with: str
    batches: tuple[int, ...]
    difference: float


class ExportMetadata(_Part):
    """All that is needed to use an exported model.

    weights, sha256: name and hash of the file with the weights. graph: of formats that hold the computation too.
    """

    fedloom: str = __version__
    architecture: Architecture
    classes: tuple[str, ...]
    input: Input
    training: Training
    format: ExportFormat = "safetensors"
    graph: Graph | None = None
    weights: str = ""
    sha256: str = ""


def format_of(path: Path) -> ExportFormat:
    """Return the format that a file's suffix stands for. Raises `ConfigError` for other suffixes."""
    formats = {suffix: name for name, suffix in SUFFIXES.items()}
    if path.suffix not in formats:
        listed = ", ".join(f"{path.stem or 'model'}{suffix} ({name})" for suffix, name in formats.items())
        raise ConfigError(f"{path}: no format has the suffix {path.suffix!r}; take a name such as {listed}")
    return formats[path.suffix]


def format_named(name: str) -> ExportFormat:
    """Return the format of this name. Raises `ConfigError` if there is none."""
    known: tuple[ExportFormat, ...] = get_args(ExportFormat)
    for known_name in known:
        if known_name == name:
            return known_name
    raise ConfigError(f"format = {short_repr(name)}: {suggest_name(name, known)}")


def metadata_path(path: Path) -> Path:
    """Return the path of the metadata of an exported file: model.json, or model.onnx.json and model.pt2.json."""
    return path.with_suffix(".json") if path.suffix == SUFFIX else path.with_name(f"{path.name}.json")


def write(metadata: ExportMetadata, raw: bytes, path: Path) -> Path:
    """Write the bytes of a model to `path` and metadata beside it, and return the latter's path.

    Raises as `check_place`.
    """
    check_place(path)
    beside = metadata_path(path)
    described = metadata.model_copy(
        update={"format": format_of(path), "weights": path.name, "sha256": hashlib.sha256(raw).hexdigest()}
    )
    try:
        write_atomic(path, raw)
        write_atomic(beside, described.model_dump_json(indent=1) + "\n")
    except OSError as error:
        raise RunFolderError(f"{path}: cannot be written ({error.strerror})") from None
    return beside


def check_place(path: Path) -> None:
    """Raise `ConfigError` for a wrong suffix or foreign files at `path`, `RunFolderError` if it is not writable."""
    format_of(path)
    beside = metadata_path(path)
    for file in (path, beside):
        if file.exists() and not is_exported(path):
            raise ConfigError(f"{file} is there, and no export of fedloom's; choose another name with --out")
        try:
            refuse_unwritable(file)
        except OSError as error:
            raise RunFolderError(f"{file}: cannot be written ({error.strerror})") from None


def read(path: Path) -> tuple[ExportMetadata, Tree]:
    """Read the metadata and the weights that `write` wrote to `path`.

    Raises `RunFolderError` for files that are missing, damaged, or do not belong together.
    """
    beside = metadata_path(path)
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


def is_exported(path: Path) -> bool:
    """Return whether the metadata beside `path` are those of a model that fedloom exported to this path."""
    try:
        content = parse_json(metadata_path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and "fedloom" in content and content.get("weights") == path.name
