"""A reader who opens the site as a file can search it, and reading it fetches nothing.

Search weighs titles most. So the words that people type are in the title of the page, or of the section, that answers.
"""

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


def test_the_search_has_a_name_for_screen_readers(site: Path) -> None:
    for page in ("index.html", "methods/fedsc.html"):
        (dialog,) = re.findall(r"<div[^>]*role=\"?dialog[^>]*>", (site / page).read_text(encoding="utf-8"))
        assert 'aria-label="Search"' in dialog or "aria-label=Search" in dialog


DOCS = Path(__file__).parents[2] / "docs"
SUFFIX = re.compile(r"(?:ing|ed|es|s|e)$")  # a rough stem, where the search of the site has a better one
TYPED = {
    "which tutorial": "tutorials/index",
    "table and figure for a paper": "tutorials/paper",
    "table of patients": "tutorials/clinic",
    "lesson classroom": "tutorials/classroom",
    "why averaging fails": "tutorials/classroom",
    "install cpu": "faq how-to/install",
    "windows macos": "faq",
    "add my csv": "faq",
    "which method try": "faq how-to/advise methods/README",
    "cite": "faq how-to/install",
    "what is dirichlet alpha": "faq scenarios",
    "my own pytorch model": "faq how-to/own-model",
    "different networks clients": "faq how-to/own-model",
    "class weights oversampling": "faq",
    "rare classes": "faq how-to/rare-classes",
    "write my own method": "faq how-to/own-method",
    "number of a paper": "faq",
    "best round test data": "faq",
    "same numbers again": "faq",
    "difference between methods real": "faq",
    "method not learn": "faq",
    "metrics by client": "faq",
    "slow speed up": "faq",
    "several gpus": "faq how-to/clusters",
    "memory 1,000 clients": "faq",
    "slurm": "faq how-to/clusters",
    "run killed": "faq",
    "upgrade old run folders": "faq",
    "trained model out": "faq",
    "real hospitals uploads reveal": "faq",
}


def stems(words: str) -> set[str]:
    return {SUFFIX.sub("", word) for word in re.findall(r"[a-z]+|\d[\d,]*", words.lower())}


@pytest.mark.parametrize("typed", TYPED)
def test_the_words_that_people_type_are_in_the_title_of_the_answer(typed: str) -> None:
    shares: dict[str, float] = {}
    for path in DOCS.rglob("*.md"):
        titles = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
        common = [len(stems(typed) & stems(title)) for title in titles]
        shares[path.relative_to(DOCS).with_suffix("").as_posix()] = max(common, default=0)
    best = max(shares.values())
    assert best == len(stems(typed))
    assert {page for page, share in shares.items() if share == best} <= set(TYPED[typed].split())


@pytest.mark.browser
@pytest.mark.parametrize(("words", "page"), [("fedsc", "fedsc.html"), ("RPCL", "fedsc.html"), ("zebra", None)])
def test_search_finds_pages_of_a_site_that_is_opened_as_a_file(
    read_page: Callable[..., str], words: str, page: str | None
) -> None:
    opened = read_page("index.html", query=f"?q={words}")
    links = re.findall(r'<a href="[^"]*?([\w-]+\.html)[^"]*" class="md-search-result__link"', opened)
    assert page in links if page else not links
    assert 'class="md-search-result__meta">Initializing' not in opened
