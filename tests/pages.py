"""Tables of the report page, read as a program reads them."""

import re
from html import unescape


def cells_of(page: str, title: str) -> list[list[str]]:
    """The texts of the cells of the first table in the section of this title."""
    body = page.partition(f">{title}</h2>")[2].partition("<tbody>")[2].partition("</tbody>")[0]
    return [
        [unescape(re.sub(r"<[^>]*>", "", cell)) for cell in re.findall(r"<t[hd].*?</t[hd]>", row)]
        for row in re.findall(r"<tr>.*?</tr>", body)
    ]
