"""Lists of all methods for the site: by needs, with results and traits, and by what they send.

Facts come from the code, results from the committed studies, and the sentence on when to use a method from its page.
docs/assets/needs.js filters the list by the words of the traits.
"""

import runpy
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.advice import TRAFFIC, cached_cells, is_federated, traffic_share
from benchmarks.cells import Cells
from benchmarks.tables.studies import differences
from benchmarks.tables.words import markdown, mean_accuracy
from docs.method_pages import cell_text, own_methods, when_to_use
from fedloom.methods.catalogue import Entry
from fedloom.methods.contract.citation import traffic_symbols

PLAIN = {"fedavg": "FedAvg", "local": "local training"}
# By study and setting, its words in a sentence and its section on the results page.
SETTINGS = {
    TRAFFIC: ("at", "Dirichlet 0.05", "dirichlet-005"),
    ("all-methods", "alpha-0.2"): ("at", "0.2", "dirichlet-02"),
    ("long-tail", ""): ("under a", "long tail", "long-tail-fashion-mnist-rho-50-dirichlet-02"),
    ("digit-domains", ""): ("on", "five domains", "feature-skew-five-digit-domains-one-client-each"),
    ("several-widths", ""): ("with", "several widths", "one-network-in-several-widths-fashion-mnist-dirichlet-02"),
    ("two-classes", ""): ("with", "different nets", "different-nets-fashion-mnist-two-classes-a-client"),
    ("heterogeneous-models", ""): ("with", "four architectures", "heterogeneous-models-cifar-10-dirichlet-01"),
}
_OVERVIEW = ("idea", "yields", "nets", "down", "up", "client keeps", "compared in")
_MODELS = {
    "global": "one model for all",
    "personal": "a model for each",
    "global, personal": "a model for all and each",
}


def overview() -> str:
    """Return one line per method, and the symbols of the formulas."""
    rows = []
    for method in own_methods().values():
        told = method.facts()
        rows.append([f"[{method.title}]({method.name}.md)", *(cell_text(told[column]) for column in _OVERVIEW)])
    symbols = markdown(("symbol", "counts"), [(name, cell_text(text)) for name, text in traffic_symbols().items()])
    return f"{markdown(('method', *_OVERVIEW), rows)}\n\n{symbols}"


def needs() -> str:
    """Return one row per method: when to use it, its results in our studies, and its traits.

    The plain methods come first, then those of one model for all, of both, and of one for each. Methods that need all
    data in one place are left out.
    """
    rows = []
    for method in sorted(filter(is_federated, own_methods().values()), key=_order):
        words = f"{when_to_use(method)}<br><small>{results_sentence(method.name)}</small>"
        rows.append([f"[{method.title}]({method.name}.md)", words, " · ".join(traits_of(method))])
    return markdown(("method", "when to use it, and its results in our studies", "traits"), rows)


def known_mistakes() -> str:
    """Return the mistakes that the tests notice, with the file that each one changes."""
    mutations = runpy.run_path(str(Path(__file__).parents[1] / "tests" / "mutations" / "mutations.py"))["MUTATIONS"]
    return markdown(("mistake", "file"), [(mutation.mistake, f"`{mutation.file}`") for mutation in mutations])


def results_of(method: Entry) -> str:
    """Return the results of a method in our studies; nothing for one that needs all data in one place."""
    return results_sentence(method.name) if is_federated(method) else ""


def traits_of(method: Entry) -> Iterator[str]:
    """Yield the traits of a method in fixed words, which docs/assets/needs.js looks for."""
    abilities, citation = method.abilities, method.citation
    assert citation is not None
    yield _MODELS[method.yields]
    yield "any networks" if abilities.any_architecture else "equal networks"
    yield _traffic(traffic_share(method.name))
    yield "state at the client" if citation.state else "no state"
    yield f"newcomers train a {abilities.untrained} first" if abilities.untrained else "newcomers at once"
    if abilities.secure_sum:
        yield "secure sums"
    if method.wrappers["dp"] is None:
        yield "privacy without batch norm" if "dp" in method.without_batch_norm else "privacy"


def results_sentence(name: str) -> str:
    """Return what our studies say of a method at its default preset: differences from a plain method, and the word."""
    if name in PLAIN:
        means = (_linked(key, f"{100 * mean_accuracy(cell):.1f} %") for key, cell in _cells_of(name))
        return f"The others are compared with it: {', '.join(means)}."
    by_plain: dict[str, list[str]] = {}
    decided: dict[str, bool] = {}
    for key, cell in _cells_of(name):
        study, setting = key
        words = _differences(study, setting).get(f"{setting}/{name}")
        if words is None:
            continue
        points, _, word = words.partition(", ")
        plain = PLAIN["local" if cell["protocol"].startswith("personal") else "fedavg"]
        seen = word.startswith(("ahead", "behind", "equivalent"))
        decided[plain] = decided.get(plain, False) or seen
        by_plain.setdefault(plain, []).append(_linked(key, points) + (f" ({word})" if seen else ""))
    if not by_plain:
        return "Not in our studies yet."
    parts = []
    for plain, points_by_setting in by_plain.items():
        rest = "the rest undecided" if decided[plain] else "undecided"
        if not decided[plain] or len(points_by_setting) > 1:
            points_by_setting = [*points_by_setting[:-1], f"{points_by_setting[-1]}; {rest}"]
        parts.append(f"Points over {plain}: {', '.join(points_by_setting)}.")
    return " ".join(parts)


def _cells_of(name: str) -> Iterator[tuple[tuple[str, str], Mapping[str, Any]]]:
    for study, setting in SETTINGS:
        cell = cached_cells(study).get(f"{setting}/{name}")
        if cell is not None:
            yield (study, setting), cell


@cache
def _differences(study: str, setting: str) -> dict[str, str]:
    cells: Cells = cached_cells(study)
    return differences(cells, setting)


def _linked(key: tuple[str, str], number: str) -> str:
    preposition, words, section = SETTINGS[key]
    return f"{number} {preposition} [{words}](../results.md#{section})"


def _traffic(share: float | None) -> str:
    """The traffic as a multiple of FedAvg's, in words."""
    if share is None:
        return "traffic not measured"
    if round(share, 2) in (0, 1):
        return "FedAvg's traffic" if share > 0.5 else "under 0.01 × FedAvg's traffic" if share else "nothing sent"
    return f"{share:.2f} × FedAvg's traffic"


def _order(method: Entry) -> tuple[int, str]:
    groups = ("global", "global, personal", "personal")
    return (-1 if method.name in PLAIN else groups.index(method.yields)), method.title.lower()
