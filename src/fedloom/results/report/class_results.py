"""Predictions by class and by confidence, summed over the runs of a row. Needs neither torch nor matplotlib."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from markupsafe import Markup
from pydantic import TypeAdapter, ValidationError

from fedloom.core.errors import RunFolderError, short_repr
from fedloom.core.files import json_text
from fedloom.core.text import counts_text
from fedloom.results.group import Group
from fedloom.results.report.markup import client_confusion
from fedloom.runs.storage.run_data import Confusion, RunData

# Samples, confidence and share of correct predictions; None for a bin without samples.
_Bin = tuple[float, float | None, float | None] | None
_AddedBin = tuple[float, float, float] | None


@dataclass(frozen=True, slots=True)
class ClassResults:
    """The last test of a row by class, over all its seeds: recall and precision in [0, 1], None where not defined.

    support: of each class, the test samples with each seed. confusion: test samples by true and predicted class, summed
    over seeds. Both are None where no matrix was recorded."""

    label: str
    classes: list[str]
    recall: list[float | None]
    precision: list[float | None]
    support: list[list[int]] | None
    confusion: list[list[int]] | None
    seeds: int

    def support_texts(self) -> list[str | None]:
        """Return the test samples of each class with one seed, "36" or "34 to 38"; None where they are not known."""
        return [None] * len(self.classes) if self.support is None else [counts_text(sizes) for sizes in self.support]

    def largest_confusions(self, number: int) -> list[tuple[int, int, int]]:
        """Return (samples, true class, predicted class) of the most frequent wrong predictions."""
        if self.confusion is None:
            return []
        wrong = [
            (samples, true, predicted)
            for true, row in enumerate(self.confusion)
            for predicted, samples in enumerate(row)
            if samples and true != predicted
        ]
        return sorted(wrong, key=lambda entry: (-entry[0], entry[1:]))[:number]


@dataclass(frozen=True, slots=True)
class CalibrationCurve:
    """Bins by confidence, lowest first: samples of all seeds, mean confidence, share of correct predictions.

    errors: the expected calibration error of each seed, whose mean is not that of the bins of all seeds together."""

    label: str
    bins: list[_AddedBin]
    errors: list[float]

    def error(self) -> float:
        """Return the expected calibration error of the bins of all seeds together."""
        return _calibration_error(self.bins)


def class_results(group: Group) -> ClassResults | None:
    """Sum the classes of a row's runs; None unless all of them recorded the same classes."""
    names = group.results[0].scenario.get("classes") or []
    recalls, precisions = (
        [recorded(result, name, "by_class", list[float | None]) for result in group.results]
        for name in ("recall", "precision")
    )
    if any(len(values) != len(names) for values in recalls) or not names:
        return None
    matrices = [recorded(result, "balanced_accuracy", "confusion", list[list[int]]) for result in group.results]
    # Without the counts of all runs, recalls can only be averaged; with them, seeds are pooled sample by sample.
    if any(len(matrix) != len(names) or any(len(row) != len(names) for row in matrix) for matrix in matrices):
        recall, precision = (_means(values, len(names)) for values in (recalls, precisions))
        positives = [recorded(result, "recall", "positives", list[int]) for result in group.results]  # of labels
        support = [list(of) for of in zip(*positives, strict=True)] if all(map(len, positives)) else None
        return ClassResults(group.row["label"], names, recall, precision, support, None, len(group.results))
    indices = range(len(names))
    confusion = [[sum(matrix[true][predicted] for matrix in matrices) for predicted in indices] for true in indices]
    predicted_sums = [sum(row[k] for row in confusion) for k in indices]
    return ClassResults(
        group.row["label"],
        names,
        [_share(confusion[k][k], sum(confusion[k])) for k in indices],
        [_share(confusion[k][k], predicted_sums[k]) for k in indices],
        [[sum(matrix[true]) for matrix in matrices] for true in indices],
        confusion,
        len(group.results),
    )


def calibration(group: Group) -> CalibrationCurve | None:
    """Add the confidence bins of a row's runs; None where some run has none, or another number of them."""
    by_run = [recorded(result, "ece", "bins", list[_Bin]) for result in group.results]
    if any(not bins or len(bins) != len(by_run[0]) for bins in by_run):
        return None
    added, by_seed = _added(by_run), [_added([bins]) for bins in by_run]
    if not any(added):
        return None
    return CalibrationCurve(group.row["label"], added, [_calibration_error(bins) for bins in by_seed if any(bins)])


def _added(recorded: Sequence[Sequence[_Bin]]) -> list[_AddedBin]:
    added: list[_AddedBin] = []
    for parts in zip(*recorded, strict=True):
        used = [part for part in parts if part is not None and None not in part]
        samples = sum(n for n, *_ in used)
        confidence, correct = (sum(part[0] * part[k] for part in used) for k in (1, 2))
        added.append((samples, confidence / samples, correct / samples) if samples else None)
    return added


def _calibration_error(bins: Sequence[_AddedBin]) -> float:
    used = [filled for filled in bins if filled is not None]
    return sum(n * abs(confidence - correct) for n, confidence, correct in used) / sum(n for n, *_ in used)


def majority_class(result: RunData) -> int | None:
    """Return the most frequent class of all training data, the lowest of equal ones; None where it is not known."""
    counts, clients = result.scenario.get("class_counts"), result.scenario.get("clients")
    if not counts or len(counts) != clients:
        return None
    sums = [sum(column) for column in zip(*counts, strict=True)]
    return sums.index(max(sums))


def majority_accuracy(group: Group) -> float | None:
    """Return the accuracy to beat: that of the most frequent class, of each client's own where models are personal."""
    metrics = group.row["metrics"]
    personal = group.row["protocol"].startswith("personal/")
    own = metrics.get("majority_own") if personal else None
    return metrics.get("majority_global") if own is None else own


def recorded(result: RunData, name: str, key: str, kind: Any) -> Any:
    """Return the list `key`, of a `kind`, in the details of the metric `name` of a `result`; empty if it was not
    recorded. Raises `RunFolderError` if it is damaged."""
    details = (result.numbers.get("details") or {}).get(name)
    value = details.get(key) if isinstance(details, dict) else None
    try:
        return TypeAdapter(kind).validate_python(value or [])
    except ValidationError:
        raise RunFolderError(
            f"details.{name}.{key} in a summary.json is {short_repr(value)}: damaged; run it again"
        ) from None


def _means(by_run: Sequence[Sequence[float | None]], classes: int) -> list[float | None]:
    if any(len(values) != classes for values in by_run):
        return [None] * classes
    columns = ([value for value in column if value is not None] for column in zip(*by_run, strict=True))
    return [fmean(column) if column else None for column in columns]


def _share(correct: int, total: int) -> float | None:
    return correct / total if total else None


_MOST_CELLS = 100_000  # of all clients of a row: about 1 MB of a page


def client_matrices(name: str, run: RunData, classes: Sequence[str]) -> Markup | None:
    """Render a matrix with a field that chooses the client, the least accurate client first; None without counts.

    `name` is the prefix of saved files; `run` tested its clients on these `classes`."""
    confusions = run.confusions()
    if not confusions:
        return None
    chosen, room = dict[int, Confusion](), _MOST_CELLS
    for client in sorted(confusions, key=lambda client: (_accuracy(confusions[client]), client)):
        room -= len(confusions[client])
        if room < 0:
            break
        chosen[client] = confusions[client]
    caption = f"The client's test samples, seed {run.numbers['seed']}; the least accurate client first."
    if len(chosen) < run.numbers["clients"]:
        caption += f" {len(chosen)} of {run.numbers['clients']} clients; Result.confusion(client) has those recorded."
    clients = [[client, [count for cell in cells for count in cell]] for client, cells in chosen.items()]
    data = json_text({"classes": list(classes), "clients": clients})
    return client_confusion(name, "Confusion matrix of one client", caption, data)


def _accuracy(confusion: Confusion) -> float:
    total = sum(samples for *_, samples in confusion)
    return sum(samples for true, predicted, samples in confusion if true == predicted) / max(total, 1)
