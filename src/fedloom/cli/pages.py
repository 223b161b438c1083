"""The command `help`: pages of the documentation in the terminal. They come with the package and need no network."""

import re
from pathlib import Path
from typing import Annotated

import click
import typer

from fedloom.core.console import console_of
from fedloom.core.errors import ConfigError, short_repr, suggest_name
from fedloom.core.files import shipped_folder

# The same as in pyproject.toml, which puts them into the wheel.
SHIPPED = ("tutorial.md", "faq.md", "scenarios.md", "glossary.md", "tutorials/*.md", "how-to/*.md", "deployment/*.md")
_WIDTH = 120
_INTERNAL_LINK = re.compile(r"\[([^]]+)\]\((?!https?:)([^)#]*)[^)]*\)")
_ONLY_ON_THE_SITE = re.compile(
    r"\A---\n.*?\n---\n|^<.*>$|!\[[^]]*\]\([^)]*\)|\{ ?[.#][^}]*\}", re.MULTILINE | re.DOTALL
)


def topics() -> dict[str, Path]:
    """Return the pages that come with fedloom, by the names that `fedloom help` takes."""
    folder = shipped_folder("docs")
    paths = [path for pattern in SHIPPED for path in sorted(folder.glob(pattern))]
    return {_topic(path.relative_to(folder).as_posix()): path for path in paths}


def help_(
    context: typer.Context,
    topic: Annotated[str | None, typer.Argument(help="A page, e.g. own-data, or a command; by default a list.")] = None,
) -> None:
    """Show a page of the documentation, without a network; or list the pages."""
    from rich.markdown import Markdown

    from fedloom.cli.terminal import print_grid

    console, pages = console_of(False), topics()
    if topic is None:
        print_grid(console, ("topic", "page"), [(name, _headings(path)[0]) for name, path in pages.items()])
        return
    name = _topic(topic.removeprefix("docs/").lower())
    same_end = [page for page in pages if page.endswith(f"/{name}")]
    command = getattr(context.find_root().command, "commands", {}).get(topic)
    if path := pages.get(same_end[0] if len(same_end) == 1 and name not in pages else name):
        page = Markdown(_for_terminal(path), code_theme="ansi_dark", hyperlinks=False)
        with console.capture() as captured:
            console.print(page, width=min(console.width, _WIDTH))
        click.echo_via_pager(captured.get(), color=console.is_terminal)
    elif command is not None:
        command.main(["--help"], prog_name=f"fedloom {topic}", standalone_mode=False)
    else:
        raise ConfigError(f"no help topic {short_repr(topic)}: {_hint(topic, pages)} (`fedloom help` lists all)")


def _topic(path: str) -> str:
    return path.removesuffix(".md").removesuffix("/index").removeprefix("how-to/")


def _headings(path: Path) -> list[str]:
    prose = re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"^#+ (.+)$", prose, re.MULTILINE)


def _hint(topic: str, pages: dict[str, Path]) -> str:
    from fedloom.methods import METHODS

    if topic in METHODS:
        return f"`fedloom methods {topic}` describes this method"
    words = topic.lower().split()
    matching = [
        name for name, path in pages.items() for title in _headings(path) if all(w in title.lower() for w in words)
    ]
    return f"headings of {', '.join(dict.fromkeys(matching))} have it" if matching else suggest_name(topic, pages)


def _for_terminal(path: Path) -> str:
    """Return the Markdown of a page with links as plain words, the pages that they lead to below, and a note instead of
    each table that the site generates."""
    folder, pages = shipped_folder("docs"), topics()
    text = _ONLY_ON_THE_SITE.sub("", path.read_text(encoding="utf-8"))
    linked = [(path.parent / target).resolve() for _, target in _INTERNAL_LINK.findall(text) if target]
    names = [
        _topic(page.relative_to(folder.resolve()).as_posix()) for page in linked if folder.resolve() in page.parents
    ]
    further = ", ".join(name for name in dict.fromkeys(names) if name in pages)
    text = re.sub(
        r"^\{\{.*\}\}$", "*(The site has a table here.)*", _INTERNAL_LINK.sub(r"\1", text), flags=re.MULTILINE
    )
    return f"{text}\n\nFurther topics of `fedloom help`: {further}\n" if further else text
