"""Export a trained model: its file, the metadata and the model card beside it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedloom.core.errors import ConfigError, RunFolderError
from fedloom.core.files import expand_home, refuse_unwritable, write_atomic
from fedloom.results.model_card import model_card
from fedloom.runs.storage.run_data import RunData
from fedloom.runs.storage.run_folder import RunFolder

if TYPE_CHECKING:
    from fedloom.runs.export.modules import ExportMetadata
    from fedloom.runs.export.trained import Trained

_MARK = "\n<!-- Written by fedloom, which replaces this file only while its text has the SHA-256 "


@dataclass(frozen=True, slots=True)
class ExportedFiles:
    """The files of an exported model, and the metadata that one of them holds."""

    model: Path
    metadata: Path
    card: Path
    described: ExportMetadata


def export_model(trained: Trained, path: Path | str, run: RunData | None = None) -> ExportedFiles:
    """Write a trained model, in the format of the file's suffix, with its metadata and its card beside it.

    Args:
        trained: the model.
        path: the file.
        run: the finished run of the model, whose facts the card states; None leaves them out.

    Raises as `fedloom.runs.export.trained.Trained.save`, and `ConfigError` if the card was edited since fedloom
    wrote it.
    """
    from fedloom.runs.export.modules import ExportMetadata, check_place  # imports torch

    path = expand_home(path)
    check_place(path)
    card = path.with_name(f"{path.stem if path.suffix == '.safetensors' else path.name}.card.md")
    _refuse_edited(card)
    metadata = trained.save(path)
    described = ExportMetadata.model_validate_json(metadata.read_bytes())
    parameters = sum(parameter.numel() for parameter in trained.module.parameters())
    text = model_card(described, parameters, run, _versions(run))
    write_atomic(card, _marked(text))
    return ExportedFiles(path, metadata, card, described)


def _versions(run: RunData | None) -> dict[str, str]:
    environment = None if run is None or run.folder is None else RunFolder(run.folder).read_json("env.json")
    versions = (environment or {}).get("versions", {})
    return {str(name): str(version) for name, version in versions.items()} if isinstance(versions, dict) else {}


def _refuse_edited(card: Path) -> None:
    """Raise `ConfigError` if fedloom did not write the card, or somebody edited it; `RunFolderError` for a folder."""
    try:
        refuse_unwritable(card)
        written = card.read_text(encoding="utf-8") if card.exists() else None
    except OSError as error:
        raise RunFolderError(f"{card}: cannot be written ({error.strerror})") from None
    except UnicodeDecodeError:
        written = ""
    if written is None:
        return
    if written != _marked(written.rpartition(_MARK)[0]):
        raise ConfigError(f"{card}: somebody edited this card; move it, or choose another name with --out")


def _marked(text: str) -> str:
    """Return the whole file of a card: its text, and the mark by which changes are noticed, also those below it."""
    return f"{text}{_MARK}{hashlib.sha256(text.encode(errors='backslashreplace')).hexdigest()} -->\n"
