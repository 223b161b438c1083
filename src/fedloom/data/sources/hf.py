"""Hugging Face datasets (extra `hub`)."""

from __future__ import annotations

import re
from typing import Any, Literal

import numpy as np
from pydantic import Field

from fedloom.core.errors import DataError
from fedloom.data.sources.cached import Allocate, ImageSource, Normalise, Parsed, Part, own_moments, validated
from fedloom.data.sources.images import resized
from fedloom.data.sources.source import Splits, source
from fedloom.data.sources.text import encode, vocabulary
from fedloom.data.sources.train_test_split import stratified

_COMMIT = re.compile(r"[0-9a-f]{40}")


@source("hf")
class HuggingFace(ImageSource):
    """A classification set from the Hugging Face hub or a local folder of one: images, or texts if `text` is given.

    `dataset`, `subset` and `revision` as in `datasets.load_dataset`; `image` or `text`, and `label`, are column names;
    without `test_split` 20 % of each class are held out, the same in every run. Images become `channels` x `size` x
    `size`; texts become token ids, see `TextSource`. The only source that may touch the network; `offline` forbids it.
    Parsed arrays are cached when `revision` is a commit hash, since only that always means the same data.
    """

    dataset: str
    subset: str | None = None
    revision: str | None = None
    offline: bool = False
    train_split: str = "train"
    test_split: str | None = "test"
    image: str = "image"
    text: str | None = None
    label: str = "label"
    size: int = Field(32, ge=1, le=2048)
    channels: Literal[1, 3] = 3
    vocabulary: int = Field(10_000, ge=3)
    length: int = Field(200, ge=1)
    normalise: Normalise = "own"

    def load(self) -> Splits:
        if self.revision is not None and _COMMIT.fullmatch(self.revision):
            return super().load()
        splits = validated(self.parse(lambda _, shape, dtype: np.empty(shape, dtype)))
        return self.scaled(splits, own_moments(splits.train))

    def parse(self, new: Allocate) -> Parsed:
        train = self._fetch(self.train_split)
        labels, classes = self._labels(train, None)
        if self.test_split is None:
            rows = stratified(labels, 0.2, np.random.default_rng(0), self.dataset)
            data = [train.select(part) for part in rows]
            both = [labels[part] for part in rows]
        else:
            data = [train, self._fetch(self.test_split)]
            both = [labels, self._labels(data[1], classes)[0]]
        x, words = self._tokens(data) if self.text is not None else ([self._pixels(part) for part in data], ())
        parts = [Part(samples, ids) for samples, ids in zip(x, both, strict=True)]
        return Parsed(f"hf {self.dataset}", parts[0], parts[1], classes, tokens=self.text is not None, words=words)

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

    def _column(self, data: Any, name: str) -> Any:
        if name not in data.column_names:
            raise DataError(f"source hf: {self.dataset} has no column '{name}'; it has {', '.join(data.column_names)}")
        return data[name]

    def _labels(self, data: Any, classes: tuple[str, ...] | None) -> tuple[np.ndarray, tuple[str, ...]]:
        values = list(self._column(data, self.label))
        names = getattr(data.features[self.label], "names", None)
        if names is None:
            names = classes or sorted(set(values), key=lambda value: (not isinstance(value, int), value))
            ids = {name: c for c, name in enumerate(names)} | {str(name): c for c, name in enumerate(names)}
            unknown = next((value for value in values if value not in ids), None)
            if unknown is not None:
                raise DataError(f"source hf: {self.dataset} ({self.label}): '{unknown}' is no training label")
            values = [ids[value] for value in values]
        return np.array(values, np.int64), tuple(str(name) for name in names)

    def _pixels(self, data: Any) -> np.ndarray:
        out = np.empty((len(data), self.channels, self.size, self.size), np.uint8)
        for row, picture in enumerate(self._column(data, self.image)):
            pixels = np.asarray(picture.convert("L" if self.channels == 1 else "RGB"))
            shaped = pixels[None, None] if self.channels == 1 else pixels.transpose(2, 0, 1)[None]
            out[row] = resized(shaped, self.size, self.channels)[0]
        return out

    def _tokens(self, data: list[Any]) -> tuple[list[np.ndarray], tuple[str, ...]]:
        texts = [[str(text) for text in self._column(part, str(self.text))] for part in data]
        known = vocabulary(texts[0], self.vocabulary)
        return [encode(part, known, self.length) for part in texts], tuple(known)
