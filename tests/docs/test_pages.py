"""What the pages promise of themselves: sentences are short."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LONGEST = 45  # words in a sentence
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def sentences(text: str) -> list[str]:
    """The sentences of a page, without code, equations, tables and the words of lists' neighbours."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"\$\$.*?\$\$", "\n\n", text, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->", "\n\n", text, flags=re.DOTALL)
    text = re.sub(r"^(\||#|:::|---).*$", "\n", text, flags=re.MULTILINE)
    text = re.sub(r"^\s*([-*]|\d+\.) ", "\n", text, flags=re.MULTILINE)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    pieces = (piece for block in re.split(r"\n\s*\n", text) for piece in re.split(r"(?<=[.!?])[*_)]*\s+", block))
    return [" ".join(piece.split()) for piece in pieces if piece.strip()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_no_sentence_is_a_riddle(page):
    long = [words for words in sentences(page.read_text(encoding="utf-8")) if len(words.split()) > LONGEST]
    assert not long
