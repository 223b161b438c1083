"""Pages of methods have the same sections, and a method without a file has a page all the same."""

import re

import pytest

from docs import method_lists, method_pages
from fedloom.methods import METHODS
from fedloom.methods.catalogue import entry
from fedloom.methods.contract.citation import Citation
from fedloom.methods.contract.method import register
from fedloom.methods.fedavg import FedAvg

OWN = method_pages.own_methods()


def written(name: str) -> str:
    """The page as it is in docs/methods; a new method may have none."""
    path = method_pages.PAGES / f"{name}.md"
    return path.read_text(encoding="utf-8") if path.exists() else method_pages.page_from_docstring(OWN[name])


def page_of(name: str) -> str:
    return method_pages.completed(written(name), OWN[name], method_lists.results_of(OWN[name]))


@pytest.fixture
def newcomer(monkeypatch):
    """A method in one file, with no page."""
    monkeypatch.setattr(METHODS, "_entries", dict(METHODS._entries))

    class FedNew(FedAvg):
        """FedNew: an idea. Doe et al., 2026.

        Server: as FedAvg.
        """

        citation = Citation("Doe et al., preprint 2026, arXiv 2601.00001")

    register(FedNew)
    return entry("fednew")


@pytest.mark.parametrize("name", OWN)
def test_sections_come_in_one_order(name):
    headings = re.findall(r"^## (.+)$", page_of(name), re.MULTILINE)
    assert headings == [title for title in method_pages.SECTIONS if title in headings]
    assert {"Traffic", "When to use it", "Example"} <= set(headings)


@pytest.mark.parametrize("name", OWN)
def test_every_option_is_on_the_page(name):
    kind, page = METHODS.get(name), page_of(name)
    for option, field in kind.Options.model_fields.items():
        assert f"| `{name}.{option}` | {method_pages.shown(field.default)} |" in page


def test_facts_follow_the_opening():
    page = page_of("fedprox")
    opening, _, facts = page.partition("| fact | value |\n|---|---|\n")
    assert opening.startswith("# FedProx\n")
    assert facts.startswith("| paper | Li et al., MLSys 2020, [arXiv 1812.06127](https://arxiv.org/abs/1812.06127) |\n")
    assert "| receives | P |" in page
    assert "`feddw`: 0.01; `fedco2`: 0.001" in page


@pytest.mark.parametrize(("value", "text"), [(None, "null"), (True, "true"), (10000.0, "10000"), ((9, 10), "9, 10")])
def test_values_read_as_in_a_config(value, text):
    assert method_pages.shown(value) == text


def test_an_unknown_heading_is_refused():
    with pytest.raises(ValueError, match=r"fedavg\.md: 'Equation' is not a heading"):
        method_pages.completed("# FedAvg\n\n## Equation\n", OWN["fedavg"])


def test_a_method_without_a_file_has_a_page(newcomer):
    page = method_pages.completed(method_pages.page_from_docstring(newcomer), newcomer)
    assert page.startswith("# FedNew\nFedNew: an idea. Doe et al., 2026.\n\n| fact |")
    assert "## Equations\n```text\nServer: as FedAvg.\n```" in page
    assert "| sends | P |" in page
    assert 'fl.run("fednew"' in page
    assert method_pages.when_to_use(newcomer) == "An idea."


@pytest.mark.parametrize("name", ["cfl", "fedexp"])
def test_a_generated_example_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = method_pages.example(OWN[name]).removeprefix("```python\n").removesuffix("```")
    exec(compile(code, name, "exec"), {"__name__": "__page__"})


@pytest.mark.matrix
@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in OWN if "## Example" not in written(name)])
def test_every_generated_example_runs(name, tmp_path, monkeypatch):
    test_a_generated_example_runs(name, tmp_path, monkeypatch)


def test_the_site_lists_every_method_and_makes_missing_pages(site):
    page = (site / "methods" / "fedavg.html").read_text(encoding="utf-8")  # the small site has no file for it
    assert "arXiv 1602.05629" in page
    overview = (site / "methods" / "index.html").read_text(encoding="utf-8")
    assert all(f'href="{name}.html"' in overview for name in OWN)
