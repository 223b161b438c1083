"""Export a trained model: its file, the metadata, and the model card, a page in Markdown from the run's records."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, StrictUndefined

from fedloom.core.errors import ConfigError, RunFolderError, printable
from fedloom.core.files import expand_home, refuse_unwritable, write_atomic
from fedloom.core.text import counted, listed
from fedloom.data.scenario import client_samples
from fedloom.results.fairness import fairness
from fedloom.results.group import client_accuracies
from fedloom.runs.storage.run_data import RunData
from fedloom.runs.storage.run_folder import RunFolder

if TYPE_CHECKING:
    from fedloom.runs.export.modules import ExportMetadata, Input, Training
    from fedloom.runs.export.trained import Trained


Rows = list[tuple[str, str]]  # label and text; without a text, a row is left out
_MAX_CLASSES = 30  # listed one per row on the card
_COMMON_SCENARIO_KEYS = frozenset(
    ("source", "partition", "clients", "val", "split", "tests", "skews", "seed", "attack", "held_out", "public")
)
_MARKDOWN = str.maketrans({character: f"\\{character}" for character in "\\`*[]<>|"})


@dataclass(frozen=True, slots=True)
class CardSection:
    """A part of the card: a sentence, rows of (label, text), a table with columns and body, and a list of notes."""

    heading: str
    rows: Rows
    sentence: str = ""
    columns: Sequence[str] = ()
    body: Sequence[Sequence[str]] = ()
    notes: Sequence[str] = ()


def model_card(metadata: ExportMetadata, parameters: int, run: RunData | None, versions: Mapping[str, str]) -> str:
    """Return the card of an exported model as Markdown.

    metadata: the metadata of the exported model. parameters: number of its trained and frozen weights. run: the
    finished run; None if unknown. versions: packages that trained the model, by name; empty if unknown."""
    sections = [_model(metadata, parameters), _training(metadata.training, run)]
    if run is not None:
        sections += [_data(metadata, run), _results(metadata.training, run)]
        sections += [*_spread(metadata.training, run), *_by_class(run)]
    sections.append(_origin(metadata, run, versions))
    title = f"{metadata.architecture.model}, trained with {metadata.training.method}"
    shown = [part for part in sections if part.rows or part.body]
    return render_markdown("model_card.md", title=title, version=metadata.fedloom, sections=shown)


def render_markdown(template: str, **values: object) -> str:
    """Render a page of `templates`, values escaped for Markdown. Raises `jinja2.UndefinedError` if one is missing."""
    environment = Environment(
        finalize=_escaped, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    text = (files("fedloom.results") / "templates" / template).read_text(encoding="utf-8")
    return environment.from_string(text).render(values)


def _escaped(value: object) -> str:
    """Escape what Markdown would interpret in foreign text, such as the names of classes."""
    return printable(str(value)).translate(_MARKDOWN)


def _model(metadata: ExportMetadata, parameters: int) -> CardSection:
    architecture, check = metadata.architecture, metadata.graph
    multi = metadata.labels == "multi"
    by_method = f"by {metadata.training.method}, with more than one plain net"
    rows = [
        ("file", f"{metadata.weights} ({metadata.format})"),
        ("architecture", _with_keys(architecture.model, architecture.options)),
        ("weights", f"{parameters:,}"),
        ("input", _input_words(metadata.input)),
        ("normalisation", _normalisation(metadata.input)),
        ("labels" if multi else "classes", f"{len(metadata.classes)}: {_some(metadata.classes)}"),
        ("output", f"a score for each {'label, before the sigmoid' if multi else 'class, before the softmax'}"),
        ("prediction", by_method if architecture.forward == "method" else ""),
    ]
    if check is not None:
        text = f"largest difference of scores {check.difference:.1e}, in batches of {listed(check.batches)} random "
        rows.append(("check at export", f"{text}samples, by {check.checked_with}"))
    return CardSection("Model", rows)


def _input_words(expected: Input) -> str:
    shape = " x ".join(map(str, expected.shape))
    if expected.ids is not None:
        return f"{shape} token ids below {expected.ids:,}, int64, 0 for padding"
    if expected.features:
        return f"{counted(len(expected.features), 'column')}, float32: {_some(expected.features)}"
    return f"{shape}, float32 after normalisation; stored as {expected.dtype}"


def _normalisation(expected: Input) -> str:
    if expected.mean is None or expected.std is None:
        return "none" if expected.ids is None else ""
    if len(expected.mean) > 4:
        return "(x - mean) / std, with a mean and std for each column in the JSON beside the file"
    mean, std = (", ".join(map("{:.4g}".format, values)) for values in (expected.mean, expected.std))
    return f"(x - mean) / std, mean {mean}, std {std} in stored units"


def _training(training: Training, run: RunData | None) -> CardSection:
    owner = "the server's model" if training.client is None else f"the personal model of client {training.client}"
    rows = [
        ("whose model", owner),
        ("round", f"{training.round} of {training.rounds} ({training.at})"),
        ("method", training.method),
        ("source of the method", training.source),
        ("preset", training.preset),
        ("options", _keys_text(training.options)),
        ("clients", f"{training.clients:,}"),
        ("seed", str(training.seed)),
    ]
    if run is not None:
        config = run.config
        keys = ("participation", "local_epochs", "batch_size", "precision", "share")
        rows += [(key.replace("_", " "), str(config[key])) for key in keys if key in config]
        optimizer = dict(config.get("optimizer", {}))
        rows.append(("optimizer", _with_keys(str(optimizer.pop("name", "")), optimizer)))
        if stopped := run.numbers.get("stopped"):
            rows.append(("stopped early", f"round {stopped['round']}: {stopped['reason']}"))
    return CardSection("Training", rows)


def _data(metadata: ExportMetadata, run: RunData) -> CardSection:
    scenario, config = run.scenario, run.config.get("scenario", {})
    source_keys = (scenario.get("data") or {}).get("source") or {}
    paths = set((scenario.get("data") or {}).get("files") or [])
    skipped = {*_COMMON_SCENARIO_KEYS, *source_keys}
    partition = {key: value for key, value in config.items() if key not in skipped and value not in (None, [], {})}
    partition = {key: value for key, value in partition.items() if str(value) not in paths}
    rows = [
        ("source", str(scenario.get("name", ""))),
        ("partition", _with_keys(str(config.get("partition", "")), partition)),
        ("clients", f"{scenario.get('clients', metadata.training.clients):,}"),
    ]
    splits = (("training", "train_samples"), ("validation", "val_samples"), ("test", "test_samples"))
    rows += [(f"{split} samples", f"{scenario[key]:,}") for split, key in splits if scenario.get(key)]
    counts: list[list[int]] = scenario.get("class_counts") or []
    whole = bool(counts) and len(counts) == scenario.get("clients")
    if whole:
        sizes = sorted(client_samples(scenario))
        rows.append(("training samples of a client", f"{sizes[0]:,} to {sizes[-1]:,}, median {median(sizes):,g}"))
    if "classes_per_client" in scenario and counts:
        rows.append(("classes of a client", f"{scenario['classes_per_client']:.1f} on average"))
        rows.append(("mean total variation between clients", f"{scenario['total_variation']:.2f}"))
    rows.append(("domains", _some(scenario.get("domains") or [])))
    rows += [("skew", _with_keys(str(skew.get("name", "")), skew, "name")) for skew in config.get("skews") or []]
    if attack := scenario.get("attack"):
        rows.append(("attack in training", f"{attack['name']} by {counted(len(attack['clients']), 'client')}"))
    if scenario.get("newcomers"):
        rows.append(("clients held out of training", f"{len(scenario['newcomers']):,}"))
    body = list[list[str]]()
    if whole and len(metadata.classes) <= _MAX_CLASSES:
        totals = [sum(column) for column in zip(*counts, strict=True)]
        samples = zip(metadata.classes, totals, strict=True)
        body = [[name, f"{total:,}", f"{100 * total / max(1, sum(totals)):.1f}"] for name, total in samples]
    columns = ("class", "training samples", "share %")
    return CardSection("Data", rows, "", columns, body, scenario.get("notes", []))


def _results(training: Training, run: RunData) -> CardSection:
    numbers = run.numbers
    values = {"accuracy": numbers["accuracy"], **numbers.get("figures", {}), **numbers.get("metrics", {})}
    values["best validation round's accuracy"] = numbers.get("best_val_accuracy")
    values["test loss of the last round"] = numbers.get("test_loss")
    baselines = {"majority_global": "baseline: most frequent class", "majority_own": "baseline: client's own majority"}
    attack = numbers.get("attack") or {}
    values |= {f"attack: {key.replace('_', ' ')}": attack.get(key) for key in ("success", "honest_accuracy")}
    rows = [(baselines.get(name, name), f"{v:.4f}") for name, v in values.items() if isinstance(v, float | int)]
    sentence = (
        f"Measured by the run on its test data: protocol {numbers['protocol']}, round selected by {numbers['select']}. "
        f"{_relation(training, numbers)}"
    )
    return CardSection("Results", rows, sentence, notes=numbers.get("degenerate", []))


def _relation(training: Training, numbers: Mapping[str, Any]) -> str:
    """Say whether the run's results are those of the exported model."""
    kind = "global" if training.client is None else "personal"
    if training.at != numbers["select"] or not numbers["protocol"].startswith(kind):
        return "They are the run's results; this file holds another model of the run."
    return "This file's model is one of the tested ones." if kind == "personal" else "It tested this file's model."


def _spread(training: Training, run: RunData) -> list[CardSection]:
    accuracies = client_accuracies(run.rows)
    spread = fairness([value for value in accuracies.values() if math.isfinite(value)])
    if spread is None or spread.clients < 2:
        return []
    rows = [
        ("clients tested", f"{spread.clients:,}"),
        ("mean", f"{spread.mean:.4f}"),
        ("standard deviation", f"{spread.std:.4f}"),
        ("median client", f"{median(accuracies.values()):.4f}"),
        ("worst client", f"{min(accuracies.values()):.4f}"),
        ("worst tenth of the clients", f"{spread.worst10:.4f}"),
        ("best tenth of the clients", f"{spread.best10:.4f}"),
    ]
    if training.client in accuracies and training.at == "last":
        rows.append((f"client {training.client}, whose model this is", f"{accuracies[training.client]:.4f}"))
    if (smallest := run.scenario.get("client_test_smallest")) is not None:
        rows.append(("test samples of a client", f"from {smallest:,}, median {run.scenario['client_test_median']:g}"))
    return [CardSection("Accuracy of single clients", rows, "At the last round that tested single clients.")]


def _by_class(run: RunData) -> list[CardSection]:
    details, classes = run.numbers.get("details", {}), run.scenario.get("classes", [])
    measures = {name: (details.get(key) or {}).get("by_class") for name, key in _BY_CLASS.items()}
    columns = {name: values for name, values in measures.items() if values and len(values) == len(classes)}
    if not columns or len(classes) > _MAX_CLASSES:
        return []
    body = [
        [name, *("not defined" if value is None else f"{value:.4f}" for value in values)]
        for name, *values in zip(classes, *columns.values(), strict=True)
    ]
    return [CardSection("Results by class", [], "On the test data after the last round.", ["class", *columns], body)]


_BY_CLASS = {"recall": "recall", "precision": "precision", "F1": "macro_f1"}


def _origin(metadata: ExportMetadata, run: RunData | None, versions: Mapping[str, str]) -> CardSection:
    rows = [("SHA-256 of the file", metadata.sha256), ("exported with", f"fedloom {metadata.fedloom}")]
    rows.append(("trained with", ", ".join(f"{name} {version}" for name, version in versions.items())))
    if run is not None:
        keys = {"engine": "engine", "fingerprint": "fingerprint of the config"}
        keys |= {"checkpoint_sha256": "SHA-256 of the last checkpoint"}
        rows += [(words, str(run.numbers.get(key) or "")) for key, words in keys.items()]
        rows.append(("digest of the data", str((run.scenario.get("data") or {}).get("source_digest") or "")))
    return CardSection("Origin", rows)


def _with_keys(name: str, keys: Mapping[str, Any], *without: str) -> str:
    text = _keys_text({key: value for key, value in keys.items() if key not in without})
    return f"{name} ({text})" if text else name


def _keys_text(keys: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in keys.items() if value is not None)


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
        raise ConfigError(f"{card}: this card was edited; move it, or choose another name with --out")


def _marked(text: str) -> str:
    """Return the whole file of a card: its text, and the mark by which changes are noticed, also those below it."""
    return f"{text}{_MARK}{hashlib.sha256(text.encode(errors='backslashreplace')).hexdigest()} -->\n"
