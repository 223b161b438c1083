"""Pages of methods for the site: the prose of docs/methods/NAME.md, completed by what the code knows of a method.

A page has its text under the headings of `SECTIONS`. The facts below the title, and the tables of traffic and options,
the notes on sources and the example under their headings, come from the code. A method without such a file gets a page
from its docstring, so a new method needs no other file than its own.
"""

import inspect
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.code_elsewhere import READ
from benchmarks.tables.words import markdown
from fedloom.methods import METHODS
from fedloom.methods.catalogue import Entry, entries, set_by
from fedloom.methods.contract.citation import Formula, formula, traffic_symbols

PAGES = Path(__file__).parent / "methods"
SECTIONS = ("Equations", "Traffic", "Options", "Paper and code", "Warnings", "Measured", "When to use it", "Example")
# What was executed of the released code, at the commit of the page, and what came out.
_EXECUTED = {
    "fedfomo": "the weights of models, which agree with ours to 2e-8; the growth of the affinities, which differs as "
    "stated; and the first affinity",
    "fedl2g": "the gradients of the vectors, which agree with ours to 1e-7; the classes that a client sends, where "
    "ours leaves out steps below float32; and the server's mean",
    "gpfl": "a client's first step, which agrees with ours to 2e-8; the conditions of two rounds, which come from the "
    "client's own embedding; and the default of `--lamda`",
}
_NETWORKS = {"one": "the same for all clients", "any": "may differ between clients"}


@cache
def own_methods() -> Mapping[str, Entry]:
    """Return fedloom's methods by name, without those of plug-ins."""
    return {method.name: method for method in entries() if METHODS.get(method.name).__module__.startswith("fedloom.")}


def completed(text: str, method: Entry, results: str = "") -> str:
    """Return the page of a method with its facts, tables and example.

    Args:
        text: the page as written.
        method: the method.
        results: its results in our studies, for the section "When to use it".

    Raises:
        ValueError: the page has a heading that is not in `SECTIONS`.
    """
    opening, *rest = re.split(r"^## (.+)\n", text, flags=re.MULTILINE)
    written = {title: prose.strip() for title, prose in zip(rest[::2], rest[1::2], strict=True)}
    if unknown := written.keys() - set(SECTIONS):
        raise ValueError(f"methods/{method.name}.md: '{min(unknown)}' is not a heading of method pages: {SECTIONS}")
    generated = {
        "Traffic": traffic_table(method),
        "Options": options_table(method),
        "Paper and code": notes_on_sources(method),
        "Example": "" if "```" in written.get("Example", "") else example(method),
    }
    parts = [f"{opening.strip()}\n\n{facts_table(method)}"]
    for title in SECTIONS:
        blocks = (generated.get(title), written.get(title), results if title == "When to use it" else "")
        if section := "\n\n".join(filter(None, blocks)):
            parts.append(f"## {title}\n{section}")
    return "\n\n".join(parts) + "\n"


def page_from_docstring(method: Entry) -> str:
    """Return the page of a method that has no file in docs/methods."""
    lead, _, rest = inspect.cleandoc(METHODS.get(method.name).__doc__ or "").partition("\n\n")
    equations = f"\n\n## Equations\n```text\n{rest}\n```" if rest else ""
    return f"# {method.title}\n{lead}{equations}\n"


def when_to_use(method: Entry) -> str:
    """Return the first sentence of a page's section "When to use it"; the method's idea where there is none."""
    page = PAGES / f"{method.name}.md"
    _, heading, section = (page.read_text(encoding="utf-8") if page.exists() else "").partition("\n## When to use it\n")
    if not heading:
        return f"{method.idea[:1].upper()}{method.idea[1:]}."
    return " ".join(re.split(r"(?<=\.)\s", section.strip(), maxsplit=1)[0].split())


def facts_table(method: Entry) -> str:
    """Return where a method comes from, and what it works with."""
    citation, facts = method.citation, method.facts()
    source = citation.source if citation else ""
    rows = {
        "paper": re.sub(r"arXiv (\d{4}\.\d{5})", r"[arXiv \1](https://arxiv.org/abs/\1)", source),
        "released code": citation and citation.code,
        "models": facts["yields"],
        "networks": _NETWORKS[facts["nets"]],
        "secure aggregation": "possible" if method.abilities.secure_sum else "not possible",
        "uploads reveal": facts["uploads reveal"],
        "wrappers": facts["wrappers"],
        "batched engine": method.abilities.unstackable and f"no: {method.abilities.unstackable}",
        "several labels": f"no: {method.abilities.single_label}" if method.abilities.single_label else "yes",
        "baseline of": facts["compared in"],
    }
    return markdown(("fact", "value"), [(name, cell_text(value)) for name, value in rows.items() if value])


def traffic_table(method: Entry) -> str:
    """Return what a client receives, sends and keeps, as formulas, and what their symbols count."""
    if method.citation is None:
        return ""
    traffic = {"receives": method.citation.down, "sends": method.citation.up, "keeps": method.citation.state}
    table = markdown(("a client", "per round"), [(verb, formula(terms)) for verb, terms in traffic.items()])
    return "\n\n".join(filter(None, [table, _legend(*traffic.values())]))


def options_table(method: Entry) -> str:
    """Return the options with their defaults, and the values that presets set."""
    kind = METHODS.get(method.name)
    rows = [
        (f"`{method.name}.{key}`", shown(field.default), _values(set_by(kind, key)), cell_text(field.description or ""))
        for key, field in kind.Options.model_fields.items()
    ]
    table = markdown(("option", "default", "in presets", "meaning"), rows) if rows else ""
    settings = _values(kind.settings.get("authors", {}))
    also = f"Preset `authors` also sets {settings}, unless the config states them." if settings else ""
    return "\n\n".join(filter(None, [table, also]))


def notes_on_sources(method: Entry) -> str:
    """Return what no source states, and where fedloom or the released code differ from the paper."""
    citation = method.citation
    if citation is None:
        return ""
    notes = {
        "Our choices.": citation.our_choice,
        "Where fedloom differs from the paper.": citation.departures,
        "The released code.": citation.released_code,
    }
    if method.name in _EXECUTED:
        command = f"`python -m benchmarks code-elsewhere {method.name} CLONE`"
        notes["Executed."] = f"{command} compares {_EXECUTED[method.name]}. Other statements were read."
    elif method.name in READ:
        notes["Read, not executed."] = f"{READ[method.name].capitalize()}, so its code was only read."
    return "\n".join(f"- **{title}** {text}" for title, text in notes.items() if text)


def example(method: Entry) -> str:
    """Return Python code that runs a method on a small problem."""
    protocol = "" if "global" in method.abilities.predicts else ', evaluation={"protocol": "personal/local"}'
    return f"""```python
import fedloom as fl

scenario = fl.scenario("digits", partition="dirichlet", alpha=0.1, clients=5)
result = fl.run("{method.name}", scenario=scenario, rounds=3{protocol})
print(result.summary())
```"""


def shown(value: Any) -> str:
    """Return a value of an option as a config has it."""
    if isinstance(value, tuple | list):
        return ", ".join(map(shown, value))
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def cell_text(text: str) -> str:
    """Return a text for a cell of a Markdown table."""
    return text.replace("|", "\\|")


def _legend(*formulas: Formula) -> str:
    symbols = dict.fromkeys(symbol for terms in formulas for symbol in terms)
    return "; ".join(f"**{symbol}**: {traffic_symbols()[symbol]}" for symbol in symbols)


def _values(values: Mapping[str, Any]) -> str:
    """Return values by key in words; keys of equal value share one, as in "`paper`, `authors`: 1"."""
    keys: dict[str, list[str]] = {}
    for key, value in _flat(values):
        keys.setdefault(shown(value), []).append(f"`{key}`")
    return "; ".join(f"{', '.join(names)}: {value}" for value, names in keys.items())


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
