"""What the site needs beyond Markdown: tables that sort, and equations as MathML.

Pages write LaTeX between dollars. `pymdownx.arithmatex` finds it, `latex2mathml` turns it into MathML here.
"""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from latex2mathml.converter import convert
from markdown import Extension, Markdown
from markdown.preprocessors import Preprocessor
from mkdocs.structure.files import File

if TYPE_CHECKING:
    from fedloom.runs.config.reference import ConfigKey

_TABLES = Path(__file__).parents[1] / "src" / "fedloom" / "results" / "report" / "assets" / "tables.js"
_CONFIG_KEYS = "<!-- tables of config keys: put here by docs/hooks.py -->"
_MATH = re.compile(r'<(?P<tag>span|div) class="arithmatex">(?P<text>.*?)</(?P=tag)>', re.DOTALL)


def on_page_content(text: str, **_: Any) -> str:
    """Every equation of a page as MathML; a long one scrolls in its own box."""
    return _MATH.sub(_drawn, text)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put the tables of config keys on their page."""
    return markdown.replace(_CONFIG_KEYS, key_tables()) if _CONFIG_KEYS in markdown else markdown


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


def on_files(files: Any, config: Any, **_: Any) -> Any:
    """Tables of measurements sort as those of a report do, with the same script."""
    files.append(File.generated(config, "assets/tables.js", abs_src_path=str(_TABLES)))
    return files


def on_config(config: Any, **_: Any) -> Any:
    """Doctests in docstrings become code blocks."""
    config["markdown_extensions"].append(Doctests())
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
