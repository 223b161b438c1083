"""Text to token ids, with a vocabulary of the training texts only."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from pydantic import Field

from fedloom.core.errors import DataError
from fedloom.data.sources.cached import Allocate, CachedSource, Parsed, Part

PADDING, UNKNOWN = 0, 1
_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*")
_BREAK = re.compile(r"<br\s*/?>", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Texts:
    """Labelled texts; `labels` [n] int64."""

    texts: list[str]
    labels: np.ndarray


def utf8(raw: bytes, label: str) -> str:
    """The text in `raw`. Raises `DataError` with the place of the first byte that is not UTF-8."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{label}: byte {error.start} (0x{raw[error.start]:02x}) is not UTF-8; convert the file to UTF-8"
        ) from None


def words(text: str) -> list[str]:
    """Lower-case words: letters and digits of any script, with inner apostrophes; HTML line breaks are spaces."""
    found: list[str] = _WORD.findall(_BREAK.sub(" ", text).lower())
    return found


def vocabulary(texts: Sequence[str], size: int) -> dict[str, int]:
    """Word -> id for the `size - 2` most frequent words, ids from 2; equally frequent ones in alphabetical order."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(words(text))
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return {word: number for number, (word, _) in enumerate(ranked[: size - 2], 2)}


def encode(texts: Sequence[str], known: dict[str, int], length: int) -> np.ndarray:
    """Token ids [n, length] int64: the first `length` words, unknown ones as 1, padded behind with 0."""
    ids = np.full((len(texts), length), PADDING, np.int64)
    for row, text in enumerate(texts):
        found = [known.get(word, UNKNOWN) for word in words(text)[:length]]
        ids[row, : len(found)] = found
    return ids


class TextSource(CachedSource):
    """Base of text sources. `vocabulary`: number of token ids, with 0 for padding and 1 for unknown words, the rest by
    frequency in the training texts; `length`: tokens per text, cut or padded at the end.
    """

    model: ClassVar[str] = "bilstm"

    vocabulary: int = Field(10_000, ge=3)
    length: int = Field(200, ge=1)

    def read_texts(self) -> tuple[str, Texts, Texts, tuple[str, ...]]:
        """Origin for messages, training texts, test texts, classes."""
        raise TypeError(f"{type(self).__name__} defines no read_texts()")

    def parse(self, new: Allocate) -> Parsed:
        origin, train, test, classes = self.read_texts()
        known = vocabulary(train.texts, self.vocabulary)
        parts = [Part(encode(part.texts, known, self.length), part.labels) for part in (train, test)]
        return Parsed(origin, parts[0], parts[1], classes, tokens=True, words=tuple(known))
