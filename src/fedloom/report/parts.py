"""Parts that somebody else wrote, as sections of the page."""

from __future__ import annotations

from html import escape

from fedloom.report.markup import heading, table
from fedloom.results.formats import as_csv, text_table
from fedloom.results.page_sections import Cell, PageSection, SectionTable

_LONG = 40  # characters of a cell that is shown on one line


def part_html(part: PageSection) -> str:
    """The section of a part."""
    inner = "\n".join([heading(part.title, part.name), *(_block(part, block) for block in part.blocks)])
    return f'<section class="part" aria-labelledby="{part.name}">\n{inner}\n</section>'


def _block(part: PageSection, block: str | SectionTable | list[str]) -> str:
    if isinstance(block, str):
        return f"<p>{escape(block)}</p>"
    if isinstance(block, list):
        return f"<ul>{''.join(f'<li>{escape(text)}</li>' for text in block)}</ul>" if block else ""
    names = [f"{name[:1].upper()}{name[1:]}" for name in block.columns]
    numeric = {name for name, number in zip(names, block.numeric, strict=True) if number}
    plain = as_csv([dict(zip(block.columns, row, strict=True)) for row in block.texts])
    formats = {"md": "markdown", "tex": "latex"}
    saved = {end: text_table(block.texts, block.columns, block.numeric, form) for end, form in formats.items()}
    rows = [[_cell(cell, k < block.heads) for k, cell in enumerate(row)] for row in block.rows]
    anchor = f"{part.name}-{block.name}-note"
    return table(anchor, block.caption, names, numeric, rows, {"csv": plain} | saved, block.heads)


def _cell(cell: Cell, names: bool) -> Cell:
    text, number = (cell, None) if isinstance(cell, str) else cell
    html = escape(text)
    if names or len(text) > _LONG:
        html = f'<span class="{"name" if names else "words"}">{html}</span>'
    return html if isinstance(cell, str) else (html, number)
