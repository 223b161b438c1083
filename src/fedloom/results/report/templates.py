"""The jinja2 templates of the page: every value is escaped, unless it is `Markup`, which a template has made."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup


def render_macro(template: str, macro: str, *arguments: object) -> Markup:
    """Call a macro of a template file with its arguments in order.

    Raises `jinja2.UndefinedError` for a value that is missing.
    """
    rendered: Markup = getattr(_environment().get_template(template).module, macro)(*arguments)
    return rendered


def render_page(**values: object) -> str:
    """Render `templates/page.html` with its variables. Raises `jinja2.UndefinedError` for one that is missing."""
    return _environment().get_template("page.html").render(values)


def asset(name: str) -> str:
    """Return the text of a file of the package's folder `assets`, which a page embeds."""
    return (files("fedloom.results.report") / "assets" / name).read_text(encoding="utf-8")


def _template_source(name: str) -> str:
    return (files("fedloom.results.report") / "templates" / name).read_text(encoding="utf-8")


@cache
def _environment() -> Environment:
    return Environment(
        loader=FunctionLoader(_template_source),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
