"""Tables between marks on a page: `<!-- table NAME -->` above, `<!-- end NAME -->` below."""

from __future__ import annotations

from collections.abc import Mapping


def with_tables(page: str, tables: Mapping[str, str]) -> str:
    """Return `page` with every table between its marks. Raises `ValueError` where a page lacks the marks of one."""
    for name, table in tables.items():
        begin, end = f"<!-- table {name} -->\n", f"<!-- end {name} -->"
        before, opening, rest = page.partition(begin)
        _, closing, after = rest.partition(end)
        if not opening or not closing:
            raise ValueError(f"no lines '{begin.strip()}' and '{end}'")
        page = f"{before}{begin}{table}{end}{after}"
    return page
