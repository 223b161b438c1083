"""Pieces of a page, each made by a jinja2 macro of `templates/`: a `str` is text and is escaped, `Markup` is HTML.

The macros of `elements.html` and `cells.html` say what their arguments are."""

import base64
import hashlib
from collections.abc import Callable, Collection, Sequence
from functools import cache, partial
from importlib.resources import files
from typing import TypeAlias

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from fedloom._version import __version__
from fedloom.results.data_table import Cell, DataTable

Piece: TypeAlias = Callable[..., Markup]


def render_macro(template: str, macro: str, *arguments: object, **keys: object) -> Markup:
    """Call a macro of a template file. Raises `jinja2.UndefinedError` for a value that is missing."""
    rendered: Markup = getattr(environment().get_template(template).module, macro)(*arguments, **keys)
    return rendered


def render_page(template: str, **values: object) -> str:
    """Render a page of `templates` with its variables. Raises `jinja2.UndefinedError` for one that is missing."""
    script = "".join(map(asset, ("tables.js", "charts.js", "matrices.js", "page.js")))
    assets = {"style": Markup(asset("style.css")), "script": Markup(script), "version": __version__}
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return environment().get_template(template).render(**values, **assets, script_hash=digest)


def asset(name: str) -> str:
    """Return the text of a file of the package's folder `assets`, which a page embeds."""
    return (files("fedloom.results.report") / "assets" / name).read_text(encoding="utf-8")


@cache
def environment(package: str = "fedloom.results.report") -> Environment:
    """Return what renders the templates of a package, values escaped for HTML."""
    templates = files(package) / "templates"
    return Environment(
        loader=FunctionLoader(lambda name: (templates / name).read_text(encoding="utf-8")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


_element = partial(partial, render_macro, "elements.html")
section: Piece = _element("section")
bullets: Piece = _element("bullets")
chart: Piece = _element("chart")
key: Piece = _element("key")
shared_legend: Piece = _element("shared_legend")
facts: Piece = _element("facts")
details: Piece = _element("details")
fold: Piece = _element("fold")
client_confusion: Piece = _element("client_confusion")
choices: Piece = _element("choices")
paragraph: Piece = _element("paragraph")
grid: Piece = _element("grid")
chart_beside_skew: Piece = _element("chart_beside_skew")
svg: Piece = _element("svg")

_cell_of = partial(partial, render_macro, "cells.html")
name_cell: Piece = _cell_of("name")
words_cell: Piece = _cell_of("words")
code_cell: Piece = _cell_of("code")
accuracy_cell: Piece = _cell_of("accuracy")

_SAVED = {
    "csv": ("text/csv", "CSV", "csv"),
    "md": ("text/markdown", "Markdown", "markdown"),
    "tex": ("text/x-tex", "LaTeX", "latex"),
}
_LONG = 40  # characters of a cell that is shown on one line


def table(
    shown: DataTable,
    saved: Callable[[str], DataTable] | None = None,
    ends: Collection[str] = _SAVED,
    foot: Sequence[Sequence[Cell]] = (),
) -> Markup:
    """Render a table with its caption and the links that save it, or the one that `saved` makes for a format.

    `ends` are the ends of the names of saved files; the rows `foot` stay below the others."""
    downloads = []
    for end in ends:
        media_type, label, format = _SAVED[end]
        text = (shown if saved is None else saved(format)).formatted(format)
        downloads.append((f"{shown.name}.{end}", media_type, label, text))
    # Keys of a config, which have dots, keep their letters.
    headings = [name if name == "n" or "." in name else f"{name[:1].upper()}{name[1:]}" for name in shown.columns]
    numeric = {heading for heading, number in zip(headings, shown.numeric, strict=True) if number}
    rows = [[_cell(cell, k < shown.heads) for k, cell in enumerate(row)] for row in shown.rows]
    arguments = shown.caption, headings, numeric, rows, downloads, shown.heads, foot
    rendered = render_macro("table.html", "table", f"{shown.name}-note", *arguments)
    return fold(f"All {len(rows)} rows", [rendered]) if shown.folds else rendered


def _cell(cell: Cell, names_row: bool) -> Cell:
    text, number = (cell, None) if isinstance(cell, str) else cell
    if not isinstance(text, Markup):
        text = name_cell(text) if names_row else words_cell(text) if len(text) > _LONG else text
    return text if isinstance(cell, str) else (text, number)
