"""All reproduction pages by file name."""

from __future__ import annotations

from pathlib import Path

from reproduction_page.change_page import change_page
from reproduction_page.committed import read_hours, read_results
from reproduction_page.index_page import index_page
from reproduction_page.paper_page import paper_page


def pages(folder: Path) -> dict[str, str]:
    """Markdown by file name: `index.md`, what changed in the verdicts, and one page for each paper.

    folder: the committed measurements. `planned.json` there has the core hours of what was not run, as `fedloom
    reproduce --list --json` prints them. `foreseen.txt` says how the core minutes of what ran were estimated.

    Raises `OSError` for a file that cannot be read, `ValueError` for one with other columns.
    """
    papers, hours = read_results(folder), read_hours(folder / "planned.json")
    texts = {f"{paper.name}.md": paper_page(paper, hours) for paper in papers}
    return {"index.md": index_page(papers, folder / "foreseen.txt"), "verdicts.md": change_page(papers)} | texts
