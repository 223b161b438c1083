"""A reader who opens the site as a file can search it, and reading it fetches nothing."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest


def test_no_script_style_or_font_comes_from_a_network(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        fetched = re.findall(r"<(?:script|img|iframe)[^>]* src=\"?(\S+)", text)
        fetched += re.findall(r"<link[^>]* rel=\"?(?:stylesheet|preconnect|icon)\"?[^>]* href=\"?([^\s>]+)", text)
        assert [address for address in fetched if "//" in address] == []


@pytest.mark.browser
@pytest.mark.parametrize(("words", "page"), [("fedsc", "fedsc.html"), ("RPCL", "fedsc.html"), ("zebra", None)])
def test_search_finds_pages_of_a_site_that_is_opened_as_a_file(
    read_page: Callable[..., str], words: str, page: str | None
) -> None:
    opened = read_page("index.html", query=f"?q={words}")
    links = re.findall(r'<a href="[^"]*?([\w-]+\.html)[^"]*" class="md-search-result__link"', opened)
    assert page in links if page else not links
    assert 'class="md-search-result__meta">Initializing' not in opened
