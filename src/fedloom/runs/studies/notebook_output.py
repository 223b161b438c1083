"""One output of a notebook cell that is replaced in place, so that the saved notebook has its last state only.

`rich.live` needs ipywidgets in a notebook, and widgets are no part of a saved notebook.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType

from fedloom.core.console import recorded


class NotebookOutput:
    """The output of a cell that `show` replaces."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, renderables: Sequence[RenderableType]) -> None:
        """Put renderables into the output, in place of those before."""
        from IPython.display import display

        bundle = recorded(lambda console: console.print(Group(*renderables)))
        if self._handle is None:
            self._handle = display(bundle, raw=True, display_id=True)
        else:
            self._handle.update(bundle, raw=True)
