"""Render the sections that other packages add to the page."""

from __future__ import annotations

from markupsafe import Markup

from fedloom.results.formats import as_csv, text_table
from fedloom.results.page_sections import Block, Cell, PageSection, SectionPicture
from fedloom.results.report.markup import bullets, fold, name_cell, paragraph, section, table, words_cell
from fedloom.results.report.section_pictures import picture_block

_LONG = 40  # characters of a cell that is shown on one line


def render_section(part: PageSection) -> Markup:
    """Render a section."""
    return section(part.title, part.name, [_block(part, block) for block in part.blocks if block], "part")


def _block(part: PageSection, block: Block) -> Markup:
    if isinstance(block, str):
        return paragraph(block)
    if isinstance(block, SectionPicture):
        return picture_block(part.name, block)
    if isinstance(block, list):
        return bullets(block)
    names = [f"{name[:1].upper()}{name[1:]}" for name in block.columns]
    numeric = {name for name, number in zip(names, block.numeric, strict=True) if number}
    plain = as_csv([dict(zip(block.columns, row, strict=True)) for row in block.texts])
    formats = {"md": "markdown", "tex": "latex"}
    saved = {end: text_table(block.texts, block.columns, block.numeric, form) for end, form in formats.items()}
    rows = [[_cell(cell, k < block.heads) for k, cell in enumerate(row)] for row in block.rows]
    anchor = f"{part.name}-{block.name}-note"
    sheet = table(anchor, block.caption, names, numeric, rows, {"csv": plain} | saved, block.heads)
    return fold(f"All {len(rows)} rows", [sheet]) if block.folds else sheet


def _cell(cell: Cell, names_row: bool) -> Cell:
    text, number = (cell, None) if isinstance(cell, str) else cell
    if names_row:
        text = name_cell(text)
    elif len(text) > _LONG:
        text = words_cell(text)
    return text if isinstance(cell, str) else (text, number)
