"""Where tables and progress are printed: a console on which no foreign text acts."""

from __future__ import annotations

import os
from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from fedloom.core.errors import printable

_FILE_COLUMNS = 10_000  # columns of what is no terminal: a file or a pipe has no edge


class PlainConsole(Console):
    """A console that escapes control characters in names of classes, files and columns."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render as `Console`, with control characters of texts escaped."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else printable(text, keep_lines=True), style, control)


def console_of(as_json: bool) -> Console:
    """Where tables and progress go: stderr if stdout is reserved for JSON."""
    console = PlainConsole(stderr=as_json, highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _FILE_COLUMNS
    return console
