"""Reads new samples for a trained model, labelled or not, as its source does: pictures, texts, tables and arrays."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedloom.core.errors import DataError, short_repr
from fedloom.core.files import expand_home
from fedloom.data.dataset import Dataset, checked
from fedloom.data.imputation import impute, imputed_cells
from fedloom.data.labels import multi_labels
from fedloom.data.sources import medical
from fedloom.data.sources.files import read_regular, require_regular, utf8
from fedloom.data.sources.npz import as_array, named_arrays
from fedloom.data.sources.pixels import WHITE, PictureNotes, decode, is_image, read_pixels
from fedloom.data.sources.python import is_dataset, items
from fedloom.data.sources.tables import LabelColumn, NewRows, table_rows
from fedloom.data.sources.tables.frames import as_parquet, is_frame
from fedloom.data.sources.text import encode, infer_tokens, token_notes
from fedloom.runs.export.modules import ExportMetadata, Input
from fedloom.runs.export.run_at_checkpoint import RunAtCheckpoint

TABLES = (".csv", ".parquet")
_LISTED = 5  # columns in a sentence


@dataclass(frozen=True, slots=True)
class SampleNote:
    """A kind of unusual values among new samples. kind: `unknown_words`, `incomplete`, `imputed`, `unknown_tokens`,
    `outside_training`, `resized`, or one of `PictureNotes`. count: cells, rows, texts, values or pictures."""

    kind: str
    count: int
    text: str


def read_samples(
    paths: Sequence[Path], expected: Input, note: Callable[[SampleNote], None] = lambda _: None
) -> tuple[list[str], Tensor]:
    """Return names [n] and samples [n, *expected.shape] of all files in `paths`, as the source would store them: of an
    .npz `x`, `x_test` or its only array, of a .csv or .parquet its rows; other files are one sample each, a picture or
    a UTF-8 text. `note` gets sentences on unusual values. Raises `DataError` for files that cannot be read or do not
    fit."""
    names: list[str] = []
    pictures = PictureNotes()
    parts: list[Tensor] = []
    for path in paths:
        if path.suffix == ".npz":
            arrays = named_arrays(path)
            name = next(iter(arrays)) if len(arrays) == 1 else "x" if "x" in arrays else "x_test"
            if name not in arrays:
                raise DataError(f"{path}: holds {', '.join(arrays) or 'nothing'}; name the samples x")
            part = stored_samples(arrays[name], expected, f"{path} ({name})")
            names += [f"{path.name}:{row}" for row in range(len(part))]
        elif path.suffix in TABLES and expected.features:
            table = _table(path, expected, note)
            part = torch.from_numpy(table.x)
            names += [f"{path.name}:{row + 1}" for row in table.rows.tolist()]
        else:
            part = _read_sample(path, expected, pictures)
            names.append(path.name)
            for sentence in token_notes(part.numpy(), str(path)) if expected.ids is not None else ():
                note(SampleNote("unknown_tokens", 1, sentence))
        parts.append(_fitting(part, expected, path))
    for kind, count, sentence in pictures.by_kind(with_depth=False):
        note(SampleNote(kind, count, sentence))
    samples = torch.cat(parts)
    _note_outside_training(samples, expected, note)
    return names, samples


def _table(
    path: Path, expected: Input, note: Callable[[SampleNote], None], label: LabelColumn | None = None
) -> NewRows:
    """Return a table's rows as the source would store them, with the labels of the column `label`. `note` is called for
    unusual values and for rows that are left out."""
    stored = _stored_features(expected)
    reading = expected.reading | ({"incomplete": "impute"} if expected.imputed else {})
    table = table_rows(path, stored, reading, label)
    x, counts = _filled(table.x, expected)
    table = replace(table, x=x)
    for sentence in table.notes:
        note(SampleNote("unknown_words", table.unknown_words, sentence))
    if table.left_out:
        lack = "the label" if expected.imputed else "a value"
        rows = f"{table.left_out:,} of {table.left_out + len(table.x):,} rows lack {lack}"
        sentence = f"{path}: {rows} and were left out, as in the run (incomplete: {reading['incomplete']})"
        note(SampleNote("incomplete", table.left_out, sentence))
    if counts:
        sentence = f"{path}: missing cells, filled as in training: {imputed_cells(expected.imputed, counts)}"
        note(SampleNote("imputed", sum(counts.values()), sentence))
    return table


def _stored_features(expected: Input) -> list[str]:
    """Return the features without the indicators of missing cells."""
    indicators = {column.indicator_name for column in expected.imputed if column.indicator}
    return [name for name in expected.features if name not in indicators]


def _filled(x: np.ndarray, expected: Input) -> tuple[np.ndarray, dict[str, int]]:
    """Return rows with missing cells (NaN) filled as in training, and how many of each column were."""
    stored, no_labels = tuple(_stored_features(expected)), torch.zeros(len(x), dtype=torch.int64)
    data, counts = impute(Dataset(torch.from_numpy(x), no_labels, (), features=stored), expected.imputed)
    return data.x[:, [data.features.index(name) for name in expected.features]].numpy(), counts


def _fitting(samples: Tensor, expected: Input, origin: object) -> Tensor:
    """Return samples as the model takes them. Raises `DataError` for another shape."""
    if tuple(samples.shape[1:]) != expected.shape:
        raise DataError(f"{origin}: samples of shape {tuple(samples.shape[1:])}; the model takes {expected.shape}")
    return samples.float() if expected.ids is None else samples


def _note_outside_training(samples: Tensor, expected: Input, note: Callable[[SampleNote], None]) -> None:
    """Report values of rows [n, d] beyond those of the training rows."""
    if not expected.ranges or samples.shape[1:] != (len(expected.ranges),):
        return
    low, high = torch.tensor(expected.ranges).unbind(1)
    outside = (samples < low) | (samples > high)
    counts = {index: count for index, count in enumerate(outside.sum(0).tolist()) if count}
    if not counts:
        return
    listed = ", ".join(
        f"'{expected.features[index]}' ({count:,}, trained on {low[index]:g} to {high[index]:g})"
        for index, count in list(counts.items())[:_LISTED]
    )
    more = f" and {len(counts) - _LISTED} more columns" if len(counts) > _LISTED else ""
    rows = f"{int(outside.any(1).sum()):,} of {len(samples):,} rows"
    text = f"values beyond those of the training rows in {rows}: {listed}{more}"
    note(SampleNote("outside_training", sum(counts.values()), text))


def stored_samples(x: np.ndarray, expected: Input, origin: str) -> Tensor:
    """Return the samples `x`, called `origin` in messages, in the form the run stored its own: [n, *expected.shape], of
    its dtype. Raises `DataError` for another form or dtype, and for unknown token ids."""
    tokens = expected.ids is not None
    if len(expected.shape) > 2 and x.shape[1:] == (*expected.shape[1:], expected.shape[0]) != expected.shape:
        x = np.moveaxis(x, -1, 1)
    stored_names = _stored_features(expected)
    if stored_names and x.ndim == 2 and x.shape[1] not in (len(stored_names), len(expected.features)):
        names = ", ".join(stored_names)[:300]
        raise DataError(f"{origin}: {x.shape[1]} columns; the model takes {len(stored_names)} of the run's: {names}")
    if expected.imputed and x.ndim == 2 and x.dtype.kind == "f" and x.shape[1] == len(stored_names):
        x = _filled(x.astype(np.float32), expected)[0]
    labels = np.zeros(len(x) if x.ndim else 0, np.int64)
    data = checked(x, labels, origin=origin, classes=["-"], tokens=tokens)
    stored = str(data.x.dtype).removeprefix("torch.")
    if stored != expected.dtype:
        raise DataError(f"{origin} has dtype {x.dtype}; the run's samples are {expected.dtype}")
    if expected.ids is not None and int(data.x.max()) >= expected.ids:
        raise DataError(f"{origin}: token id {int(data.x.max())}; the run has ids 0 to {expected.ids - 1}")
    return data.x


def _read_sample(path: Path, expected: Input, pictures: PictureNotes) -> Tensor:
    if not path.is_file():
        require_regular(path)
        raise DataError(f"{path}: no such file")
    if expected.ids is not None:
        if not expected.words:
            raise DataError(f"{path}: the run was given token ids, and their words are not known; give an .npz of ids")
        # From 2 on, as in training: 0 is padding, and 1 stands for all unknown words.
        token_ids = {word: number for number, word in enumerate(expected.words, 2)}
        text = utf8(read_regular(path), str(path))
        return torch.from_numpy(encode([text], token_ids, expected.shape[0], infer_tokens(expected.words)))
    raw = read_regular(path)
    pictured = len(expected.shape) == 3 or (len(expected.shape) == 4 and medical.is_nifti(path.name))
    if not pictured or not (is_image(path.name) or medical.is_dicom(raw)):
        kind = "a picture or an .npz" if pictured else "a .csv, .parquet or .npz" if expected.features else "an .npz"
        raise DataError(f"{path}: the run's samples are {expected.dtype} of shape {expected.shape}; give {kind}")
    return _picture(path, raw, expected, pictures)


def _picture(path: Path, raw: bytes, expected: Input, pictures: PictureNotes) -> Tensor:
    (channels, *sides), measured = expected.shape, medical.is_nifti(path.name)
    if len({*sides}) > 1 or channels not in (1, 3) or (expected.white is None and not measured):
        raise DataError(f"{path}: pictures do not become samples {expected.shape} of {expected.dtype}; give an .npz")
    pixels = torch.from_numpy(decode(raw, str(path), sides[0], channels, pictures).copy())[None]
    if measured and expected.white == WHITE and not 0 <= pixels.min() <= pixels.max() <= WHITE:
        raise DataError(f"{path}: values from {pixels.min():g} to {pixels.max():g}; the run's pictures have 0 to 255")
    shape = read_pixels(raw, str(path), channels, PictureNotes()).shape[: len(sides)]
    if [*shape] != sides:
        pictures.add("resized", f"{path} ({' x '.join(map(str, shape[::-1]))})")
    return pixels if measured else pixels * ((expected.white or 0) / 255)


def new_samples(data: Any, expected: Input, note: Callable[[SampleNote], None] = lambda _: None) -> Tensor:
    """Return new samples [n, *expected.shape] as the run stored its own: those of a data frame, of a file or of several
    (`read_samples`), or an array of them. Raises `DataError` for others."""
    if is_frame(data):
        with as_parquet(data) as (path, named):
            return read_samples([path], expected, lambda unusual: note(replace(unusual, text=named(unusual.text))))[1]
    paths = [data] if isinstance(data, Path | str) else data
    if isinstance(paths, list | tuple) and paths and all(isinstance(path, Path | str) for path in paths):
        return read_samples([expand_home(path) for path in paths], expected, note)[1]
    x = as_array(data, "x")
    if not x.ndim:
        raise DataError(f"data of type {type(data).__name__}; need a data frame, a file, or an array of samples")
    return _fitting(stored_samples(x, expected, "x"), expected, "x")


_PAIRS = (("x", "y"), ("x_test", "y_test"))


def read_labelled(
    data: Any,
    metadata: ExportMetadata | RunAtCheckpoint,
    label: str | None = None,
    note: Callable[[str], None] = lambda _: None,
) -> tuple[Tensor, Tensor]:
    """Return samples [n, *metadata.input.shape] as the run stored its own, and their class ids [n], int64. `data` is a
    folder of class folders, an .npz with x and y (or x_test and y_test), a .csv or .parquet or a data frame with the
    column `label`, a torch Dataset of (sample, label), or arrays (x, y); labels are class names or ids [n], or several
    [n, L]. `note` gets sentences on unusual files. Raises `DataError` for others."""
    if is_frame(data):
        with as_parquet(data) as (path, named):
            return read_labelled(path, metadata, label, lambda text: note(named(text)))
    if is_dataset(data):
        data = items(data, "data", PictureNotes(), 0)
    classes, multi = metadata.classes, metadata.labels == "multi"

    def note_text(unusual: SampleNote) -> None:
        note(unusual.text)

    if not isinstance(data, Path) and not (isinstance(data, tuple) and len(data) == 2):
        kind = f"a tuple of {len(data)}" if isinstance(data, tuple) else f"of type {type(data).__name__}"
        need = "need arrays (x, y), a data frame, a torch Dataset, or a folder of classes, an .npz, .csv or .parquet"
        raise DataError(f"data: {kind}; {need}")
    if label is not None and not (isinstance(data, Path) and data.suffix in TABLES):
        raise DataError(f"label = {short_repr(label)}: only tables have a column of labels; leave label out")
    if isinstance(data, tuple):
        x, labels = (as_array(part, name) for part, name in zip(data, "xy", strict=True))
        samples = _fitting(stored_samples(x, metadata.input, "x"), metadata.input, "x")
        return _paired(samples, class_ids_of(labels, classes, "y", multi=multi), "x and y")
    if data.is_dir():
        return _folder(data, metadata, note)
    if data.suffix == ".npz":
        arrays = named_arrays(data)
        names = next((pair for pair in _PAIRS if arrays.keys() >= {*pair}), None)
        if names is None:
            raise DataError(f"{data}: holds {', '.join(arrays) or 'nothing'}; name the samples x and their labels y")
        labels = arrays[names[1]]
    elif data.suffix in TABLES:
        if label is None and not multi:
            raise DataError(f"{data}: name the column with the labels, label='diagnosis'")
        expected = metadata.input
        if not expected.features:
            raise DataError(f"{data}: the run's samples are {expected.dtype} of shape {expected.shape}; give an .npz")
        table = _table(data, expected, note_text, LabelColumn(label, classes, multi))
        samples = _fitting(torch.from_numpy(table.x), expected, data)
        _note_outside_training(samples, expected, note_text)
        return _paired(samples, class_ids_of(np.asarray(table.labels), classes, str(data), multi=multi), str(data))
    else:
        raise DataError(f"{data}: no folder of classes, .npz, .csv or .parquet; every sample needs a label")
    _, samples = read_samples([data], metadata.input, note_text)
    return _paired(samples, class_ids_of(labels, classes, str(data), multi=multi), str(data))


def class_ids_of(labels: np.ndarray, classes: Sequence[str], origin: str, *, multi: bool = False) -> Tensor:
    """Return the class ids [n], int64, of labels: indices into `classes`. Raises `DataError`, with `origin` as their
    name, for labels of another form, and for one that is no class of the model."""
    if multi:
        return torch.from_numpy(multi_labels([labels], origin, classes)[0][0])
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


def _folder(
    folder: Path, metadata: ExportMetadata | RunAtCheckpoint, note: Callable[[str], None]
) -> tuple[Tensor, Tensor]:
    def note_without_sizes(unusual: SampleNote) -> None:  # the training pictures were resized as well
        if unusual.kind != "resized":
            note(unusual.text)

    parts, labels = list[Tensor](), list[str]()
    for class_folder in sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")):
        files = sorted(path for path in class_folder.iterdir() if not path.name.startswith("."))
        if files:
            multi = metadata.labels == "multi"  # which a folder cannot say
            class_ids_of(np.array([class_folder.name]), metadata.classes, str(folder), multi=multi)
            _, samples = read_samples(files, metadata.input, note_without_sizes)
            parts.append(samples)
            labels += [class_folder.name] * len(samples)
    if not parts:
        raise DataError(f"{folder}: no folder of files for a class; need {folder.name}/CLASS/FILE")
    return torch.cat(parts), class_ids_of(np.array(labels), metadata.classes, str(folder))


def _paired(samples: Tensor, labels: Tensor, origin: str) -> tuple[Tensor, Tensor]:
    if len(samples) != len(labels):
        raise DataError(f"{origin}: {len(samples):,} samples and {len(labels):,} labels; need one label a sample")
    if not len(samples):
        raise DataError(f"{origin}: no samples")
    return samples, labels
