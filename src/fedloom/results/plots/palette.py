"""The colours of methods and the dashes that tell apart methods of one colour: the same in figures and reports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

TONES = 8  # colours for groups: c0 (the baseline's grey) to c7
LIGHT = {
    "ink": "#171a1f",
    "muted": "#5c6470",
    "line": "#e3e6ea",
    "c0": "#6b6e7d",
    "c1": "#144498",
    "c2": "#cd4e0e",
    "c3": "#10805a",
    "c4": "#78266b",
    "c5": "#784f14",
    "c6": "#03625c",
    "c7": "#9e0d3e",
}  # as the report's light theme has them
_DASHES: tuple[Any, ...] = ("solid", (0, (5, 2.5)), (0, (1.5, 2)))  # when colours come a second and third time


def tone_name(tone: int) -> str:
    """Return the name of the colour of a tone; the baseline's comes only once, the others repeat."""
    return f"c{tone if tone < TONES else 1 + (tone - 1) % (TONES - 1)}"


def dash(tone: int) -> Any:
    """Return the line style of a tone: solid until the colours come a second time."""
    return _DASHES[dash_number(tone)]


def dash_number(tone: int) -> int:
    """Return which dash a tone has: 0 for solid, 1 and 2 when the colours come a second and a third time."""
    return max(tone - 1, 0) // (TONES - 1) % len(_DASHES)


def tones_of(methods: Sequence[str], baseline: str | None) -> dict[str, int]:
    """Return the tone of each method: 0 for the baseline, 1, 2, ... for the others in order of appearance."""
    others = [method for method in dict.fromkeys(methods) if method != baseline]
    tones = {method: number for number, method in enumerate(others, start=1)}
    return tones if baseline is None else {baseline: 0, **tones}
