"""A reader who opens the site as a file can search it, and reading it fetches nothing."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("material", reason="needs the docs extra: make docs")

ROOT = Path(__file__).parents[2]
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
FLAGS = "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-sync --dump-dom"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two pages, built with the theme, the search and the scripts of the real site."""
    folder = tmp_path_factory.mktemp("site")
    pages = folder / "pages"
    shutil.copytree(ROOT / "docs" / "assets", pages / "assets")
    (pages / "index.md").write_text("# Start\n\nNothing is here.\n", encoding="utf-8")
    (pages / "fedsc.md").write_text("# FedSC\n\nPrototypes of classes travel.\n", encoding="utf-8")
    real = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    plugins = [plugin for plugin in ("search", "offline") if re.search(rf"^  - {plugin}$", real, re.MULTILINE)]
    (folder / "mkdocs.yml").write_text(
        f"INHERIT: {ROOT / 'mkdocs.yml'}\ndocs_dir: {pages}\nnav: [index.md, fedsc.md]\nhooks: []\n"
        f"not_in_nav: ''\nexclude_docs: ''\nextra_javascript: [assets/sorted.js]\nplugins: {plugins}\n",
        encoding="utf-8",
    )
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--config-file", str(folder / "mkdocs.yml")]
    subprocess.run([*command, "--site-dir", str(folder / "site")], check=True, env={"NO_MKDOCS_2_WARNING": "1"})
    return folder / "site"


def test_no_script_style_or_font_comes_from_a_network(site: Path) -> None:
    for page in site.glob("*.html"):
        text = page.read_text(encoding="utf-8")
        fetched = re.findall(r"<(?:script|img|iframe)[^>]* src=\"?(\S+)", text)
        fetched += re.findall(r"<link[^>]* rel=\"?(?:stylesheet|preconnect|icon)\"?[^>]* href=\"?([^\s>]+)", text)
        assert [address for address in fetched if "//" in address] == []


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium executable (chromium, google-chrome) on the path")
@pytest.mark.parametrize(("words", "results"), [("fedsc", ["fedsc.html"]), ("classes", ["fedsc.html"]), ("zebra", [])])
def test_search_finds_pages_of_a_site_that_is_opened_as_a_file(
    site: Path, tmp_path: Path, words: str, results: list[str]
) -> None:
    address = f"{(site / 'index.html').as_uri()}?q={words}"
    command = [
        str(CHROMIUM),
        *FLAGS.split(),
        f"--user-data-dir={tmp_path}",
        "--virtual-time-budget=20000",
        "--dump-dom",
    ]
    page = subprocess.run([*command, address], capture_output=True, text=True, timeout=90, check=True).stdout
    links = re.findall(r'<a href="[^"]*?([\w-]+\.html)[^"]*" class="md-search-result__link"', page)
    assert links == results
    assert 'class="md-search-result__meta">Initializing' not in page
