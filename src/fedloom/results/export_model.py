"""Export a trained model: its file, the metadata, and the model card, a page in Markdown from the run's records."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from fedloom.core.errors import ConfigError, RunFolderError, printable
from fedloom.core.files import expand_home, refuse_unwritable, write_atomic
from fedloom.core.text import counted, listed, render_template
from fedloom.data.scenario import client_samples
from fedloom.results.fairness import fairness
from fedloom.results.group import client_accuracies
from fedloom.runs.storage.run_data import RunData
from fedloom.runs.storage.run_folder import RunFolder

if TYPE_CHECKING:
    from fedloom.runs.export.modules import ExportMetadata, Training
    from fedloom.runs.export.trained import Trained


_MAX_CLASSES = 30  # listed one per row on the card
_COMMON_SCENARIO_KEYS = frozenset(
    ("source", "partition", "clients", "val", "split", "tests", "skews", "seed", "attack", "held_out", "public")
)
_MARKDOWN = str.maketrans({character: f"\\{character}" for character in "\\`*[]<>|"})


def model_card(metadata: ExportMetadata, parameters: int, run: RunData | None, versions: Mapping[str, str]) -> str:
    """Return the card of an exported model as Markdown.

    metadata: the metadata of the exported model. parameters: number of its trained and frozen weights. run: the
    finished run; None if unknown. versions: packages that trained the model, by name; empty if unknown."""
    values: dict[str, Any] = {"metadata": metadata, "training": metadata.training, "parameters": parameters}
    helpers: dict[str, Any] = {"with_keys": _with_keys, "some": _some, "numbers": _numbers, "counted": counted}
    of_run = {} if run is None else _facts(metadata, run)
    values |= {"run": run, "versions": versions, "listed": listed, "median": median}
    return render_markdown("model_card.md", **values, **helpers, **of_run)


def render_markdown(template: str, **values: object) -> str:
    """Render a page of `templates`, values escaped for Markdown. Raises `jinja2.UndefinedError` if one is missing."""
    return render_template("fedloom.results", template, _escaped, **values)


def _escaped(value: object) -> str:
    """Escape what Markdown would interpret in foreign text, such as the names of classes."""
    return printable(str(value)).translate(_MARKDOWN)


def _facts(metadata: ExportMetadata, run: RunData) -> dict[str, Any]:
    """Return what the template says of the run's data and results beyond its records."""
    training, numbers, scenario = metadata.training, run.numbers, run.scenario
    config, data = run.config.get("scenario", {}), scenario.get("data") or {}
    skipped, paths = {*_COMMON_SCENARIO_KEYS, *(data.get("source") or {})}, set(data.get("files") or [])
    keys = {key: value for key, value in config.items() if key not in skipped and value not in (None, [], {})}
    keys = {key: value for key, value in keys.items() if str(value) not in paths}
    facts: dict[str, Any] = {"partition": _with_keys(str(config.get("partition", "")), keys), "totals": [], "sizes": []}
    counts: list[list[int]] = scenario.get("class_counts") or []
    if counts and len(counts) == scenario.get("clients"):
        facts["sizes"] = sorted(client_samples(scenario))
        totals = [sum(column) for column in zip(*counts, strict=True)]
        if len(metadata.classes) <= _MAX_CLASSES:
            shares = [100 * total / max(1, sum(totals)) for total in totals]
            facts["totals"] = list(zip(metadata.classes, totals, shares, strict=True))
    values = {"accuracy": numbers["accuracy"], **numbers.get("figures", {}), **numbers.get("metrics", {})}
    values["best validation round's accuracy"] = numbers.get("best_val_accuracy")
    values["test loss of the last round"] = numbers.get("test_loss")
    attack = numbers.get("attack") or {}
    values |= {f"attack: {key.replace('_', ' ')}": attack.get(key) for key in ("success", "honest_accuracy")}
    facts["results"] = [(_BASELINES.get(name, name), v) for name, v in values.items() if isinstance(v, float | int)]
    facts["relation"], accuracies = _relation(training, numbers), client_accuracies(run.rows)
    spread = fairness([value for value in accuracies.values() if math.isfinite(value)])
    details, classes = numbers.get("details", {}), scenario.get("classes", [])
    measures = {name: (details.get(key) or {}).get("by_class") for name, key in _BY_CLASS.items()}
    by_class = {name: of for name, of in measures.items() if of and len(of) == len(classes) <= _MAX_CLASSES}
    return facts | {"accuracies": accuracies, "spread": spread, "by_class": by_class}


def _relation(training: Training, numbers: Mapping[str, Any]) -> str:
    """Say whether the run's results are those of the exported model."""
    kind = "global" if training.client is None else "personal"
    if training.at != numbers["select"] or not numbers["protocol"].startswith(kind):
        return "They are the run's results; this file holds another model of the run."
    return "This file's model is one of the tested ones." if kind == "personal" else "It tested this file's model."


_BASELINES = {"majority_global": "baseline: most frequent class", "majority_own": "baseline: client's own majority"}
_BY_CLASS = {"recall": "recall", "precision": "precision", "F1": "macro_f1"}


def _with_keys(name: str, keys: Mapping[str, Any], *without: str) -> str:
    words = [f"{key} {value}" for key, value in keys.items() if value is not None and key not in without]
    text = ", ".join(words)
    return f"{name} ({text})" if name and text else name or text


def _numbers(values: Sequence[float]) -> str:
    return ", ".join(map("{:.4g}".format, values))


def _some(names: Sequence[object]) -> str:
    shown = ", ".join(map(str, names[:_MAX_CLASSES]))
    return shown + (f" and {len(names) - _MAX_CLASSES:,} more" if len(names) > _MAX_CLASSES else "")


_MARK = "\n<!-- Written by fedloom, which replaces this file only while its text has the SHA-256 "


@dataclass(frozen=True, slots=True)
class ExportedFiles:
    """The files of an exported model, and the metadata that one of them holds."""

    model: Path
    metadata: Path
    card: Path
    described: ExportMetadata


def export_model(trained: Trained, path: Path | str, run: RunData | None = None) -> ExportedFiles:
    """Write a trained model, in the format of the file's suffix, with its metadata and its card in the same folder.

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
    # As for the metadata, so exports of one name in two formats do not share a card.
    card = path.with_name(f"{path.stem if path.suffix == '.safetensors' else path.name}.card.md")
    # Before the model is written: a refusal leaves the earlier export whole.
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
    """Raise `ConfigError` for a card that was edited or not written by fedloom; `RunFolderError` for a folder."""
    try:
        refuse_unwritable(card)
        written = card.read_text(encoding="utf-8") if card.exists() else None
    except OSError as error:
        raise RunFolderError(f"{card}: cannot be written ({error.strerror})") from None
    except UnicodeDecodeError:  # fedloom writes UTF-8 only, so others wrote this
        written = ""
    if written is None:
        return
    if written != _marked(written.rpartition(_MARK)[0]):
        raise ConfigError(f"{card}: this card was edited; move it, or choose another name with out=...")


def _marked(text: str) -> str:
    """Return the whole file of a card: its text, and the mark by which changes are noticed, also those below it."""
    return f"{text}{_MARK}{hashlib.sha256(text.encode(errors='backslashreplace')).hexdigest()} -->\n"
