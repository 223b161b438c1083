"""Small pieces of HTML. Text goes in as it is and is escaped here; only names ending in `html` are HTML already."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from html import escape
from urllib.parse import quote

from fedloom.results.page_sections import Cell


def heading(text: str, anchor: str) -> str:
    """A section's heading with an id."""
    return f'<h2 id="{anchor}">{escape(text)}</h2>'


def chart(svg_html: str, title: str, caption: str = "", key_html: str = "", *, wide: bool = False) -> str:
    """A figure under its title, caption and key. wide: across all columns of a grid."""
    head = f"<h3>{escape(title)}</h3>" if title else ""
    below = f'<p class="note">{escape(caption)}</p>' if caption else ""
    css = ' class="across"' if wide else ""
    return f"<figure{css}>\n<figcaption>{head}{below}{key_html}</figcaption>\n{svg_html}\n</figure>"


def key(entries: Iterable[tuple[str, str]], css: str = "") -> str:
    """A legend: (colour's custom property, word)."""
    items = "".join(f"<li>{swatch(tone)}{escape(word)}</li>" for tone, word in entries)
    return f'<ul class="key{f" {css}" if css else ""}">{items}</ul>'


def swatch(tone: str) -> str:
    """A dot in a colour's custom property."""
    return f'<i class="swatch" style="--tone:var(--{tone})"></i>'


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """Names with their values."""
    return f"<dl>{''.join(f'<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>' for k, v in pairs)}</dl>"


_KINDS = {"csv": ("CSV", "text/csv"), "md": ("Markdown", "text/markdown"), "tex": ("LaTeX", "text/x-tex")}


def table(
    anchor: str,
    caption: str,
    columns: Sequence[str],
    numeric: Set[str],
    rows_html: Sequence[Sequence[Cell]],
    saved: Mapping[str, str],
    heads: int = 1,
) -> str:
    """A table that scrolls inside its own box, with its caption and links that save it below. `anchor`: its id;
    `numeric`: columns of numbers; `saved`: the same as text, by the ends of file names: csv, md, tex.

    Cells are HTML, those of numbers with the number to sort by. The first `heads` cells of each row name it.
    """
    align = [' class="num"' if column in numeric else "" for column in columns]
    head = "".join(f'<th scope="col"{a}>{escape(c)}</th>' for c, a in zip(columns, align, strict=True))
    body = []
    for row in rows_html:
        named = "".join(f'<th scope="row">{cell}</th>' for cell in row[:heads])
        cells = "".join(_cell(cell, a) for cell, a in zip(row[heads:], align[heads:], strict=True))
        body.append(f"<tr>{named}{cells}</tr>")
    name = anchor.removesuffix("-note")
    links = " ".join(
        f'<a download="{name}.{end}" href="data:{_KINDS[end][1]};charset=utf-8,{quote(text)}">{_KINDS[end][0]}</a>'
        for end, text in saved.items()
    )
    rows = "\n".join(body)
    return f"""<div class="scroll" tabindex="0" role="region" aria-labelledby="{anchor}">
<table class="sorts" aria-labelledby="{anchor}">
<thead><tr>{head}</tr></thead>
<tbody>
{rows}
</tbody>
</table>
</div>
<p class="note"><span id="{anchor}">{escape(caption)}</span> <span class="save">Save as {links}</span></p>"""


def _cell(cell: Cell, attributes: str) -> str:
    if isinstance(cell, str):
        return f"<td{attributes}>{cell}</td>"
    text, number = cell
    value = "" if number is None else f' data-value="{number!r}"'
    return f"<td{attributes}{value}>{text}</td>"


def notes(texts: Iterable[str]) -> str:
    """Remarks that a reader must not miss; nothing where there are none."""
    items = "\n".join(f"<li>{escape(text)}</li>" for text in texts)
    return f'<aside class="notes" aria-label="Notes">\n<ul>\n{items}\n</ul>\n</aside>' if items else ""


def details(summary: str, text: str) -> str:
    """Preformatted text that opens on a click."""
    return f"<details><summary>{escape(summary)}</summary>\n<pre><code>{escape(text)}</code></pre></details>"
