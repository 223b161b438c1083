"""Tests a trained model on new labelled data, with all metrics; and imports a user's model by name, for commands."""

import importlib
import importlib.util
import logging
import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from fedloom.core.errors import ConfigError, short_repr
from fedloom.core.files import expand_home, without_nan
from fedloom.core.text import value_text
from fedloom.evaluation import METRICS, Metric, MetricStates, Predictions
from fedloom.evaluation.metrics import metric_kinds
from fedloom.evaluation.metrics.calibration import at_threshold
from fedloom.evaluation.own_metrics import PerSample, register_metric
from fedloom.nets.user_model import ModelSource, error_line
from fedloom.runs.export.modules import OwnModel
from fedloom.runs.export.samples import new_samples, read_labelled
from fedloom.runs.export.trained import Note, Trained, of_result, read
from fedloom.runs.storage.log import At
from fedloom.runs.storage.run_data import RunData

_log = logging.getLogger(__name__)
_NOT_OF_NEW_DATA = {
    "domain_accuracy": "new data say no domain of their samples",
    "attack_success": "new data hold no attacked samples",
}


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The test of one model on new data. metrics: by name, None where undefined; `majority` is the accuracy of the most
    frequent class, `decision_sensitivity` and the like are at the model's threshold. details: further values."""

    model: str
    samples: int
    classes: tuple[str, ...]
    metrics: Mapping[str, float | None]
    details: Mapping[str, Mapping[str, Any]]

    def __repr__(self) -> str:
        shown = ", ".join(f"{name} {value_text(name, value)}" for name, value in self.metrics.items())
        return f"Evaluation({self.model} on {self.samples:,} samples:\n  {shown})"

    def by_class(self) -> list[dict[str, Any]]:
        """Return a row for each class: its name, samples, recall, precision and F1, None where one is not defined."""
        confusion = self.details.get("balanced_accuracy", {}).get("confusion")
        columns: dict[str, list[Any]] = {"class": list(self.classes)}
        if confusion is not None:
            columns["samples"] = [sum(row) for row in confusion]
        columns |= {name: self.details[key]["by_class"] for name, key in _BY_CLASS.items()}
        return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


_BY_CLASS = {"recall": "recall", "precision": "precision", "f1": "macro_f1"}


def evaluate(
    run: Path | str | RunData,
    data: Any,
    client: int | None = None,
    at: At = "last",
    *,
    metrics: Iterable[str | PerSample | type[Metric]] = (),
    label: str | None = None,
    model: OwnModel | None = None,
    note: Note = lambda text: _log.warning("note: %s", text),
) -> Evaluation:
    """Test the trained model of a run (folder, exported file or result) on new labelled data, see
    `fedloom.runs.export.samples.read_labelled`. client: whose personal model is tested; None for the
    server's. at: "last", or "best_val". metrics: names, functions or classes; all registered ones if empty. label: the
    column with the labels of a table. model: your module or its factory, if the run was given one. note: called with
    sentences on unusual files and unfinished runs. Raises as `fedloom.load`, and `DataError` for unfit data."""
    if isinstance(metrics, str) or not isinstance(metrics, Iterable):
        raise ConfigError(f"metrics = {short_repr(metrics)}: need a list of names; leave it out for all metrics")
    asked = dict.fromkeys(metric if isinstance(metric, str) else register_metric(metric) for metric in metrics)
    for name in asked:
        if name in _NOT_OF_NEW_DATA:
            raise ConfigError(f"metric {name}: {_NOT_OF_NEW_DATA[name]}; leave it out")
        METRICS.get(name)
    if isinstance(run, Path | str):
        trained = read(run, client, at, model=model, note=note)
    elif isinstance(run, RunData):
        trained = of_result(run, client, at)
    else:
        raise ConfigError(f"run = {short_repr(run)}: need a run folder, an exported file or a result")
    x, y = read_labelled(expand_home(data) if isinstance(data, Path | str) else data, trained.metadata, label, note)
    logits = trained.scores(x)
    if logits.shape[1] != len(trained.metadata.classes):
        raise ConfigError(f"the model has {logits.shape[1]} class scores for {len(trained.metadata.classes)} classes")
    multi, all_names = trained.metadata.labels == "multi", METRICS.names()
    every = [name for name in all_names if name not in _NOT_OF_NEW_DATA and "@prevalence" not in name]
    kinds = metric_kinds(asked, multi, () if asked else every)
    counted = kinds | metric_kinds((), multi, ("balanced_accuracy", "recall", "precision", "macro_f1"))
    states = MetricStates.new(Predictions(logits, y), counted)
    numbers = {name: states.value(name) for name in kinds}
    values: dict[str, float | None] = {name: None if math.isnan(v) else v for name, v in numbers.items()}
    if (decision := trained.metadata.decision) is not None:
        positive = trained.metadata.classes.index(decision.label)
        scores = MetricStates.new(Predictions(logits, y), {"auroc": METRICS.get("auroc")})
        values |= at_threshold(scores, positive, decision.threshold)
    if not multi:
        values["majority"] = int(torch.bincount(y).max()) / len(y)
    details = {name: without_nan(dict(states.details(name))) for name in counted if states.details(name)}
    return Evaluation(trained.title, len(y), trained.metadata.classes, values, details)


def predict(
    trained: Trained, data: Any, note: Note = lambda text: _log.warning("note: %s", text)
) -> tuple[list[str] | list[list[str]], Tensor]:
    """Return what a model predicts for new samples: the class of each, or those labels that it has; and the
    probabilities [n, C]. trained: the model. data: as for `fedloom.runs.export.samples.new_samples`. note: called with
    sentences on unusual values."""
    samples = new_samples(data, trained.metadata.input, lambda unusual: note(unusual.text))
    scores = trained.scores(samples)
    return trained.predicted(scores), scores.sigmoid() if trained.metadata.labels == "multi" else scores.softmax(1)


def imported_model(reference: str) -> ModelSource:
    """Return the module, or the function that makes one, which "FILE.py:NAME" or "package.module:NAME" refers to; also
    in the working directory. Importing runs the user's code. Raises `ConfigError` if it fails."""
    origin, colon, name = reference.rpartition(":")
    if not colon or not origin or not name:
        raise ConfigError(f"--model {reference}: need FILE.py:NAME or MODULE:NAME, as nets.py:make_net")
    model: Any = _imported(origin)
    for attribute in name.split("."):
        if not hasattr(model, attribute):
            raise ConfigError(f"--model {reference}: {origin} has no {name}")
        model = getattr(model, attribute)
    if not isinstance(model, nn.Module) and not callable(model):
        raise ConfigError(f"--model {reference}: a {type(model).__name__}; need a torch.nn.Module, or what makes one")
    source: ModelSource = model
    return source


def _imported(origin: str) -> ModuleType:
    path = expand_home(origin)
    is_file = origin.endswith(".py")
    if is_file and not path.is_file():
        raise ConfigError(f"--model {origin}: no such file")
    folder = str(path.resolve().parent if is_file else Path.cwd())
    sys.path.insert(0, folder)  # a file can import its neighbours
    try:
        return _run_file(path) if is_file else importlib.import_module(origin)
    except ConfigError:
        raise
    except Exception as error:  # whatever the user's file raises
        raise ConfigError(f"--model {origin}: cannot be imported ({error_line(error)})") from error
    finally:
        if folder in sys.path:  # the user's code may have taken it out
            sys.path.remove(folder)


def _run_file(path: Path) -> ModuleType:
    """Run a file as a module, which is listed in `sys.modules`: dataclasses look theirs up there."""
    name = path.stem if path.stem not in sys.modules else f"_fedloom_model_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None, "a file that ends in .py is a module"
    assert spec.loader is not None, "a file that ends in .py has a loader"
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module
