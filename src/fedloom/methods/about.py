"""What tables and pages say of a method: its source, what it yields, what travels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

# What a term of a traffic formula counts, in float32 numbers unless said otherwise.
SYMBOLS: Mapping[str, str] = {
    "P": "all entries of the net, buffers included",
    "W": "the trained entries of the net, without buffers",
    "B": "the body's entries",
    "H": "the head's entries",
    "Q": "entries that the method trains beside the net, or of its second net",
    "Cd": "a row of d features for each class",
    "CC": "a row of C outputs for each class",
    "C": "a number for each class",
    "mask": "a bit for each class, as a byte",
    "counts": "a count for each class, in int64",
    "X": "what the method's page says, because it is neither of these",
}

Formula = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class About:
    """Facts of a method's source, and its traffic for one client and round.

    authors, venue, year, paper: where it was published; paper is an arXiv number, a DOI or an address.
    down, up: tensors that the client receives and sends, as {symbol of `SYMBOLS`: how many}. Scalars are not counted.
    state: what a client keeps, in the same form; empty if nothing.
    compared_in: the papers of fedskc, fedsc, feddw, fedco2 and fedssa that compare with it.
    code: the released code that `authors` follows, as owner/name at a commit; None where there is none, or none read.
    """

    authors: str
    venue: str
    year: int
    paper: str
    down: Formula
    up: Formula
    state: Formula = field(default_factory=dict)
    compared_in: tuple[str, ...] = ()
    code: str | None = None

    @property
    def source(self) -> str:
        """In one line, e.g. "Li et al., MLSys 2020, 1812.06127"."""
        return f"{self.authors}, {self.venue} {self.year}, {self.paper}"


def formula(terms: Formula) -> str:
    """A formula in words: "2 P + Cd"; "nothing" for no term."""
    told = [name if count == 1 else f"{count:g} {name}" for name, count in terms.items()]
    return " + ".join(told) or "nothing"
