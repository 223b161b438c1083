"""Check words of a categorical column against the vocabulary that a model learns from."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from fedloom.core.errors import DataError
from fedloom.data.near_twins import folded

_ALL_UNKNOWN = 0.9  # share of rows: another spelling rather than new words
_FEW_ROWS = 20  # fewer may well hold nothing but new words


def unknown_cells(counts: Mapping[str, int], vocabulary: Collection[str]) -> int:
    """Count the cells with words outside the vocabulary, which are 0 in all of the column's features."""
    words = set(vocabulary)
    return sum(count for word, count in counts.items() if word not in words)


def refuse_other_spelling(counts: Mapping[str, int], vocabulary: Collection[str], origin: str) -> None:
    """Raise `DataError` if a word is another spelling of a known word, or if hardly any cell holds a known word.

    Args:
        counts: number of rows by word.
        vocabulary: the known words.
        origin: name of the column in messages.
    """
    words = set(vocabulary)
    absent = {word: count for word, count in counts.items() if word not in words}
    spellings = {folded(word): word for word in vocabulary} if absent else {}
    for word, count in absent.items():
        twin = spellings.get(folded(word))
        if twin is not None:
            raise DataError(f"{origin} holds '{word[:40]}' in {count:,} rows, known as '{twin[:40]}'; write it so")
    total, rows = sum(absent.values()), sum(counts.values())
    if rows >= _FEW_ROWS and total >= _ALL_UNKNOWN * rows:
        example = next(iter(absent))[:40]
        raise DataError(
            f"{origin} holds unknown words in {total:,} of {rows:,} rows, such as '{example}'; write them as the known "
            f"ones: {', '.join(vocabulary)[:200]}"
        )
