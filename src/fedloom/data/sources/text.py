"""Text to token ids, with a vocabulary of the training texts only."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from fedloom.core.errors import DataError
from fedloom.data.sources.cached import Allocator, CachedSource, ParsedSamples, ParsedSplits

PADDING, UNKNOWN = 0, 1
Tokens = Literal["words", "characters"]
"""How a text is split."""

_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*")
_BREAK = re.compile(r"<br\s*/?>", re.IGNORECASE)
_UNSPACED = re.compile(  # letters of scripts that put no spaces between words: Thai to Myanmar, Khmer, kana, Han
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)
_LONG, _LONG_UNSPACED = 25, 3  # letters of a mean token that is no word, and of one in a script without spaces
_LOOKED_AT = 1000  # texts
_MANY_UNKNOWN = 0.3
_PACKED = {b"\x1f\x8b": "gzip-compressed", b"PK\x03\x04": "a zip archive", b"BZh": "bzip2-compressed"}


@dataclass(frozen=True, slots=True)
class Texts:
    """Labelled texts; `labels` [n] int64."""

    texts: list[str]
    labels: np.ndarray


def utf8(raw: bytes, label: str) -> str:
    """The text in `raw`, without a byte order mark. Raises `DataError` for packed files and NUL bytes, and with the
    place of the first byte that is not UTF-8.
    """
    packed = next((kind for magic, kind in _PACKED.items() if raw.startswith(magic)), None)
    if packed is not None:
        raise DataError(f"{label}: is {packed}; unpack it first")
    if b"\x00" in raw:
        raise DataError(f"{label}: byte {raw.index(0)} is NUL: no text, or UTF-16; convert the file to UTF-8")
    try:
        return raw.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{label}: byte {error.start} (0x{raw[error.start]:02x}) is not UTF-8; convert the file to UTF-8"
        ) from None


def words(text: str) -> list[str]:
    """Lower-case words: letters and digits of any script, with inner apostrophes; HTML line breaks are spaces."""
    tokens: list[str] = _WORD.findall(_BREAK.sub(" ", text).lower())
    return tokens


def characters(text: str) -> list[str]:
    """Lower-case characters of any script but spaces; HTML line breaks are spaces."""
    return [letter for letter in _BREAK.sub(" ", text).lower() if not letter.isspace()]


def splitter(tokens: Tokens | None) -> Callable[[str], list[str]]:
    """The function that splits a text."""
    return characters if tokens == "characters" else words


def infer_tokens(vocabulary: Sequence[str]) -> Tokens:
    """How texts were split whose vocabulary is this: all of its tokens are single characters, or some are words."""
    return "characters" if vocabulary and all(len(token) == 1 for token in vocabulary) else "words"


def vocabulary(texts: Sequence[str], size: int, tokens: Tokens | None = None) -> dict[str, int]:
    """Return token -> id for the most frequent tokens, ids from 2; equally frequent ones in alphabetical order.

    Args:
        texts: the training texts.
        size: ids in all: 0 and 1, and `size - 2` tokens.
        tokens: how texts are split into tokens; None takes the default.
    """
    split, counts = splitter(tokens), Counter[str]()
    for text in texts:
        counts.update(split(text))
    ranked = sorted(counts.items(), key=lambda word_count: (-word_count[1], word_count[0]))
    return {token: number for number, (token, _) in enumerate(ranked[: size - 2], 2)}


def encode(texts: Sequence[str], vocabulary: dict[str, int], length: int, tokens: Tokens | None = None) -> np.ndarray:
    """Token ids [n, length] int64: the first `length` tokens, unknown ones as 1, padded behind with 0."""
    ids, split = np.full((len(texts), length), PADDING, np.int64), splitter(tokens)
    for row, text in enumerate(texts):
        held = [vocabulary.get(token, UNKNOWN) for token in split(text)[:length]]
        ids[row, : len(held)] = held
    return ids


def refuse_unspaced(texts: Sequence[str], origin: str) -> None:
    """Raises `DataError` for texts without spaces between words, of which nearly every token would be a sentence."""
    step = max(1, len(texts) // _LOOKED_AT)
    sample = texts[::step]
    held = [token for text in sample for token in words(text)]
    letters = sum(map(len, held))
    if not held or letters < 100:
        return
    mean = letters / len(held)
    unspaced = sum(len(_UNSPACED.findall(token)) for token in held) > letters / 2
    if mean > (_LONG_UNSPACED if unspaced else _LONG):
        longest = max(held, key=len)
        raise DataError(
            f"{origin}: texts have no spaces between words: a token has {mean:.0f} letters on average, such as "
            f"'{longest[:30]}'; say `tokens: characters`, or `tokens: words` if they are meant so"
        )


def token_notes(ids: np.ndarray, origin: str) -> list[str]:
    """Return sentences on texts that hold no token, and on many unknown tokens; nothing if all is well.

    Args:
        ids: token ids [n, length]; 0 pads, 1 is unknown.
        origin: name of the texts in messages.
    """
    notes, empty = [], int((ids == PADDING).all(1).sum())
    total, unknown = int((ids != PADDING).sum()), int((ids == UNKNOWN).sum())
    if empty:
        notes.append(f"{origin}: {empty:,} of {len(ids):,} texts hold no token")
    if unknown > _MANY_UNKNOWN * total:
        whole = int(((ids == UNKNOWN) | (ids == PADDING)).all(1).sum()) - empty
        notes.append(
            f"{origin}: {100 * unknown / total:.0f} % of {total:,} tokens are not in the training texts' vocabulary; "
            f"all tokens of {whole:,} of {len(ids):,} texts are unknown"
        )
    return notes


class TextSource(CachedSource):
    """Base of text sources."""

    model: ClassVar[str] = "bilstm"
    keys_added_later: ClassVar[frozenset[str]] = frozenset({"tokens"})

    vocabulary: int = Field(
        10_000,
        ge=3,
        description="Number of token ids, with 0 for padding and 1 for unknown tokens; the others are the most "
        "frequent tokens of the training texts.",
    )
    length: int = Field(
        200,
        ge=1,
        description="Number of tokens of a text; longer texts are cut and shorter ones padded at the end.",
    )
    tokens: Tokens | None = Field(
        None,
        description="Unit that texts are split into: `words`, or `characters` for texts without spaces between "
        "words (Chinese, Thai, DNA). Null splits into words, and refuses texts without spaces.",
    )

    def read_texts(self) -> tuple[str, Texts, Texts, tuple[str, ...]]:
        """Origin for messages, training texts, test texts, classes."""
        raise TypeError(f"{type(self).__name__} defines no read_texts()")

    def parse(self, allocate: Allocator) -> ParsedSplits:
        origin, train, test, classes = self.read_texts()
        if self.tokens is None:
            refuse_unspaced(train.texts, origin)
        ids_of = vocabulary(train.texts, self.vocabulary, self.tokens)
        ids = [encode(part.texts, ids_of, self.length, self.tokens) for part in (train, test)]
        notes = token_notes(ids[0], f"{origin} (train)") + token_notes(ids[1], f"{origin} (test)")
        parts = [ParsedSamples(x, part.labels) for x, part in zip(ids, (train, test), strict=True)]
        return ParsedSplits(origin, parts[0], parts[1], classes, tokens=True, words=tuple(ids_of), notes=tuple(notes))
