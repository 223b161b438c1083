"""Pages and sources are plain English: turns of phrase that no native speaker writes are rare.

A mark is a hint, not an error: rewrite the sentence, do not swap the word.
"""

import re
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[2]
MOST = 8  # marks in 10,000 words
MARKS = [
    r", too[,.;:)]",
    r"\bof which\b",
    r"\b[Ww]hat (?:a|the|is|of|no|has|they|it|may|runs|speaks|stands|travels)\b",
    r"\bstands? (?:in|on|beside|below|after|before|alone)\b",
    r"\bbeside\b",
    r"\bother .{0,25}than\b",
    r"\balike\b",
    r"told apart",
    r"by (?:itself|hand)",
    r"\b(?:go|goes|went) on\b",
    r"\b(?:anew|afresh)\b",
    r"\b(?:nobody|somebody)\b",
    r"\bbut for\b",
    r"\bso that\b",
    r"from where it",
    r"as those of",
    r"of (?:its|their|one's|your|our) own|\bown one\b",
]
PAGES = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"]
PAGES += ["docs/*.md", "docs/how-to/*.md", "docs/deployment/*.md", "docs/decisions/*.md", "docs/api/*.md"]
PAGES += [
    "docs/methods/*.md",
    "docs/theory/*.md",
    "docs/tutorials/*.md",
    "docs/reproduction/*.md",
    "benchmarks/README.md",
]


def test_marks_are_rare_in_pages() -> None:
    _assert_marks_are_rare([path for pattern in PAGES for path in ROOT.glob(pattern)])


def test_marks_are_rare_in_docstrings_and_messages() -> None:
    _assert_marks_are_rare(ROOT.glob("src/**/*.py"))


def _assert_marks_are_rare(paths: Iterable[Path]) -> None:
    text = "\n".join(path.read_text(encoding="utf-8") for path in paths)
    marks = [line for line in text.splitlines() for mark in MARKS for _ in re.findall(mark, line)]
    assert len(marks) <= MOST * len(text.split()) / 10_000, "\n".join(marks)
