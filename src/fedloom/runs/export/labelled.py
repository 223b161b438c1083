"""Read labelled samples, on which a trained model is tested."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedloom.core.errors import DataError, short_repr
from fedloom.data.sources.as_arrays import as_array
from fedloom.data.sources.npz import read_npz
from fedloom.data.sources.tables import LabelColumn
from fedloom.runs.export.metadata import ExportMetadata
from fedloom.runs.export.samples import TABLES, SampleNote, read_labelled_table, read_samples, stored_samples

_PAIRS = (("x", "y"), ("x_test", "y_test"))


def read_labelled(
    data: Path | tuple[Any, Any],
    metadata: ExportMetadata,
    label: str | None = None,
    note: Callable[[str], None] = lambda _: None,
) -> tuple[Tensor, Tensor]:
    """Return samples [n, *metadata.input.shape] as the run stored its own, and their class ids [n], int64.

    Args:
        data: a folder with a folder of files for each class, an .npz with x and y (or x_test and y_test), a .csv or
            .parquet, or arrays (x, y). Labels are class names, or ids where no class has a number for its name.
        metadata: says what the model takes.
        label: the column with the labels of a table.
        note: called with a sentence on unusual files.

    Raises `DataError` for data that cannot be read, or do not fit the model.
    """
    classes = metadata.classes
    if not isinstance(data, Path) and not (isinstance(data, tuple) and len(data) == 2):
        kind = f"a tuple of {len(data)}" if isinstance(data, tuple) else f"of type {type(data).__name__}"
        raise DataError(
            f"data: {kind}; need a tuple of arrays (x, y), or the path of a folder of classes, .npz, .csv or .parquet"
        )
    if label is not None and not (isinstance(data, Path) and data.suffix in TABLES):
        raise DataError(f"label = {short_repr(label)}: only a .csv or .parquet has a column of labels; leave label out")
    if isinstance(data, tuple):
        x, labels = (as_array(part, name) for part, name in zip(data, "xy", strict=True))
        samples = _fitting(stored_samples(x, metadata.input, "x"), metadata, "x")
        return _paired(samples, class_ids_of(labels, classes, "y"), "x and y")
    if data.is_dir():
        return _folder(data, metadata, note)
    if data.suffix == ".npz":
        arrays = read_npz(data, ())
        names = next((pair for pair in _PAIRS if arrays.keys() >= {*pair}), None)
        if names is None:
            raise DataError(f"{data}: holds {', '.join(arrays) or 'nothing'}; name the samples x and their labels y")
        labels = arrays[names[1]]
    elif data.suffix in TABLES:
        if label is None:
            raise DataError(f"{data}: name the column with the labels (--label)")
        column = LabelColumn(label, classes)
        samples, labels = read_labelled_table(data, metadata.input, column, lambda unusual: note(unusual.text))
        return _paired(samples, class_ids_of(labels, classes, str(data)), str(data))
    else:
        raise DataError(f"{data}: no folder of classes, .npz, .csv or .parquet; labels are needed beside the samples")
    _, samples = read_samples([data], metadata.input, lambda unusual: note(unusual.text))
    return _paired(samples, class_ids_of(labels, classes, str(data)), str(data))


def class_ids_of(labels: np.ndarray, classes: Sequence[str], origin: str) -> Tensor:
    """Return the class ids [n], int64, of labels.

    Args:
        labels: names [n], or ids where no class has a whole number for its name.
        classes: names of the model's C classes, in the order of its scores.
        origin: name of the labels in messages.

    Raises `DataError` for labels of another form, and for one that is no class of the model.
    """
    if labels.ndim != 1 or labels.dtype.kind not in "iufUSO":
        raise DataError(f"{origin}: labels of shape {labels.shape} and dtype {labels.dtype}; need one label a sample")
    if labels.dtype.kind == "f" and not (np.isfinite(labels).all() and (labels % 1 == 0).all()):
        raise DataError(f"{origin}: labels with fractions or gaps; need names or whole numbers")
    if labels.dtype.kind == "f":
        labels = labels.astype(np.int64)
    words = [str(value.decode() if isinstance(value, bytes) else value) for value in labels.tolist()]
    ids = {name: number for number, name in enumerate(classes)}
    unknown = sorted({*words} - ids.keys())
    names_are_words = not any(name.removeprefix("-").isdecimal() for name in classes)  # else 2 is the class "2"
    if unknown and names_are_words and labels.dtype.kind in "iu" and 0 <= labels.min() <= labels.max() < len(classes):
        return torch.from_numpy(labels.astype(np.int64))
    if unknown:
        known = ", ".join(classes[:10]) + (", ..." if len(classes) > 10 else "")
        raise DataError(f"{origin}: label {unknown[0]!r} is no class of the model, whose classes are {known}")
    return torch.tensor([ids[word] for word in words], dtype=torch.int64)


def _folder(folder: Path, metadata: ExportMetadata, note: Callable[[str], None]) -> tuple[Tensor, Tensor]:
    parts, labels = list[Tensor](), list[str]()
    for class_folder in sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")):
        files = sorted(path for path in class_folder.iterdir() if not path.name.startswith("."))
        if files:
            class_ids_of(np.array([class_folder.name]), metadata.classes, str(folder))
            _, samples = read_samples(files, metadata.input, _except_for_sizes(note))
            parts.append(samples)
            labels += [class_folder.name] * len(samples)
    if not parts:
        raise DataError(f"{folder}: no folder of files for a class; need {folder.name}/CLASS/FILE")
    return torch.cat(parts), class_ids_of(np.array(labels), metadata.classes, str(folder))


def _except_for_sizes(note: Callable[[str], None]) -> Callable[[SampleNote], None]:
    """Return what passes on notes, but for those on pictures that were resized, as those of the training set were."""
    return lambda unusual: None if unusual.kind == "resized" else note(unusual.text)


def _fitting(samples: Tensor, metadata: ExportMetadata, origin: str) -> Tensor:
    if tuple(samples.shape[1:]) != metadata.input.shape:
        raise DataError(
            f"{origin}: samples of shape {tuple(samples.shape[1:])}; the model takes {metadata.input.shape}"
        )
    return samples.float() if metadata.input.ids is None else samples


def _paired(samples: Tensor, labels: Tensor, origin: str) -> tuple[Tensor, Tensor]:
    if len(samples) != len(labels):
        raise DataError(f"{origin}: {len(samples):,} samples and {len(labels):,} labels; need one label a sample")
    if not len(samples):
        raise DataError(f"{origin}: no samples")
    return samples, labels
