"""What is told of a method, in lists and on its page: everything comes from the method's own code and text."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from fedloom.methods.catalogue.abilities import Abilities, abilities, wrappers_of
from fedloom.methods.contract.citation import Citation, formula
from fedloom.methods.contract.method import METHODS, Method

_OURS = ("Our choice:", "Where the paper is silent:")
_OURS_WITHIN = "our choice"


@dataclass(frozen=True, slots=True)
class Entry:
    """One method as it is told. `wrappers`: each, and why the method refuses it (None: it takes it)."""

    name: str
    title: str
    idea: str
    citation: Citation | None
    abilities: Abilities
    wrappers: Mapping[str, str | None]

    @property
    def yields(self) -> str:
        """The models that come out: "global", "personal", or both."""
        return ", ".join(sorted(self.abilities.predicts))

    @property
    def nets(self) -> str:
        """Whether clients may have different nets."""
        return "any" if self.abilities.any_architecture else "one"

    @property
    def taken(self) -> str:
        """The wrappers that it takes, in short."""
        refused = [word for word, why in self.wrappers.items() if why is not None]
        taken = [word for word, why in self.wrappers.items() if why is None]
        if len(refused) <= len(taken):
            return f"all but {', '.join(refused)}" if refused else "all"
        return ", ".join(taken) or "none"

    def facts(self) -> dict[str, str]:
        """What is told in tables, by column."""
        citation = self.citation
        return {
            "idea": self.idea,
            "published": citation.published if citation else "",
            "yields": self.yields,
            "nets": self.nets,
            "down": formula(citation.down) if citation else "?",
            "up": formula(citation.up) if citation else "?",
            "client keeps": formula(citation.state) if citation else "?",
            "compared in": ", ".join(citation.compared_in) if citation else "",
            "secure sum": "yes" if self.abilities.secure_sum else "no",
            "stacks": "no" if self.abilities.unstackable else "yes",
            "wrappers": self.taken,
        }


def entry(name: str) -> Entry:
    """What is told of one method. Raises `ConfigError` for an unknown name."""
    kind = METHODS.get(name)
    title, idea = _title(kind)
    return Entry(name, title, idea, kind.citation, abilities(kind), _Lazy(name))


def entries() -> Iterator[Entry]:
    """All registered methods, by name."""
    return map(entry, METHODS.names())


def meanings(options: type[BaseModel]) -> dict[str, str]:
    """What each option means, out of the docstring of the options: "key: meaning. other, third: meaning."."""
    if not options.model_fields:
        return {}
    text = " ".join((options.__doc__ or "").split())
    key = rf"(?:{'|'.join(map(re.escape, options.model_fields))})"
    starts = list(re.finditer(rf"(?:^|(?<=[.;:] ))({key}(?:, {key})*): ", text))
    ends = [found.start() for found in starts[1:]] + [len(text)]
    return {
        name: text[found.end() : end].strip()
        for found, end in zip(starts, ends, strict=False)
        for name in found[1].split(", ")
    }


def set_by(kind: type[Method], option: str) -> dict[str, Any]:
    """The presets that set an option, with their values."""
    return {name: values[option] for name, values in kind.presets.items() if option in values}


def own_choice(kind: type[Method]) -> str:
    """What is our own where no source says how, in the words of the method's text and options; "" for nothing."""
    text = inspect.cleandoc(kind.__doc__ or "")
    found = []
    for paragraph in (" ".join(part.split()) for part in text.split("\n\n")):
        marks = [paragraph.index(words) + len(words) for words in _OURS if words in paragraph]
        found += [paragraph[mark:].strip() for mark in marks[:1]]
        found += [] if marks else [sentence for sentence in _sentences(paragraph) if _OURS_WITHIN in sentence]
    for option, meaning in meanings(kind.Options).items():
        found += [f"{option}: {sentence}" for sentence in _sentences(meaning) if _OURS_WITHIN in sentence]
    return " ".join(found)


def _sentences(text: str) -> list[str]:
    return re.split(r"(?<=\.) ", text)


def _title(kind: type[Method]) -> tuple[str, str]:
    """Name and idea, out of the docstring's first sentence: "FedProx: a proximal pull to the weights received."."""
    first = " ".join(inspect.cleandoc(kind.__doc__ or "").split("\n\n")[0].split())
    title, colon, rest = first.partition(": ")
    sentence = re.split(r"\.(?: |$)", rest if colon else first)[0]
    return (title.split(",")[0], sentence) if colon else (kind.__name__, sentence)


class _Lazy(Mapping[str, "str | None"]):
    """`wrappers_of`, asked when somebody looks."""

    def __init__(self, name: str) -> None:
        self._name = name

    @functools.cached_property
    def _all(self) -> dict[str, str | None]:
        return wrappers_of(self._name)

    def __getitem__(self, wrapper: str) -> str | None:
        return self._all[wrapper]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)
