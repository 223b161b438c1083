"""Hugging Face datasets (extra `hub`)."""

from __future__ import annotations

import re
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from fedloom.core.errors import DataError
from fedloom.data.labels import named_ids
from fedloom.data.sources.cached import Allocate, ImageSource, Normalise, Parsed, Part, own_moments, validated
from fedloom.data.sources.images import resized
from fedloom.data.sources.source import Splits, configured, source
from fedloom.data.sources.text import Tokens, encode, refuse_unspaced, token_notes, vocabulary
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

    later: ClassVar[frozenset[str]] = frozenset({"tokens"})

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
    tokens: Tokens | None = Field(None, description="How texts are split: see `TextSource`.")
    normalise: Normalise = "own"

    def load(self) -> Splits:
        if self.revision is not None and _COMMIT.fullmatch(self.revision):
            return super().load()
        splits = validated(self.parse(lambda _, shape, dtype: np.empty(shape, dtype)))
        return self.scaled(splits, own_moments(splits.train))

    def parse(self, new: Allocate) -> Parsed:
        train = self._fetch(self.train_split)
        return self.parsed(train, None if self.test_split is None else self._fetch(self.test_split))

    def parsed(self, train: Any, test: Any | None) -> Parsed:
        """The set in two `datasets.Dataset`, or in one of which a share is held out."""
        labels, classes = self._labels([train] if test is None else [train, test])
        data = [train, test]
        if test is None:
            rows = stratified(labels[0], 0.2, np.random.default_rng(0), self.dataset)
            data = [train.select(part) for part in rows]
            labels = [labels[0][part] for part in rows]
        x, words = self._tokens(data) if self.text is not None else ([self._pixels(part) for part in data], ())
        parts = [Part(samples, ids) for samples, ids in zip(x, labels, strict=True)]
        notes = []
        for part, name in zip(parts if self.text is not None else (), ("train", "test"), strict=False):
            notes += token_notes(part.x, f"hf {self.dataset} ({name})")
        return Parsed(
            f"hf {self.dataset}",
            parts[0],
            parts[1],
            classes,
            tokens=self.text is not None,
            words=words,
            notes=tuple(notes),
        )

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
            there = f"it has {', '.join(data.column_names)}: say which as image or text, and label"
            raise DataError(f"source hf: {self.dataset} has no column '{name}'; {there}")
        return data[name]

    def _labels(self, data: list[Any]) -> tuple[list[np.ndarray], tuple[str, ...]]:
        """Class ids of each part and the class names: those that the set states, else its training labels."""
        columns = [list(self._column(part, self.label)) for part in data]
        wrong = next((v for values in columns for v in values if not isinstance(v, int | str)), 0)
        if not isinstance(wrong, int | str):
            raise DataError(
                f"source hf: {self.dataset} ({self.label}): {wrong!r:.60} is no label; need integers or words"
            )
        names = getattr(data[0].features[self.label], "names", None)
        if names is not None:
            return [np.array(values, np.int64) for values in columns], tuple(map(str, names))
        origins = [f"source hf: {self.dataset} ({part}: {self.label})" for part in ("train", "test")]
        return named_ids(columns, origins)

    def _pixels(self, data: Any) -> np.ndarray:
        out = np.empty((len(data), self.channels, self.size, self.size), np.uint8)
        for row, picture in enumerate(self._column(data, self.image)):
            if not hasattr(picture, "convert"):
                kind = type(picture).__name__
                raise DataError(
                    f"source hf: {self.dataset} ({self.image}): row {row} is a {kind}; need pictures, or text="
                )
            pixels = np.asarray(picture.convert("L" if self.channels == 1 else "RGB"))
            shaped = pixels[None, None] if self.channels == 1 else pixels.transpose(2, 0, 1)[None]
            out[row] = resized(shaped, self.size, self.channels)[0]
        return out

    def _tokens(self, data: list[Any]) -> tuple[list[np.ndarray], tuple[str, ...]]:
        texts = [list(self._column(part, str(self.text))) for part in data]
        wrong = next((row for part in texts for row, text in enumerate(part) if not isinstance(text, str)), None)
        if wrong is not None:
            raise DataError(f"source hf: {self.dataset} ({self.text}): row {wrong} is no text; need a column of texts")
        if self.tokens is None:
            refuse_unspaced(texts[0], f"source hf: {self.dataset} ({self.text})")
        ids_of = vocabulary(texts[0], self.vocabulary, self.tokens)
        return [encode(part, ids_of, self.length, self.tokens) for part in texts], tuple(ids_of)


def from_huggingface(data: Any, **keys: Any) -> Splits:
    """Splits from a `datasets.Dataset`, or from a `DatasetDict` with a split `train` and, if there is one, `test`.

    `keys` are those of the source `hf` but for where data come from: `image` or `text`, `label`, `train_split`,
    `test_split`, `size`, `channels`, `length`, ... Without a test split 20 % of each class are held out. Raises
    `DataError` for columns and labels that do not fit.
    """
    split = hasattr(data, "keys")
    keys = {"test_split": "test" if split and "test" in data else None, "dataset": "data", **keys}
    made = configured(HuggingFace, **keys)
    wanted = [name for name in (made.train_split, made.test_split) if name is not None]
    missing = [name for name in wanted if name not in data] if split else []
    if missing or (not split and made.test_split is not None):
        there = f"its splits are {', '.join(data)}" if split else "a Dataset has no splits"
        raise DataError(f"from_huggingface: no split '{(missing or wanted[1:])[0]}'; {there}")
    parts = [data[name] for name in wanted] if split else [data]
    if not all(hasattr(part, "select") for part in parts):
        raise DataError("from_huggingface: streamed data have no length; load them with streaming=False")
    splits = validated(made.parsed(parts[0], parts[1] if len(parts) > 1 else None))
    return made.scaled(splits, own_moments(splits.train))
