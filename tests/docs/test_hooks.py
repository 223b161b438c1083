"""Equations become MathML, and doctests code blocks, when the site is built."""

import importlib.util
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.cells import studies_by_name
from support import FEDERATED

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


def markdown_of(hooks, page):
    """The Markdown of a page with its tables."""
    file = SimpleNamespace(file=SimpleNamespace(src_uri=page))
    return hooks.on_page_markdown((HOOKS.parent / page).read_text(encoding="utf-8"), page=file)


@pytest.mark.parametrize("page", ["hostile-nodes.md", "privacy-leaks.md"])
def test_tables_of_federations_have_every_measured_method(hooks, page):
    measured = {label.rpartition("/")[2] for cells in studies_by_name().values() for label in cells}
    built = markdown_of(hooks, page)
    assert "{{" not in built
    assert all(f"\n| {method} |" in built for method in FEDERATED if method in measured)


def test_a_method_page_has_its_facts_and_results(hooks):
    page = markdown_of(hooks, "methods/fedsc.md")
    assert "\n| paper | Wang et al., KDD 2025" in page
    assert "\nPoints over FedAvg: " in page


def test_the_page_of_mistakes_lists_them(hooks):
    page = markdown_of(hooks, "methods/mutations.md")
    assert "\n| moon: positive and negative swapped | `methods/moon.py` |" in page


def test_an_unknown_table_ends_the_build(hooks):
    page = SimpleNamespace(file=SimpleNamespace(src_uri="results.md"))
    with pytest.raises(KeyError, match="no-such"):
        hooks.on_page_markdown("{{ table no-such }}", page=page)


def test_the_page_of_config_keys_lists_every_key(hooks):
    from fedloom.runs.config.reference import config_keys

    built = markdown_of(hooks, "config.md")
    assert "{{" not in built
    assert "## Keys of every run" in built
    assert "## Keys of partitions" in built
    for key in config_keys():
        assert f"| `{key.path}`" in built
