"""Pieces of a page, each made by a jinja2 macro of `templates/`: a `str` is text and is escaped, `Markup` is HTML."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from fedloom.core.files import json_text
from fedloom.results.page_sections import Cell


def render_macro(template: str, macro: str, *arguments: object) -> Markup:
    """Call a macro of a template file with its arguments in order.

    Raises `jinja2.UndefinedError` for a value that is missing.
    """
    rendered: Markup = getattr(_environment().get_template(template).module, macro)(*arguments)
    return rendered


def render_page(**values: object) -> str:
    """Render `templates/page.html` with its variables. Raises `jinja2.UndefinedError` for one that is missing."""
    return _environment().get_template("page.html").render(values)


def asset(name: str) -> str:
    """Return the text of a file of the package's folder `assets`, which a page embeds."""
    return (files("fedloom.results.report") / "assets" / name).read_text(encoding="utf-8")


def _template_source(name: str) -> str:
    return (files("fedloom.results.report") / "templates" / name).read_text(encoding="utf-8")


@cache
def _environment() -> Environment:
    return Environment(
        loader=FunctionLoader(_template_source),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def section(title: str, anchor: str, blocks: Sequence[Markup], css: str = "") -> Markup:
    """Render a section: `title` as a heading with the id `anchor`, and `blocks` below it."""
    return render_macro("elements.html", "section", title, anchor, blocks, css)


def bullets(texts: Iterable[str], css: str = "") -> Markup:
    """Render a list."""
    return render_macro("elements.html", "bullets", texts, css)


def chart(
    svgs: Sequence[Markup], title: str, caption: str = "", key: Markup | None = None, *, wide: bool = False
) -> Markup:
    """Render a figure under its title, caption and key.

    svgs: drawings side by side. wide: across all columns of a grid.
    """
    return render_macro("elements.html", "chart", Markup("\n").join(svgs), title, caption, key or "", wide)


def key(entries: Iterable[tuple[str, str, int]], css: str = "") -> Markup:
    """Render a legend.

    entries: the custom property of a colour, its label, and the number of its dash; -1 for a dot.
    """
    return render_macro("elements.html", "key", entries, css)


def shared_legend(title: str, caption: str, entries: Iterable[tuple[str, str, int]]) -> Markup:
    """Render title, caption and legend of charts that follow.

    title: heading of the charts. caption: text below it. entries: as of `key`.
    """
    return render_macro("elements.html", "shared_legend", title, caption, entries)


def facts(pairs: Iterable[tuple[str, str]]) -> Markup:
    """Render names with their values."""
    return render_macro("elements.html", "facts", pairs)


_ENLARGED = 1.25  # times its natural width, which a drawing takes at most


@dataclass(frozen=True, slots=True)
class Download:
    """A text that a link of the page saves as a file."""

    file_name: str
    media_type: str
    label: str
    text: str


_KINDS = {"csv": ("text/csv", "CSV"), "md": ("text/markdown", "Markdown"), "tex": ("text/x-tex", "LaTeX")}


def table(
    anchor: str,
    caption: str,
    columns: Sequence[str],
    numeric: Set[str],
    rows: Sequence[Sequence[Cell]],
    saved: Mapping[str, str],
    heads: int = 1,
    foot: Sequence[Sequence[Cell]] = (),
) -> Markup:
    """Render a table with its caption and the links that save it.

    numeric: columns of numbers, whose cells have the number to sort by. saved: the table as text, by the ends of file
    names (csv, md, tex). heads: how many cells, from the first on, name a row. foot: rows that stay below the others.
    """
    name = anchor.removesuffix("-note")
    downloads = [Download(f"{name}.{end}", *_KINDS[end], text) for end, text in saved.items()]
    return render_macro("table.html", "table", anchor, caption, columns, numeric, rows, downloads, heads, foot)


def details(summary: str, text: str) -> Markup:
    """Render preformatted text that opens on a click."""
    return render_macro("elements.html", "details", summary, text)


def fold(summary: str, blocks: Sequence[Markup], css: str = "") -> Markup:
    """Render `blocks`, folded under the line `summary`; a click opens them."""
    return render_macro("elements.html", "fold", summary, blocks, css)


def client_confusion(name: str, title: str, caption: str, data: Mapping[str, object]) -> Markup:
    """Render the confusion matrix of one client, which a field chooses and the page's script draws.

    name: prefix of the files that it is saved as. data: the matrices, as JSON values.
    """
    return render_macro("elements.html", "client_confusion", name, title, caption, json_text(data))


def choices(label: str, folds: Sequence[Markup]) -> Markup:
    """Render folds and a field that selects the one to show; without a script each opens on a click.

    folds: the folds, as `fold` gives them.
    """
    return render_macro("elements.html", "choices", label, folds)


def paragraph(text: str, css: str = "") -> Markup:
    """Render a paragraph."""
    return render_macro("elements.html", "paragraph", text, css)


def grid(charts: Sequence[Markup]) -> Markup:
    """Render charts in columns."""
    return render_macro("elements.html", "grid", charts)


def chart_beside_facts(picture: Markup, title: str, pairs: Iterable[tuple[str, str]]) -> Markup:
    """Render `picture`, a chart, next to a list of names and values, `pairs`, under `title`."""
    return render_macro("elements.html", "chart_beside_facts", picture, title, pairs)


def svg(name: str, view_box: str, title: str, description: str, content: Markup, css: str = "") -> Markup:
    """Render a drawing.

    name: prefix of its ids, and of the files it is saved as. view_box: its four numbers. title: short text for people
    who do not see it. description: longer text for people who do not see it.
    """
    largest = round(_ENLARGED * float(view_box.split()[2]))
    return render_macro("elements.html", "svg", name, css, view_box, largest, title, description, content)


def name_cell(label: str, tone: str = "", dash: int = -1) -> Markup:
    """Render the cell that names a row.

    tone: the custom property of its colour. dash: the number of its dash; -1 for a dot.
    """
    return render_macro("cells.html", "name", label, tone, dash)


def words_cell(text: str) -> Markup:
    """Render a cell of long text, which may break into lines."""
    return render_macro("cells.html", "words", text)


def code_cell(text: str) -> Markup:
    """Render a cell of a path or a hash."""
    return render_macro("cells.html", "code", text)


def accuracy_cell(mean: str, std: str) -> Markup:
    """Render a mean with its sample standard deviation, which may be empty."""
    return render_macro("cells.html", "accuracy", mean, std)
