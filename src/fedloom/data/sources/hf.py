"""Hugging Face datasets (extra `hub`)."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field

from fedloom.core.errors import DataError
from fedloom.data.labels import PARTS, multi_labels, named_ids, refuse_missing_labels
from fedloom.data.sources import cached
from fedloom.data.sources.cached import Allocator, ImageSource, Normalise, ParsedSamples, ParsedSplits
from fedloom.data.sources.class_folders import BARE_PARTS, part_of
from fedloom.data.sources.files import read_regular
from fedloom.data.sources.pixels import WHITE, PictureNotes, image_pixels, put, read_pixels, resized
from fedloom.data.sources.source import Splits, configure_source, grouped, number_groups, source, stratified_split
from fedloom.data.sources.text import TextLength, TokenUnit, Vocabulary, tokenise

_COMMIT = re.compile(r"[0-9a-f]{40}")


@source("hf")
class HuggingFace(ImageSource):
    """A classification set from the Hugging Face hub or a local folder of one: images or texts.

    Where both splits state class names, labels are matched by name. Images are read as in `image-folder`;
    texts become token ids, see `TextSource`. The output format of a dataset (torch, numpy, ...) is not used.
    The only source that may touch the network. Parsed arrays are cached when `revision` is a commit hash, since
    only that always means the same data."""

    keys_added_later = frozenset({"tokens"})

    dataset: str = Field(examples=["ylecun/mnist"])
    subset: str | None = None
    revision: str | None = None
    offline: bool = Field(False, description="Whether the network may not be used.")
    train_split: str = Field("train", description="Name of the split with the training samples.")
    test_split: str | None = "test"
    image: str = Field("image", description="Column of the images.")
    text: str | None = Field(None, description="Column of the texts; null reads images.")
    label: str | tuple[str, ...] = "label"
    size: int = Field(32, ge=1, le=2048, description="Height and width that images are resized to, in pixels.")
    channels: Literal[1, 3] = Field(3, description="Number of channels of the images: 1 for gray, 3 for colour.")
    vocabulary: Vocabulary = 10_000
    length: TextLength = 200
    tokens: TokenUnit = None
    normalise: Normalise = "own"

    def load(self) -> Splits:
        if self.revision is not None and _COMMIT.fullmatch(self.revision):
            return super().load()
        splits = cached.checked_splits(self.parse(lambda _, shape, dtype: np.empty(shape, dtype)))
        return self.normalised(splits, cached.training_moments(splits.train))

    def parse(self, allocate: Allocator) -> ParsedSplits:
        train = self._fetch(self.train_split)
        return self.parsed(train, None if self.test_split is None else self._fetch(self.test_split))

    def parsed(self, train: Any, test: Any | None) -> ParsedSplits:
        """Parse two `datasets.Dataset`; without `test`, hold out a share of `train`."""
        data, notes = [], []
        for part in (train,) if test is None else (train, test):
            plain, note = as_stored(part)
            data.append(plain)
            notes += [note] if note and note not in notes else []
        labels, classes = self._several(data) if self.labels == "multi" else self._labels(data)
        groups: list[np.ndarray | None] = [None] * len(data)
        if self.group_column is not None:
            ids = [self._column(part, self.group_column) for part in data]
            groups = [*number_groups(ids, [*map(len, labels)], f"hf {self.dataset}")]
        if test is None:
            rows = stratified_split(labels[0], 0.2, np.random.default_rng(0), self.dataset, groups[0])
            data = [data[0].select(part) for part in rows]
            labels = [labels[0][part] for part in rows]
            groups = [None if groups[0] is None else groups[0][part] for part in rows]
        if self.text is None:
            x, words = self._pixels(data, notes), tuple[str, ...]()
        else:
            origin = f"source hf: {self.dataset} ({self.text})"
            x, words, about_tokens = tokenise(
                self._texts(data), self.vocabulary, self.length, self.tokens, origin, f"hf {self.dataset}"
            )
            notes += about_tokens
        parts = [ParsedSamples(*part[:2], group=part[2]) for part in zip(x, labels, groups, strict=True)]
        origin = f"hf {self.dataset}"
        kind: dict[str, Any] = {"white": WHITE} if self.text is None else {"tokens": True}
        kind["labels"] = self.labels
        parsed = ParsedSplits(origin, parts[0], parts[1], classes, words=words, notes=tuple(notes), **kind)
        return parsed if test is not None else replace(parsed, part_origins=(origin, origin))

    def _fetch(self, split: str) -> Any:
        try:
            import datasets
        except ImportError:
            raise DataError("source hf: the package datasets is not installed; install fedloom[hub]") from None
        mode = datasets.DownloadConfig(local_files_only=True) if self.offline else None
        before = datasets.config.HF_HUB_OFFLINE
        try:
            datasets.config.HF_HUB_OFFLINE = before or self.offline
            return datasets.load_dataset(
                self.dataset, self.subset, split=split, revision=self.revision, download_config=mode
            )
        except Exception as error:  # the library raises many kinds for a name, split or network that is not there
            why = " ".join(str(error).split())[:300]
            hint = "; offline is set and it is not in the local cache" if self.offline else ""
            raise DataError(f"source hf: {self.dataset} ({split}) cannot be loaded ({why}){hint}") from None
        finally:
            datasets.config.HF_HUB_OFFLINE = before

    def _require_column(self, data: Any, name: str) -> None:
        if name not in data.column_names:
            hint = f"it has {', '.join(data.column_names)}: say which as image or text, and label"
            raise DataError(f"source hf: {self.dataset} has no column '{name}'; {hint}")

    def _column(self, data: Any, name: str) -> Any:
        self._require_column(data, name)
        return data[name]

    def _labels(self, data: list[Any]) -> tuple[list[np.ndarray], tuple[str, ...]]:
        """Return class ids of each part and the class names: those that the training set states, else its training
        labels. Where parts state names, labels are matched by name: the ids of a test set may have another order."""
        if not isinstance(self.label, str):
            raise DataError(f"scenario.label = {self.label}: several columns are for labels: multi; name one")
        columns = [list(map(_plain_label, self._column(part, self.label))) for part in data]
        wrong = next((v for values in columns for v in values if not isinstance(v, int | str)), 0)
        if not isinstance(wrong, int | str):
            problem = f"{wrong!r:.60} is no label; need integers or words"
            raise DataError(f"source hf: {self.dataset} ({self.label}): {problem}")
        origins = [f"source hf: {self.dataset} ({part}: {self.label})" for part in PARTS]
        stated = [getattr(part.features[self.label], "names", None) for part in data]
        if all(names is None for names in stated):
            refuse_missing_labels(np.asarray(columns[0], np.str_), origins[0])
            return named_ids(columns, origins)
        classes = stated[0]
        if classes is None:
            raise DataError(f"{origins[1]}: labels have names, those of the training set have none; need names in both")
        same = all(names == classes for names in stated)
        ids = [_ids_by_name(*part, classes, same) for part in zip(columns, stated, origins, strict=False)]
        return ids, tuple(map(str, classes))

    def _several(self, data: list[Any]) -> tuple[list[np.ndarray], tuple[str, ...]]:
        """Return labels [n, L] of each part and their names: from a column for each, from lists of names or of ids of
        named classes, or from lists of L cells of 1 and 0."""
        origin = f"source hf: {self.dataset} ({self.label})"
        if not isinstance(self.label, str):
            cells = [[[-1 if v is None else v for v in self._column(part, k)] for k in self.label] for part in data]
            return multi_labels([np.array(part).T for part in cells], origin, self.label)
        columns = [list(self._column(part, self.label)) for part in data]
        if (odd := next((v for part in columns for v in part if not isinstance(v, list | tuple)), None)) is not None:
            raise DataError(
                f"{origin}: {odd!r:.60} is no list of labels; need lists, or a column for each (label: [a, b])"
            )
        features = [part.features[self.label] for part in data]
        inner = [of[0] if isinstance(of, list) else getattr(of, "feature", None) for of in features]
        stated = [getattr(of, "names", None) for of in inner]
        flat = [[label for labels in part for label in labels] for part in columns]
        if len({len(labels) for part in columns for labels in part}) == 1 and {*flat[0], *flat[-1]} == {0, 1}:
            return multi_labels([np.array(part) for part in columns], origin, stated[0])
        origins, names = [f"{origin} ({part})" for part in PARTS], tuple(map(str, stated[0] or ()))
        if names:
            ids = [_ids_by_name(*part, names, False) for part in zip(flat, stated, origins, strict=False)]
        else:
            ids, names = named_ids([[*map(str, part)] for part in flat], origins)
        y = [np.zeros((len(part), len(names)), np.int64) for part in columns]
        for of, part, held in zip(y, columns, ids, strict=True):
            of[np.repeat(np.arange(len(part)), [*map(len, part)]), held] = 1
        return y, names

    def _pixels(self, data: list[Any], notes: list[str]) -> list[np.ndarray]:
        """Return pixels [n, channels, size, size] of each part: uint8, or float32 of more than 256 levels."""
        pictures = PictureNotes()
        arrays = {
            part: np.empty((len(rows), self.channels, self.size, self.size), np.uint8)
            for part, rows in zip(PARTS, data, strict=True)
        }
        for part, rows in zip(PARTS, data, strict=True):
            self._require_column(rows, self.image)
            for row, picture in enumerate(encoded_pictures(rows, self.image)):
                label = f"{self.dataset} ({self.image}), row {row} of {part}"
                pixels = self._one_picture(picture, label, row, pictures)
                put(pixels, arrays, part, row, lambda _, shape, dtype: np.empty(shape, dtype))
        notes += pictures.sentences()
        return list(arrays.values())

    def _one_picture(self, picture: Any, label: str, row: int, notes: PictureNotes) -> np.ndarray:
        if isinstance(picture, bytes):
            pixels = read_pixels(picture, label, self.channels, notes)
        elif hasattr(picture, "convert"):
            pixels = image_pixels(picture, label, self.channels, notes)
        else:
            kind = type(picture).__name__
            raise DataError(f"source hf: {self.dataset} ({self.image}): row {row} is a {kind}; need pictures, or text=")
        planes = pixels[None] if self.channels == 1 else pixels.transpose(2, 0, 1)
        return np.asarray(resized(planes[None], self.size, self.channels)[0])

    def _texts(self, data: list[Any]) -> list[list[str]]:
        texts = [list(self._column(part, str(self.text))) for part in data]
        wrong = next((row for part in texts for row, text in enumerate(part) if not isinstance(text, str)), None)
        if wrong is not None:
            raise DataError(f"source hf: {self.dataset} ({self.text}): row {wrong} is no text; need a column of texts")
        return texts


def _plain_label(label: Any) -> Any:
    """Return the entry of a list of one, and a whole float as an integer; other labels unchanged."""
    single = label[0] if isinstance(label, list) and len(label) == 1 else label
    return int(single) if isinstance(single, float) and single.is_integer() else single


def splits_by_part(names: Iterable[str]) -> dict[str, str]:
    """Return the split for each of the parts train, val and test: of this name, or of one like "Train" or "testing"."""
    parts: dict[str, str] = {}
    for name in sorted(names, key=lambda name: name not in ("train", "val", "test")):
        if (part := part_of(name)) in BARE_PARTS and part is not None:
            parts.setdefault(part[0], name)
    return parts


def as_stored(data: Any) -> tuple[Any, str]:
    """Return a `datasets.Dataset` without its output format (torch, numpy, ...), which would hand out other kinds of
    values, and a note where that was a function of the user's."""
    kind = (getattr(data, "format", None) or {}).get("type")
    if kind is None or not hasattr(data, "with_format"):
        return data, ""
    note = "set_transform and with_transform are not applied; use map to change the data" if kind == "custom" else ""
    return data.with_format(None), note


def encoded_pictures(data: Any, name: str) -> Iterator[Any]:
    """Yield the pictures of a column as encoded bytes where possible, else as the column returns them."""
    feature = data.features[name]
    converted = getattr(feature, "mode", None) is not None  # by the library, as the dataset's author or user says
    if type(feature).__name__ != "Image" or converted or not hasattr(data, "cast_column"):
        yield from data[name]
        return
    undecoded = data.cast_column(name, type(feature)(decode=False))[name]
    for row, encoded in enumerate(undecoded):
        raw, path = (encoded or {}).get("bytes"), (encoded or {}).get("path")
        if raw is not None:
            yield raw
        elif path is not None and Path(path).is_file():
            yield read_regular(Path(path))
        else:
            yield data[row][name]


def _ids_by_name(
    labels: Sequence[int | str], stated: Sequence[str] | None, origin: str, classes: Sequence[str], same: bool
) -> np.ndarray:
    """Return class ids of labels that are words, or indices into the names `stated`; `same`: these are the classes."""
    if same:
        return np.array(labels, np.int64)  # ids outside the names are refused later, with those of other sources
    if stated is None and not all(isinstance(label, str) for label in labels):
        raise DataError(f"{origin}: labels are numbers, and those of the training set have names; need names in both")
    outside = next((v for v in labels if isinstance(v, int) and not 0 <= v < len(stated or ())), None)
    if outside is not None:
        raise DataError(f"{origin}: label {outside} is none of the {len(stated or ())} names; leave the sample out")
    words = [label if isinstance(label, str) else (stated or ())[label] for label in labels]
    return named_ids([words], [origin], classes)[0][0]


def from_huggingface(data: Any, **keys: Any) -> Splits:
    """Splits from a `datasets.Dataset`, or from a `DatasetDict` with a split `train` and, if there is one, `test`.

    Splits may also be called "Train" or "testing". `keys` are those of the source `hf`, without the location of the
    data: `image` or `text`, `label`, `group`, `train_split`, `test_split`, `size`, `channels`, `length`, ... Without a
    test split 20 % of each class are held out. Raises `DataError` for columns and labels that do not fit."""
    split = hasattr(data, "keys")
    parts_of = splits_by_part(data) if split else {}
    named = {"train_split": parts_of.get("train", "train"), "test_split": parts_of.get("test")}
    keys = {**named, "dataset": "data", **keys}
    configured = configure_source(HuggingFace, **keys)
    split_names = [name for name in (configured.train_split, configured.test_split) if name is not None]
    missing = [name for name in split_names if name not in data] if split else []
    if missing or (not split and configured.test_split is not None):
        hint = f"its splits are {', '.join(data)}" if split else "a Dataset has no splits"
        raise DataError(f"from_huggingface: no split '{(missing or split_names[1:])[0]}'; {hint}")
    parts = [data[name] for name in split_names] if split else [data]
    if not all(hasattr(part, "select") for part in parts):
        raise DataError("from_huggingface: streamed data have no length; load them with streaming=False")
    splits = cached.checked_splits(configured.parsed(parts[0], parts[1] if len(parts) > 1 else None))
    return grouped(configured.normalised(splits, cached.training_moments(splits.train)), configured)
