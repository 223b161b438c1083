"""Extensions of the site: generated tables and pictures, pages of methods, and equations as MathML.

A line `{{ NAME }}` of a page is replaced by the table of this name when the site is built. Pages write LaTeX between
dollars: `pymdownx.arithmatex` finds it, and `latex2mathml` turns it into MathML here.
"""

from __future__ import annotations

import html
import inspect
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from latex2mathml.converter import convert
from markdown import Extension, Markdown
from markdown.preprocessors import Preprocessor
from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # mkdocs restores the path when this file is loaded

from benchmarks.tables import costs, performance, pictures, tables
from docs import method_lists, method_pages, privacy_tables

if TYPE_CHECKING:
    from fedloom.runs.config.reference import ConfigKey

_TABLES = ROOT / "src" / "fedloom" / "results" / "report" / "assets" / "tables.js"
_PLACEHOLDER = re.compile(r"^\{\{ (.+) \}\}$", re.MULTILINE)
_ALL_METHODS = "methods/*.md"  # of the navigation: a line per method
_METHOD_PAGE = re.compile(r"methods/(\w+)\.md")
_MATH = re.compile(r'<(?P<tag>span|div) class="arithmatex">(?P<text>.*?)</(?P=tag)>', re.DOTALL)


def on_page_content(text: str, **_: Any) -> str:
    """Every equation of a page as MathML; a long one scrolls in its own box."""
    return _MATH.sub(_drawn, text)


def on_post_page(output: str, **_: Any) -> str:
    """Name the search for screen readers, which the theme leaves without a name."""
    return output.replace(
        'data-md-component="search" role="dialog"', 'data-md-component="search" role="dialog" aria-label="Search"'
    )


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Replace placeholders by tables, and complete the page of a method by what the code knows of it."""
    name = _METHOD_PAGE.fullmatch(page.file.src_uri)
    if name and (method := method_pages.own_methods().get(name[1])):
        markdown = method_pages.completed(markdown, method, method_lists.results_of(method))
    return _PLACEHOLDER.sub(lambda placeholder: f"\n{generated(placeholder[1])}\n", markdown)


def generated(name: str) -> str:
    """Return the Markdown that a placeholder names. Raises `KeyError` for an unknown name."""
    if name.startswith("table "):
        return tables()[name.removeprefix("table ")]
    return _GENERATED[name]()


def key_tables() -> str:
    """Return a Markdown table of the keys of every run, and one for each kind of part."""
    from fedloom.runs.config.reference import config_keys

    tables: dict[str, list[ConfigKey]] = {}
    for key in config_keys():
        tables.setdefault(key.part.partition(" ")[0], []).append(key)
    return "\n\n".join(_key_table(kind, keys) for kind, keys in tables.items())


def _key_table(kind: str, keys: list[ConfigKey]) -> str:
    title = f"Keys of {kind}s" if kind else "Keys of every run"
    lines = [f"## {title}", "", "| key | default | values | meaning |", "|---|---|---|---|"]
    for key in keys:
        path = f"`{key.path}`" + (f" ({key.part.partition(' ')[2]})" if key.part else "")
        cells = (path, f"`{key.default_text}`", key.values, key.meaning)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)


def models() -> str:
    """Return the description of every built-in model and of its options, in Markdown."""
    from fedloom.nets import MODELS
    from fedloom.nets.blocks import model_options

    blocks = []
    for name, model in MODELS:
        options = [f"- `{key}`: {field.description}" for key, field in model_options(name).items()]
        blocks += [f"### `{name}`", inspect.cleandoc(model.__doc__ or ""), "\n".join(options)]
    return "\n\n".join(filter(None, blocks))


_GENERATED = {
    "config keys": key_tables,
    "known mistakes": method_lists.known_mistakes,
    "methods": method_lists.overview,
    "models": models,
    "needs": method_lists.needs,
    "reported facts": privacy_tables.reported_facts_table,
    "uploads": privacy_tables.methods_table,
}


def on_files(files: Any, config: Any, **_: Any) -> Any:
    """Add the script by which tables sort, which reports have too, pictures of measurements, and missing pages."""
    files.append(File.generated(config, "assets/tables.js", abs_src_path=str(_TABLES)))
    for name, module in {"results": pictures, "costs": costs, "performance": performance}.items():
        files.append(File.generated(config, f"images/{name}.png", content=module.picture()))
    for name, method in method_pages.own_methods().items():
        page = f"methods/{name}.md"
        if files.get_file_from_path(page) is None:
            files.append(File.generated(config, page, content=method_pages.page_from_docstring(method)))
    return files


def on_config(config: Any, **_: Any) -> Any:
    """Doctests in docstrings become code blocks, and the section of methods lists every method."""
    config["markdown_extensions"].append(Doctests())
    by_title = sorted(method_pages.own_methods().values(), key=lambda method: method.title.lower())
    pages = [{method.title: f"methods/{method.name}.md"} for method in by_title]
    for section in config["nav"]:
        if isinstance(section, dict) and "Methods" in section:
            start = section["Methods"].index(_ALL_METHODS)
            section["Methods"][start : start + 1] = pages
    return config


def _drawn(found: re.Match[str]) -> str:
    block = found["tag"] == "div"
    latex = html.unescape(found["text"]).strip()[2:-2].strip()  # without \( \) or \[ \]
    drawn = convert(latex, display="block" if block else "inline")
    ElementTree.fromstring(drawn)  # a broken equation ends the build
    if "<mtext>\\" in drawn or "<mi>\\" in drawn:
        raise ValueError(f"an equation has a command that is not known: {latex}")
    return f'<div class="equation" tabindex="0">{drawn}</div>' if block else drawn


class Doctests(Extension):
    """Puts lines that start with `>>>`, and the output below them, into a fenced block."""

    def extendMarkdown(self, md: Markdown) -> None:
        md.preprocessors.register(_Fencing(md), "doctests", 40)


class _Fencing(Preprocessor):
    def run(self, lines: list[str]) -> list[str]:
        fenced: list[str] = []
        inside = False
        for line in lines:
            starts = line.startswith(">>>")
            if starts and not inside:
                fenced += ["```pycon", line]
            elif inside and not line.strip():
                fenced += ["```", line]
            else:
                fenced.append(line)
            inside = bool(line.strip()) and (inside or starts)
        return [*fenced, "```"] if inside else fenced
