"""The facts that `sources.yaml` states of each method, and of the five papers that compare methods."""

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import yaml

Formula = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Citation:
    """The source of a method, and its traffic for one client and round.

    Attributes:
        source: authors, venue and year, then an arXiv number, a DOI or an address, in one line: "Li et al., MLSys 2020,
            arXiv 1812.06127". Empty for a method without a paper.
        traffic: tensors that a client receives, sends and keeps, each a sum of `traffic_symbols` as "2 P - BN + H",
            without scalars; empty for none.
        compared_in: the papers of fedskc, fedsc, feddw, fedco2 and fedssa that compare with it.
        code: the released code that `authors` follows, as owner/name at a commit.
        our_choice, departures, released_code: in sentences: decisions that no source states; deliberate differences
            from the printed equations; differences of the released code from the paper.
    """

    source: str
    traffic: tuple[str, str, str] = ("P", "P", "")
    compared_in: tuple[str, ...] = ()
    code: str | None = None
    our_choice: str = ""
    departures: str = ""
    released_code: str = ""

    @property
    def down(self) -> Formula:
        """Tensors that the client receives, as {symbol: how many}."""
        return _parsed(self.traffic[0])

    @property
    def up(self) -> Formula:
        """Tensors that the client sends."""
        return _parsed(self.traffic[1])

    @property
    def state(self) -> Formula:
        """Tensors that the client keeps."""
        return _parsed(self.traffic[2])

    @property
    def published(self) -> str:
        """Venue and year, e.g. "MLSys 2020"; empty without a paper."""
        return next(filter(re.compile(r".+ (19|20)\d\d").fullmatch, self.source.split(", ")), "")


@functools.cache
def _listed() -> dict[str, dict[str, dict[str, Any]]]:
    text = (files("fedloom.methods") / "sources.yaml").read_text(encoding="utf-8")
    listed: dict[str, dict[str, dict[str, Any]]] = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return listed


def traffic_symbols() -> Mapping[str, str]:
    """Return the tensors that a term of a traffic formula counts, by symbol."""
    symbols: Mapping[str, Any] = _listed()["symbols"]
    return symbols


def papers() -> dict[str, dict[str, Any]]:
    """Return the papers that compare methods, with their `settings` for all, and the methods that each `compares`."""
    return _listed()["papers"]


def compared_in(name: str) -> tuple[str, ...]:
    """Return the papers that compare with the library's method `name`."""
    return tuple(paper for paper, stated in papers().items() if name in stated["compares"].split())


def entry_of(name: str) -> dict[str, Any]:
    """Return the entry of the library's method `name`; empty for a plug-in."""
    return _listed()["methods"].get(name, {})


class ListedCitation:
    """The `citation` of the library's own methods, from `sources.yaml`; None for a method that is not in it."""

    def __get__(self, method: object, kind: Any) -> Citation | None:
        name = kind.name().partition("+")[0]
        cited = {key: value for key, value in entry_of(name).items() if key not in ("presets", "settings")}
        return Citation(**cited, compared_in=compared_in(name)) if cited else None


@functools.cache
def _parsed(text: str) -> Formula:
    terms = re.findall(r"(?:(?:^|([+-]) )(?:(\d+) )?(\D+?))(?= [+-] |$)", text)
    return {name: (-1 if sign == "-" else 1) * int(count or 1) for sign, count, name in terms}


def formula(terms: Formula) -> str:
    """Write a formula in words: "2 P + Cd", "P - BN"; "nothing" without terms."""
    text = "".join(
        f" {'-' if count < 0 else '+'} {name if abs(count) == 1 else f'{abs(count):g} {name}'}"
        for name, count in terms.items()
    )
    return text.removeprefix(" + ") or "nothing"


def training(local_epochs: int | None = None, batch_size: int | None = None, **optimizer: Any) -> dict[str, Any]:
    """Return an entry of `Method.settings`: how a source trains, with the keys of `optimizer` by name."""
    passes = {"local_epochs": local_epochs, "batch_size": batch_size}
    return {"optimizer": optimizer, **{name: value for name, value in passes.items() if value is not None}}
