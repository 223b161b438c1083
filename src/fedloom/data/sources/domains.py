"""Several sources as domains of one set, and digits blended into pictures."""

import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field, ValidationError, model_validator

from fedloom.core.errors import DataError, FedloomError
from fedloom.data.dataset import Dataset
from fedloom.data.sources.cached import Allocator, ImageSource, Normalise, ParsedSamples, ParsedSplits
from fedloom.data.sources.digits import Digits
from fedloom.data.sources.files import package_folder
from fedloom.data.sources.mnist import MNIST
from fedloom.data.sources.pixels import WHITE, resized
from fedloom.data.sources.source import SOURCES, Source, Splits, first_rows, source, stratified_split

_TEST_SHARE = 0.2
Rows = tuple[np.ndarray, np.ndarray]


@source("domains")
class JoinedSources(ImageSource):
    """Image sources with the same classes, each a domain: resized to one size, gray replicated to colour.
    Classes are matched by name, and numbered as the first source has them.

    Training images of each domain are in shuffled order, the same in every run. Official test sets stay whole and
    apart, unless they are pooled."""

    model = "fedbn-digits-cnn"

    parts: tuple[str | dict[str, Any], ...] = Field(min_length=1, examples=[["mnist", "usps"]])
    paths: dict[str, Path] = Field({}, examples=[{"mnist": "data/mnist"}])
    size: int = Field(28, ge=1, le=2048, description="Height and width that images are resized to, in pixels.")
    channels: Literal[1, 3] = Field(3, description="Number of channels of the images: 1 for gray, 3 for colour.")
    per_domain: int | None = Field(None, ge=1)
    pool_splits: bool = False
    normalise: Normalise = "half"

    @model_validator(mode="after")
    def _sound(self) -> "JoinedSources":
        try:
            names = list(self.domain_sources())
        except ValidationError as error:
            # The part's first problem in one line: pydantic would put its whole report into ours.
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise ValueError(f"key '{where}' of a part = {first['input']!r}: {first['msg']}") from None
        except FedloomError as error:
            raise ValueError(str(error)) from None
        strange = sorted(set(self.paths) - set(names))
        if strange:
            raise ValueError(f"paths names '{strange[0]}', which is none of the parts {', '.join(names)}")
        return self

    def domain_sources(self) -> dict[str, Source]:
        sources: dict[str, Source] = {}
        for part in self.parts:
            keys = {"source": part} if isinstance(part, str) else dict(part)
            kind = str(keys.pop("source", "none"))
            name = str(keys.pop("name", kind))
            if name in sources:
                raise DataError(f"domains: two parts are called '{name}'; give one of them another name")
            given: dict[str, Any] = {"path": self.paths[name]} if name in self.paths else {}
            given |= {} if self.group in (None, "owner") or "group" in keys else {"group": self.group}
            sources[name] = SOURCES.get(kind)(**keys, **given)
        return sources

    def named_domains(self) -> tuple[str, ...]:
        return tuple(self.domain_sources())

    def files(self) -> Sequence[Path]:
        """List the files of all parts. Raises one `DataError` with the missing files of every part."""
        paths: list[Path] = []
        absent: list[str] = []
        for part in self.domain_sources().values():
            try:
                paths += part.files()
            except DataError as error:
                absent.append(str(error))
        if absent:
            raise DataError(f"{'; '.join(absent)}; paths of parts belong in scenario.paths, by name")
        return paths

    def parse(self, allocate: Allocator) -> ParsedSplits:
        loaded = {name: part.load() for name, part in self.domain_sources().items()}
        groups = {name: splits.train.group is not None for name, splits in loaded.items()}
        for name, splits in loaded.items():
            splits.train.require_one_class(f"source domains: part {name}")
            if any(groups.values()) and not groups[name]:
                raise DataError(f"source domains: part {name} has no groups, and others have; give all the key or none")
        classes = self._common_classes(loaded)
        chosen = [self._choose(name, splits) for name, splits in loaded.items()]
        whole = all(splits.train.x.dtype == torch.uint8 for splits in loaded.values())
        parts = []
        for side in (0, 1):
            counts = [len(rows[side]) for rows in chosen]
            ends = np.cumsum(counts)
            key = ("train.x", "test.x")[side]
            x = allocate(key, (int(ends[-1]), self.channels, self.size, self.size), np.uint8 if whole else np.float32)
            labels, held = [], list[np.ndarray]()
            for splits, rows, end, count in zip(loaded.values(), chosen, ends, counts, strict=True):
                pixels, ids, group = self._samples(splits, rows[side], side)
                x[end - count : end] = resized(pixels, self.size, self.channels)
                labels.append(np.array([classes.index(name) for name in splits.train.classes])[ids])
                held.append(group * len(loaded) + len(held))  # no group of two domains is the same
            domain, group = np.repeat(np.arange(len(counts)), counts), np.concatenate(held)
            parts.append(ParsedSamples(x, np.concatenate(labels), domain, group if all(groups.values()) else None))
        notes = tuple(f"domain {name}: {note}" for name, splits in loaded.items() for note in splits.notes)
        return ParsedSplits(
            "domains", parts[0], parts[1], classes, tuple(loaded), white=WHITE, notes=notes, has_class_notes=True
        )

    def _common_classes(self, loaded: Mapping[str, Splits]) -> tuple[str, ...]:
        (first, reference), *others = loaded.items()
        for name, splits in loaded.items():
            x = splits.train.x
            if x.dim() != 4 or (x.dtype != torch.uint8 and splits.train.white != WHITE):
                raise DataError(f"domains: {name} holds {x.dtype} of shape {tuple(x.shape)}; need uint8 images")
        for name, splits in others:
            if set(splits.train.classes) != set(reference.train.classes):
                problem = f"{name} has classes {_shown(splits)}, {first} has {_shown(reference)}; they must agree"
                raise DataError(f"domains: {problem}")
        return reference.train.classes

    def _choose(self, name: str, splits: Splits) -> Rows:
        """Return row numbers of a domain's training and test samples, counted over both with `pool_splits`."""
        rng = np.random.default_rng([0, zlib.crc32(name.encode())])  # a domain's rows do not depend on the others
        if self.pool_splits:
            labels = np.concatenate([splits.train.y.numpy(), splits.test.y.numpy()])
            held = [part.group.numpy() for part in (splits.train, splits.test) if part.group is not None]
            train, test = stratified_split(labels, _TEST_SHARE, rng, name, np.concatenate(held) if held else None)
        else:
            train, test = rng.permutation(len(splits.train)), np.arange(len(splits.test))
        return first_rows(train, self.per_domain, name), test

    def _samples(self, splits: Splits, rows: np.ndarray, side: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return pixels [n, c, h, w], labels [n] and groups [n] (0 without groups) of row numbers from `_choose`."""
        parts = [(splits.train, splits.test)[side]] if not self.pool_splits else [splits.train, splits.test]
        arrays = [(of.x.numpy(), of.y.numpy(), np.zeros(len(of)) if of.group is None else of.group) for of in parts]
        x, y, group = (of[0][rows] if len(of) == 1 else np.concatenate(of)[rows] for of in zip(*arrays, strict=True))
        return x, y, np.asarray(group, np.int64)


def _shown(splits: Splits) -> str:
    names = splits.train.classes
    return f"{len(names)} ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''})"


_PHOTOGRAPH_NAMES = ("china.jpg", "flower.jpg")


@source("blended")
class Blended(ImageSource):
    """Colour images [3, size, size]: |photograph - digit| per pixel and channel, the recipe of Ganin et al. 2016.

    Digits lie on patches of the two photographs that scikit-learn ships: training digits on the left three quarters,
    test digits on the right quarter. Results cannot be compared with those on published blended digits."""

    model = "fedbn-digits-cnn"

    digits: Literal["digits", "mnist"] = "digits"
    path: Path | None = None
    size: int = Field(28, ge=8, le=128, description="Height and width of the images, in pixels.")
    copies: int = Field(1, ge=1, le=100, description="Number of images made of each digit, each on another patch.")
    source_seed: int = Field(0, ge=0, description="Seed of the images; the same seed gives the same images.")

    def files(self) -> Sequence[Path]:
        return [*_photograph_paths(), *self._digit_source().files()]

    def parse(self, allocate: Allocator) -> ParsedSplits:
        splits = self._digit_source().load()
        photographs = [_read_photograph(path) for path in _photograph_paths()]
        train, test = (
            self._blend(data, photographs, part, allocate) for part, data in enumerate((splits.train, splits.test))
        )
        return ParsedSplits("blended", train, test, splits.train.classes)

    def _digit_source(self) -> Digits | MNIST:
        return Digits() if self.digits == "digits" else MNIST(path=self.path)

    def _blend(self, data: Dataset, photographs: list[np.ndarray], part: int, allocate: Allocator) -> ParsedSamples:
        rng = np.random.default_rng([self.source_seed, part])
        x = data.x.numpy()
        white = 16 if self.digits == "digits" else 255
        digits = resized((x.astype(np.float64) * 255 / white).astype(np.uint8), self.size, 1)
        blended = allocate(("train.x", "test.x")[part], (self.copies * len(x), 3, self.size, self.size), np.uint8)
        for row in range(len(blended)):
            photograph = photographs[rng.integers(len(photographs))]
            height, width = photograph.shape[1:]
            border = width * 3 // 4
            left_edge, right_edge = (0, border) if part == 0 else (border, width)
            top = int(rng.integers(height - self.size + 1))
            left_column = int(rng.integers(left_edge, right_edge - self.size + 1))
            # Signed, because the difference of two bytes may be negative.
            patch = photograph[:, top : top + self.size, left_column : left_column + self.size].astype(np.int16)
            blended[row] = np.abs(patch - digits[row % len(x)])
        return ParsedSamples(blended, np.tile(data.y.numpy(), self.copies))


def _photograph_paths() -> list[Path]:
    folder = package_folder("blended", "sklearn", "scikit-learn", "photographs") / "datasets" / "images"
    return [folder / name for name in _PHOTOGRAPH_NAMES]


def _read_photograph(path: Path) -> np.ndarray:
    from PIL import Image

    try:
        with Image.open(path, formats=["JPEG"]) as image:
            return np.asarray(image.convert("RGB")).transpose(2, 0, 1)
    except OSError as error:
        raise DataError(f"{path}: scikit-learn's photograph cannot be read ({error})") from None
