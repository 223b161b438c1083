"""One output of a notebook cell that is replaced in place, so that the saved notebook has its last state only.

`rich.live` needs ipywidgets in a notebook, and widgets are no part of a saved notebook.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType

from fedloom.core.console import PlainConsole

_COLUMNS = 90
_STYLE = "white-space:pre;overflow-x:auto;line-height:normal;font-family:Menlo,Consolas,'DejaVu Sans Mono',monospace"
_HTML = f'<pre style="{_STYLE}">{{code}}</pre>'


def notebook_bundle(renderables: Sequence[RenderableType]) -> dict[str, str]:
    """Return renderables as HTML and as plain text, by MIME type."""
    console = PlainConsole(
        file=io.StringIO(),
        record=True,
        width=_COLUMNS,
        force_jupyter=False,
        force_terminal=True,
        color_system="truecolor",
        highlight=False,
    )
    console.print(Group(*renderables))
    markup = console.export_html(code_format=_HTML, inline_styles=True, clear=False)
    return {"text/html": markup, "text/plain": console.export_text().rstrip()}


class NotebookOutput:
    """The output of a cell that `show` replaces."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, renderables: Sequence[RenderableType]) -> None:
        """Put renderables into the output, in place of those before."""
        from IPython.display import display

        bundle = notebook_bundle(renderables)
        if self._handle is None:
            self._handle = display(bundle, raw=True, display_id=True)
        else:
            self._handle.update(bundle, raw=True)
