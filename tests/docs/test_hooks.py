"""Equations become MathML, and doctests code blocks, when the site is built."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

pytest.importorskip("latex2mathml", reason="needs the docs extra: make docs")
pytest.importorskip("markdown", reason="needs the docs extra: make docs")

HOOKS = Path(__file__).parents[2] / "docs" / "hooks.py"


@pytest.fixture(scope="module")
def hooks():
    spec = importlib.util.spec_from_file_location("hooks", HOOKS)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_an_equation_is_drawn_where_it_stands(hooks):
    page = hooks.on_page_content(r'<p>so <span class="arithmatex">\(a &lt; \frac{1}{2}\)</span>.</p>')
    assert page.startswith("<p>so <math ")
    assert "<mfrac>" in page
    assert page.endswith("</math>.</p>")


def test_an_equation_of_its_own_scrolls(hooks):
    page = hooks.on_page_content('<div class="arithmatex">\\[\na = b\n\\]</div>')
    assert page.startswith('<div class="equation" tabindex="0"><math ')
    assert 'display="block"' in page


def test_an_unknown_command_ends_the_build(hooks):
    with pytest.raises(ValueError, match="not known"):
        hooks.on_page_content(r'<span class="arithmatex">\(\fracc{1}{2}\)</span>')


def test_doctests_become_code_blocks(hooks):
    import markdown

    text = "Words.\n\n>>> 1 + 1\n2\n\nMore words."
    drawn = markdown.markdown(text, extensions=["fenced_code", hooks.Doctests()])
    assert "<blockquote>" not in drawn
    assert "&gt;&gt;&gt; 1 + 1\n2\n</code>" in drawn
    assert "<p>More words.</p>" in drawn


def test_the_page_of_config_keys_lists_every_key(hooks):
    from fedloom.runs.config.reference import config_keys

    page = (HOOKS.parent / "config.md").read_text(encoding="utf-8")
    built = hooks.on_page_markdown(page)
    assert "<!--" not in built
    assert "## Keys of every run" in built
    assert "## Keys of partitions" in built
    for key in config_keys():
        assert f"| `{key.path}`" in built
