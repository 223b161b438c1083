"""The description of a method for lists and pages: all of it comes from the method's own code and text."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fedloom.methods.catalogue.abilities import Abilities, abilities, batch_norm_refusal, wrappers_of
from fedloom.methods.contract.citation import Citation, formula
from fedloom.methods.contract.method import METHODS, Method

_OUR_CHOICE = "our choice"  # in the description of an option


@dataclass(frozen=True, slots=True)
class Entry:
    """The description of one method. wrappers: by name, why the method refuses it; None if it accepts it."""

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
    def accepted_wrappers(self) -> str:
        """The wrappers that it accepts, in short, with those that it accepts only on nets without batch norm."""
        refused = [word for word, why in self.wrappers.items() if why is not None]
        accepted = [word for word, why in self.wrappers.items() if why is None]
        without_norm = ", ".join(self.without_batch_norm)
        condition = f" ({without_norm}: only nets without batch norm)" if without_norm else ""
        if len(refused) <= len(accepted):
            return (f"all but {', '.join(refused)}" if refused else "all") + condition
        return (", ".join(accepted) or "none") + condition

    @property
    def without_batch_norm(self) -> dict[str, str]:
        """The wrappers that it accepts only on nets without batch norm, with the reason."""
        reasons = {word: batch_norm_refusal(self.name, word) for word, why in self.wrappers.items() if why is None}
        return {word: reason for word, reason in reasons.items() if reason is not None}

    def facts(self) -> dict[str, str]:
        """Return the cells of tables, by column."""
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
            "wrappers": self.accepted_wrappers,
        }


def entry(name: str) -> Entry:
    """Describe one method. Raises `ConfigError` for an unknown name."""
    kind = METHODS.get(name)
    title, idea = _title(kind)
    return Entry(name, title, idea, kind.citation, abilities(kind), _Lazy(name))


def entries() -> Iterator[Entry]:
    """Describe all registered methods, by name."""
    return map(entry, METHODS.names())


def set_by(kind: type[Method], option: str) -> dict[str, Any]:
    """The presets that set an option, with their values."""
    return {name: values[option] for name, values in kind.presets.items() if option in values}


def our_choices(kind: type[Method]) -> str:
    """The decisions that no source states: those of the method, and those of its options. Empty for none."""
    options = {name: field.description or "" for name, field in kind.Options.model_fields.items()}
    sentences = [f"{name}: {text}" for name, text in options.items() if _OUR_CHOICE in text]
    return " ".join(filter(None, [kind.citation.our_choice if kind.citation else "", *sentences]))


def _title(kind: type[Method]) -> tuple[str, str]:
    """Name and idea, out of the docstring's first sentence: "FedProx: a proximal pull to the weights received."."""
    first = " ".join(inspect.cleandoc(kind.__doc__ or "").split("\n\n")[0].split())
    title, colon, rest = first.partition(": ")
    sentence = re.split(r"\.(?: |$)", rest if colon else first)[0]
    return (title.split(",")[0], sentence) if colon else (kind.__name__, sentence)


class _Lazy(Mapping[str, "str | None"]):
    """The result of `wrappers_of`, computed when it is first read."""

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
