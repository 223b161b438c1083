"""Base classes of sources that parse files: they check samples, cache them on disk and normalise pixels."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import DTypeLike
from pydantic import Field, model_validator

from fedloom.core.errors import DataError
from fedloom.core.files import package_table
from fedloom.data.cache import CacheEntry, CacheWriter, cached
from fedloom.data.dataset import Dataset, channel_moments, checked, constant_inputs
from fedloom.data.imputation import DropColumns, Impute, Incomplete
from fedloom.data.labels import PARTS, class_notes, multi_label_notes
from fedloom.data.sources.files import Files, locate, open_files, verify_md5
from fedloom.data.sources.source import Labels, Source, SourceType, Splits, source

Allocator = Callable[[str, tuple[int, ...], DTypeLike], np.ndarray]
"""Creates the array "train.x" or "test.x" of a shape and dtype: on disk while a cache entry is written."""

Normalise = Annotated[
    Literal["own", "unit", "half", "published"],
    Field(
        description="Scaling of the pixels: `own` subtracts the mean and divides by the standard deviation of this "
        "training set, per channel; `unit` gives values in [0, 1]; `half` gives values in [-1, 1] (mean and deviation "
        "0.5); `published` takes the values that the papers print."
    ),
]


Moments = tuple[tuple[float, ...], tuple[float, ...]]  # mean and standard deviation per channel
_LISTED = 5  # columns in a note


@dataclass(frozen=True, slots=True)
class ParsedSamples:
    """Unchecked samples: x [n, ...], labels y [n] or [n, L], domain ids and numbers of groups [n] or None."""

    x: np.ndarray
    y: np.ndarray
    domain: np.ndarray | None = None
    group: np.ndarray | None = None

    def rows(self, rows: np.ndarray) -> "ParsedSamples":
        domain, group = (None if ids is None else ids[rows] for ids in (self.domain, self.group))
        return ParsedSamples(self.x[rows], self.y[rows], domain, group)


@dataclass(frozen=True, slots=True)
class ParsedSplits:
    """An unchecked training and test set; fields without a comment are those of `Dataset` and `Splits`."""

    origin: str  # name of the set in messages
    train: ParsedSamples
    test: ParsedSamples
    classes: tuple[str, ...]
    domains: tuple[str, ...] = ()
    tokens: bool = False  # x holds token ids, of the vocabulary `words`
    words: tuple[str, ...] = ()
    white: float | None = None
    notes: tuple[str, ...] = ()
    part_origins: tuple[str, str] | None = None  # in notes on classes, the same twice for one that was split
    has_class_notes: bool = False  # `notes` cover oddities of the classes already
    validation: int = 0
    unreadable: tuple[np.ndarray, ...] = ()  # rows of both parts whose files cannot be read
    labels: Labels = "single"  # see `checked`
    incomplete: Incomplete = "refuse"  # what happens to missing features [n, d]; `make_scenario` imputes them
    features: tuple[str, ...] = ()

    def with_notes(self, *notes: str) -> "ParsedSplits":
        return replace(self, notes=(*self.notes, *notes))


def checked_splits(parsed: ParsedSplits) -> Splits:
    """Check both parts, and note oddities. Raises `DataError` as `checked`, and for parts of unlike kinds or shapes."""
    for name, rows in zip(("train", "test"), parsed.unreadable, strict=False):
        if len(rows):
            part = getattr(parsed, name)
            is_kept = ~np.isin(np.arange(len(part.x)), rows)
            readable: dict[str, Any] = {name: part.rows(np.flatnonzero(is_kept))}
            if name == "train" and parsed.validation:
                readable["validation"] = int(is_kept[-parsed.validation :].sum())
            parsed = replace(parsed, **readable)
    has_rows = parsed.train.x.ndim == 2 and parsed.train.x.dtype.kind in "iuf" and not parsed.tokens
    imputes = parsed.incomplete == "impute"
    if imputes and not has_rows:
        shape = parsed.train.x.shape[1:]
        raise DataError(f"{parsed.origin}: incomplete = impute is for features [n, d]; samples have shape {shape}")
    if parsed.incomplete == "drop" and has_rows:
        parsed = _without_gaps(parsed)
    train, test = (
        replace(
            checked(
                np.where(np.isnan(samples.x), np.float32(0), samples.x) if imputes else samples.x,
                samples.y,
                origin=f"{parsed.origin} ({name})",
                classes=parsed.classes,
                domain=samples.domain,
                domains=parsed.domains,
                tokens=parsed.tokens,
                group=samples.group,
                labels=parsed.labels,
            ),
            words=parsed.words,
            white=parsed.white,
            features=parsed.features,
        )
        for name, samples in zip(PARTS, (parsed.train, parsed.test), strict=True)
    )
    if train.input_shape != test.input_shape:
        problem = f"train {train.input_shape} and test {test.input_shape} differ in sample shape"
        raise DataError(f"{parsed.origin}: {problem}")
    kinds = ["bytes (uint8)" if part.x.dtype == torch.uint8 else "real numbers" for part in (train, test)]
    if kinds[0] != kinds[1]:
        raise DataError(
            f"{parsed.origin}: train holds {kinds[0]} and test {kinds[1]}, which need not be on one scale; give both "
            "as bytes, or both as real numbers of one scale"
        )
    about_classes: list[str] = []
    if train.multi:
        about_classes = multi_label_notes(parsed.origin, parsed.classes, train.y.numpy(), test.y.numpy())
    elif not parsed.has_class_notes:
        counts = [np.bincount(part.y.numpy(), minlength=part.num_classes).tolist() for part in (train, test)]
        origins = parsed.part_origins or [f"{parsed.origin} ({part})" for part in PARTS]
        about_classes = class_notes(origins, parsed.classes, *counts)
    notes = (*parsed.notes, *about_classes, *constant_inputs(train))
    if imputes:
        x = [torch.from_numpy(part.x.astype(np.float32)) for part in (parsed.train, parsed.test)]
        train, test = replace(train, x=x[0]), replace(test, x=x[1])
    unreadable = sum(map(len, parsed.unreadable))
    return Splits(train, test, validation=parsed.validation, unreadable=unreadable, notes=notes)


def without_columns(parsed: ParsedSplits, rule: DropColumns) -> ParsedSplits:
    """Return features [n, d], called x0 on, without the columns that lack more than a share of the training cells, and
    with a note on these. Raises `DataError` for other samples, and if no column is left."""
    x = parsed.train.x
    if x.ndim != 2 or x.dtype.kind != "f" or parsed.tokens:
        raise DataError(f"{parsed.origin}: drop_columns is for features [n, d]; samples are {x.dtype} {x.shape[1:]}")
    lacking = np.isnan(x).sum(0)
    is_kept = lacking <= rule["above"] * len(x)
    if is_kept.all() or parsed.test.x.shape[1:] != x.shape[1:]:  # refused later
        return parsed
    if not is_kept.any():
        raise DataError(f"{parsed.origin}: drop_columns = {rule} leaves no column to learn from")
    listed = ", ".join(f"x{column} ({lacking[column]:,})" for column in np.flatnonzero(~is_kept)[:_LISTED])
    note = f"columns that lack too many of {len(x):,} cells (drop_columns) left out ({(~is_kept).sum():,}): {listed}"
    train, test = (replace(part, x=part.x[:, is_kept]) for part in (parsed.train, parsed.test))
    names = tuple(f"x{column}" for column in np.flatnonzero(is_kept))
    return replace(parsed, train=train, test=test, features=names).with_notes(f"{parsed.origin}: {note}")


def _without_gaps(parsed: ParsedSplits) -> ParsedSplits:
    """Return the rows [n, d] of both parts that lack no value (NaN), with notes on the others."""
    parts, notes = {"train": parsed.train, "test": parsed.test}, [*parsed.notes]
    validation = int((~np.isnan(parsed.train.x)).all(1)[len(parsed.train.x) - parsed.validation :].sum())
    for name, part in parts.items():
        whole = np.flatnonzero(~np.isnan(part.x).any(1))
        if gaps := len(part.x) - len(whole):
            parts[name] = part.rows(whole)
            notes.append(f"{parsed.origin} ({name}): {gaps:,} of {len(part.x):,} rows lack a value and were left out")
    return replace(parsed, train=parts["train"], test=parts["test"], notes=tuple(notes), validation=validation)


def with_rules(splits: Splits, section: Impute | None, origin: str) -> Splits:
    """Return splits of features [n, d] with names, x0 on, and the rules of the `section`; origin: names them."""
    names = splits.train.features or tuple(f"x{column}" for column in range(splits.train.input_shape[0]))
    train, test = (replace(part, features=names) for part in (splits.train, splits.test))
    rules = (section or Impute()).rules(dict.fromkeys(names, ()), origin)
    return replace(splits, train=train, test=test, rules=rules)


class CachedSource(Source):
    """Base of sources that parse files once; later loads map the cached arrays into memory."""

    uncached_keys: ClassVar[frozenset[str]] = frozenset({"offline", "verify", "limit", "normalise", "shared_groups"})
    """Keys that do not change the cached arrays."""

    def parse(self, allocate: Allocator) -> ParsedSplits:
        """Read the files. Large arrays are created by `allocate("train.x", shape, dtype)` and filled in place."""
        raise TypeError(f"{type(self).__name__} defines no parse()")

    def cache_keys(self) -> dict[str, Any]:
        """Return the values that identify the cache entry, in addition to the files' sizes and times."""
        values = {name: getattr(self, name) for name in type(self).model_fields if name not in self.uncached_keys}
        for key in {"group", "labels", "max_bad_samples"} & {*values}:  # that entries of earlier versions do not know
            if values[key] == type(self).model_fields[key].default:
                del values[key]
        # Absolute: the same relative path is another file in another working folder.
        plain = {name: str(value.absolute()) if isinstance(value, Path) else value for name, value in values.items()}
        return plain | {"source": f"{type(self).__module__}.{type(self).__qualname__}"}

    def load(self) -> Splits:
        return _splits_of_entry(self._entry())

    def _entry(self) -> CacheEntry:
        return cached(self.kind, self.cache_keys(), self.files(), self._write_entry)

    def _write_entry(self, writer: CacheWriter) -> dict[str, Any]:
        splits = checked_splits(self.parse(writer.new))
        for name, data in (("train", splits.train), ("test", splits.test)):
            for key in ("x", "y", "domain", "group"):
                tensor = getattr(data, key)
                if tensor is not None:
                    writer.add(f"{name}.{key}", tensor.numpy())
        train = splits.train
        learned = train.head(len(train) - splits.validation)
        facts = {key: getattr(train, key) for key in ("classes", "domains", "words", "white", "features")}
        facts |= {"moments": training_moments(learned), "validation": splits.validation, "notes": splits.notes}
        return facts | {"unreadable": splits.unreadable}


_FACTS = package_table(Path(__file__).with_name("published.toml"))


def published_set(name: str) -> Callable[[type[SourceType]], type[SourceType]]:
    """Return a decorator that registers a source, with the facts that `published.toml` states of it as attributes, and
    the description there as its docstring."""

    def register(kind: type[SourceType]) -> type[SourceType]:
        kind.__doc__ = _FACTS[name]["description"]
        for key, value in _FACTS[name].items():
            setattr(kind, key, value)
        source(name)(kind)
        return kind

    return register


class PublishedFiles(CachedSource):
    """Base of sets that are published as files or archives."""

    publisher: ClassVar[str] = ""
    checksums: ClassVar[dict[str, str]] = {}
    places: ClassVar[Sequence[tuple[str, str]]] = ()  # where the files may be, in order of preference; see `locate`

    path: Path | None = None
    verify: bool = Field(True, description="Whether archives are compared with the publisher's MD5 where there is one.")

    def layouts(self) -> Sequence[tuple[str, str]]:
        """Return `places`, or those that the keys decide."""
        return self.places

    def names_to_read(self, files: Files) -> Sequence[str] | None:
        """Return the names of the files that are used; None for all."""
        return None

    def data_path(self) -> Path:
        """Find the folder, archive or .npz file that is read."""
        return locate(self.kind, self.path, self.layouts(), self.publisher)

    def files(self) -> Sequence[Path]:
        path = self.data_path()
        if path.is_file():
            return [path]
        files = open_files(path)
        return files.stamped_paths(self.names_to_read(files))

    def opened(self) -> Files:
        """Open the files. Raises `DataError` for an archive that differs from the published one."""
        if self.verify:
            verify_md5(self.files() if self.checksums else [], self.checksums)
        return open_files(self.data_path())


class ImageSource(CachedSource):
    """Base of image sources."""

    published: ClassVar[Moments | None] = None
    """Mean and standard deviation per channel that papers print, for pixels in [0, 1]."""

    normalise: Normalise = "own"

    @model_validator(mode="after")
    def _refuse_unpublished_moments(self) -> "ImageSource":
        if self.normalise == "published" and self.published is None:
            raise ValueError(f"no published mean is known for {self.kind}; take own, unit or half")
        return self

    def load(self) -> Splits:
        entry = self._entry()
        return self.normalised(_splits_of_entry(entry), entry.meta["moments"])

    def normalised(self, splits: Splits, moments: Any) -> Splits:
        """Set the mean and deviation, in stored units, that the key `normalise` names, the same for both splits.
        moments: those of the training set (`training_moments`); None leaves sets without channels as they are."""
        if moments is None:
            return splits
        # Real numbers reach 1, unless `white` says otherwise, as for pictures with more than 8 bits.
        brightest = 255.0 if splits.train.x.dtype == torch.uint8 else 1.0
        white = brightest if splits.train.white is None else splits.train.white
        channels = splits.train.input_shape[0]
        mean, std = {
            "own": moments,
            "unit": [[0.0] * channels, [white] * channels],
            "half": [[0.5 * white] * channels] * 2,
            "published": [[white * value for value in values] for values in self.published or ((), ())],
        }[self.normalise]
        means, deviations = torch.tensor(mean), torch.tensor(std)
        return replace(
            splits,
            train=replace(splits.train, mean=means, std=deviations),
            test=replace(splits.test, mean=means, std=deviations),
            own_moments=self.normalise == "own",
        )


def training_moments(train: Dataset) -> tuple[list[float], list[float]] | None:
    """Return mean and standard deviation per channel, in stored units; None unless samples are images or volumes."""
    return channel_moments(train.x.numpy()) if train.x.dim() >= 4 else None


def _splits_of_entry(entry: CacheEntry) -> Splits:
    meta = entry.meta

    # No check here: `checked_splits` passed these samples before they were written, and checksums tell damage.
    def dataset(name: str) -> Dataset:
        x, y = (torch.from_numpy(entry.arrays[f"{name}.{key}"]) for key in "xy")
        stored = [entry.arrays.get(f"{name}.{key}") for key in ("domain", "group")]
        domain, group = (None if ids is None else torch.from_numpy(ids) for ids in stored)
        names: dict[str, Any] = {key: tuple(meta[key]) for key in ("classes", "domains", "words")}
        names["features"] = tuple(meta.get("features", ()))
        return Dataset(x, y, domain=domain, group=group, white=meta["white"], **names)

    counts = {key: meta.get(key, 0) for key in ("validation", "unreadable")}
    return Splits(dataset("train"), dataset("test"), notes=tuple(meta.get("notes", ())), **counts)
