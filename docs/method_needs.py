"""The list of methods by needs, for docs/methods/README.md: when to take each, its results in our studies, its traits.

Traits come from the code, results from benchmarks/results/studies by the one rule of differences, and the sentence on
when to take a method from docs/methods/when.yaml. docs/assets/needs.js filters the list by the words of the traits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from fedloom.methods.catalogue.descriptions import Entry
from fedloom.results.statistics import mean_std
from results import differences, studies_by_name

WHEN = Path(__file__).parent / "methods" / "when.yaml"
PLAIN = {"fedavg": "FedAvg", "local": "local training"}
# By study and setting, its words in a sentence and its section on the results page.
SETTINGS = {
    ("all-methods", "alpha-0.05"): ("at", "Dirichlet 0.05", "dirichlet-005"),
    ("all-methods", "alpha-0.2"): ("at", "0.2", "dirichlet-02"),
    ("long-tail", ""): ("under a", "long tail", "long-tail-fashion-mnist-rho-50-dirichlet-02"),
    ("digit-domains", ""): ("on", "five domains", "feature-skew-five-digit-domains-one-client-each"),
    ("several-widths", ""): ("with", "several widths", "one-network-in-several-widths-fashion-mnist-dirichlet-02"),
    ("two-classes", ""): ("with", "different nets", "different-nets-fashion-mnist-two-classes-a-client"),
    ("heterogeneous-models", ""): ("with", "four architectures", "heterogeneous-models-cifar-10-dirichlet-01"),
}
_TRAFFIC = "all-methods", "alpha-0.05"  # where bytes are compared with FedAvg's
_MODELS = {
    "global": "one model for all",
    "personal": "a model for each",
    "global, personal": "a model for all and each",
}
Cells = Mapping[str, dict[str, Any]]


def needs_table(methods: Sequence[Entry]) -> str:
    """Return one row a method; the plain methods first, then those of one model for all, of both, and of one each.

    Methods that need all data in one place are left out.
    """
    sentences: dict[str, str] = yaml.safe_load(WHEN.read_text(encoding="utf-8"))
    studies = studies_by_name()
    lines = ["| method | when to take it, and its results in our studies | traits |", "|---|---|---|"]
    for method in sorted(filter(is_federated, methods), key=_order):
        words = f"{sentences[method.name]}<br><small>{results_sentence(method.name, studies)}</small>"
        traits = " · ".join(traits_of(method, studies[_TRAFFIC[0]]))
        lines.append(f"| [{method.title}]({method.name}.md) | {words} | {traits} |")
    return "\n".join(lines)


def is_federated(method: Entry) -> bool:
    """Whether clients keep their data; a model for all that needs no uploads is trained on pooled data."""
    return bool(method.citation and method.citation.up) or method.yields == "personal"


def traits_of(method: Entry, traffic_cells: Cells) -> Iterator[str]:
    """Yield the traits of a method in fixed words, which docs/assets/needs.js looks for."""
    abilities, citation = method.abilities, method.citation
    assert citation is not None
    yield _MODELS[method.yields]
    yield "any networks" if abilities.any_architecture else "equal networks"
    measured = f"{_TRAFFIC[1]}/{method.name}" in traffic_cells
    yield _traffic(method.name, traffic_cells) if measured else "traffic not measured"
    yield "state at the client" if citation.state else "no state"
    yield f"newcomers train a {abilities.untrained} first" if abilities.untrained else "newcomers at once"
    if abilities.secure_sum:
        yield "secure sums"
    if method.wrappers["dp"] is None:
        yield "privacy without batch norm" if "dp" in method.without_batch_norm else "privacy"


def results_sentence(name: str, studies: Mapping[str, Cells]) -> str:
    """Return what our studies say of a method at its default preset: differences from a plain method, and the word."""
    if name in PLAIN:
        means = (_linked(key, f"{100 * mean_std(cell['accuracies'])[0]:.1f} %") for key, cell in _cells(name, studies))
        return f"The others are compared with it: {', '.join(means)}."
    by_plain: dict[str, list[str]] = {}
    decided: dict[str, bool] = {}
    for key, cell in _cells(name, studies):
        study, setting = key
        words = differences(studies[study], setting).get(f"{setting}/{name}")
        if words is None:
            continue
        points, _, word = words.partition(", ")
        star = "\\*" if word.endswith("*") else ""
        word = word.removesuffix(" *")
        plain = PLAIN["local" if cell["protocol"].startswith("personal") else "fedavg"]
        seen = word in ("ahead", "behind")
        decided[plain] = decided.get(plain, False) or seen
        by_plain.setdefault(plain, []).append(_linked(key, f"{points}{star}") + (f" ({word})" if seen else ""))
    if not by_plain:
        return "Not in our studies yet."
    parts = []
    for plain, differences_there in by_plain.items():
        rest = "for the rest no difference seen" if decided[plain] else "no difference seen"
        if not decided[plain] or len(differences_there) > 1:
            differences_there = [*differences_there[:-1], f"{differences_there[-1]}; {rest}"]
        parts.append(f"Points over {plain}: {', '.join(differences_there)}.")
    return " ".join(parts)


def _cells(name: str, studies: Mapping[str, Cells]) -> Iterator[tuple[tuple[str, str], dict[str, Any]]]:
    for (study, setting), _ in SETTINGS.items():
        cell = studies[study].get(f"{setting}/{name}")
        if cell is not None:
            yield (study, setting), cell


def _linked(key: tuple[str, str], figure: str) -> str:
    preposition, words, section = SETTINGS[key]
    return f"{figure} {preposition} [{words}](../results.md#{section})"


def _traffic(name: str, cells: Cells) -> str:
    """Return bytes up and down as a multiple of FedAvg's in the same study."""
    setting = _TRAFFIC[1]
    cell, plain = (cells[f"{setting}/{label}"] for label in (name, "fedavg"))
    share = (cell["bytes_up"] + cell["bytes_down"]) / (plain["bytes_up"] + plain["bytes_down"])
    if round(share, 2) in (0, 1):
        return "FedAvg's traffic" if share > 0.5 else "nothing sent" if share == 0 else "under 0.01 × FedAvg's traffic"
    return f"{share:.2f} × FedAvg's traffic"


def _order(method: Entry) -> tuple[int, str]:
    groups = ("global", "global, personal", "personal")
    return (-1 if method.name in PLAIN else groups.index(method.yields)), method.title.lower()
