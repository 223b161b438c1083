"""A small site with the theme, search and scripts of the real one, and a browser to read it."""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
FLAGS = "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-sync --dump-dom"
PAGES = ("index.md", "methods/README.md", "methods/fedsc.md")


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three pages of the site, built; their links to other pages lead nowhere."""
    pytest.importorskip("material", reason="needs the docs extra: make docs")
    folder = tmp_path_factory.mktemp("site")
    docs = folder / "docs"
    for name in ("assets", "images"):
        shutil.copytree(ROOT / "docs" / name, docs / name)
    for page in PAGES:
        (docs / page).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / "docs" / page, docs / page)
    real = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    plugins = [plugin for plugin in ("search", "offline") if re.search(rf"^  - {plugin}$", real, re.MULTILINE)]
    (folder / "mkdocs.yml").write_text(
        f"INHERIT: {ROOT / 'mkdocs.yml'}\ndocs_dir: {docs}\nstrict: false\nnav: {list(PAGES)}\n"
        f"plugins: {plugins}\nhooks: [{ROOT / 'docs' / 'hooks.py'}]\n",
        encoding="utf-8",
    )
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--config-file", str(folder / "mkdocs.yml")]
    subprocess.run([*command, "--site-dir", str(folder / "site")], check=True, cwd=ROOT, capture_output=True)
    return folder / "site"


@pytest.fixture
def read_page(site: Path, tmp_path: Path) -> Callable[..., str]:
    """Return a function that opens a page of the site as a file, and returns what the browser made of it."""
    if CHROMIUM is None:
        pytest.skip("no Chromium executable (chromium, google-chrome) on the path")

    def read(page: str, query: str = "", script: str = "", size: str = "1200,800") -> str:
        path = site / page
        if script:
            text = path.read_text(encoding="utf-8")
            path = path.with_name(f"with-script-{path.name}")
            path.write_text(text.replace("</body>", f"<script>{script}</script></body>"), encoding="utf-8")
        flags = [*FLAGS.split(), f"--user-data-dir={tmp_path}", "--virtual-time-budget=20000", f"--window-size={size}"]
        command = [CHROMIUM, *flags, path.as_uri() + query]
        return subprocess.run(command, capture_output=True, text=True, timeout=90, check=True).stdout

    return read
