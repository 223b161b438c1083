"""The list of methods by needs: a sentence and traits for every method, and choices that narrow it."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from docs import method_lists, method_pages
from fedloom.methods import METHODS

REFERENCES = {"central"}  # no method of federated learning
CHOOSE = """
addEventListener("load", function () {
  var inputs = [...document.querySelectorAll(".needs input")], states = {};
  var shown = () => [...document.querySelectorAll(".needs tbody tr")].filter(row => row.getClientRects().length).length;
  states.first = shown();
  inputs.forEach(function (input) {
    input.click();
    states[input.parentNode.textContent] = [shown(), document.querySelector(".needs [role=status]").textContent];
    document.querySelector(".needs button").click();
    inputs.filter(other => other.value === "0").forEach(other => other.click());
  });
  ["may differ", "are served at once", "with differential privacy"].forEach(function (words) {
    inputs.find(input => input.parentNode.textContent === words).click();
  });
  var names = document.querySelectorAll(".needs tbody tr:not([hidden]) td:first-child");
  states.several = [...names].map(cell => cell.textContent);
  states.wide = [document.documentElement.scrollWidth, innerWidth];
  document.body.dataset.probe = JSON.stringify(states);
});
"""


def rows() -> list[tuple[str, str, str]]:
    """Return the rows of the list: name, sentences, traits."""
    return re.findall(r"^\| \[.*?\]\((\w+)\.md\) \| (.*) \| (.*) \|$", method_lists.needs(), re.MULTILINE)


def traffic(traits: str) -> float:
    """Return a method's traffic as a multiple of FedAvg's, infinite where no study has measured it."""
    multiple = re.search(r"([\d.]+) × FedAvg's traffic", traits)
    if multiple:
        return float(multiple[1])
    return {"nothing sent": 0.0, "FedAvg's traffic": 1.0, "traffic not measured": float("inf")}[traits.split(" · ")[2]]


def test_every_method_says_in_one_sentence_when_to_use_it() -> None:
    own = method_pages.own_methods()
    assert own.keys() == {name for name, kind in METHODS if kind.__module__.startswith("fedloom.")}
    assert {name for name, _, _ in rows()} == own.keys() - REFERENCES
    for name, words, _ in rows():
        sentence = words.partition("<br>")[0]
        assert re.fullmatch(r"[A-Z][^.]{,150}\.", sentence), name


def test_results_are_linked_figures_or_said_to_be_missing() -> None:
    for name, words, _ in rows():
        results = re.search(r"<small>(.*)</small>", words)
        assert results is not None, name
        assert "](../results.md#" in results[1] or results[1] == "Not in our studies yet."


@pytest.mark.parametrize(
    ("name", "traits"),
    [
        (
            "fedavg",
            "one model for all · equal networks · FedAvg's traffic · no state · newcomers at once · secure sums",
        ),
        ("local", "a model for each · any networks · nothing sent · state at the client"),
        ("scaffold", "one model for all · equal networks · 2.00 × FedAvg's traffic · state at the client"),
        (
            "fedper",
            "a model for each · equal networks · 0.99 × FedAvg's traffic · state at the client · newcomers train",
        ),
    ],
)
def test_traits_are_those_of_the_code(name: str, traits: str) -> None:
    assert {row[0]: row[2] for row in rows()}[name].startswith(traits)


@pytest.mark.browser
@pytest.mark.parametrize("size", ["1200,900", "400,900"])
def test_a_choice_narrows_the_list(read_page: Callable[..., str], size: str) -> None:
    opened = read_page("methods/index.html", script=CHOOSE, size=size)
    probe = json.loads(re.search(r'data-probe="(.*?)"', opened)[1].replace("&quot;", '"'))  # type: ignore[index]
    traits = [row[2] for row in rows()]
    counted = {
        "either": len(traits),
        "one model for all": sum("model for all" in text for text in traits),
        "a model for each client": sum("for each" in text or "and each" in text for text in traits),
        "at most FedAvg's": sum(traffic(text) <= 1.02 for text in traits),
        "at most a tenth": sum(traffic(text) <= 0.1 for text in traits),
        "may differ": sum("any networks" in text for text in traits),
        "nothing": sum("no state" in text for text in traits),
        "are served at once": sum("newcomers at once" in text for text in traits),
        "as secure sums": sum("secure sums" in text or "nothing sent" in text for text in traits),
    }
    assert probe["first"] == len(traits)
    assert {choice: probe[choice][0] for choice in counted} == counted
    assert probe["may differ"][1] == f"{counted['may differ']} of {len(traits)} methods"
    assert probe["several"] == ["FML"]
    assert probe["wide"][0] <= probe["wide"][1]


def test_without_scripts_the_whole_list_is_shown(site: Path) -> None:
    page = (site / "methods" / "index.html").read_text(encoding="utf-8")
    table = page.partition('class="needs"')[2].partition("</table>")[0]
    assert table.count("<tr>") == len(rows()) + 1
    assert "hidden" not in table
