"""The source of a method and its traffic, for tables and pages, and how the five papers train all methods."""

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# Tensors that a term of a traffic formula counts, in float32 numbers unless said otherwise; batch norm's counters are
# int64. Of a table of classes only the rows of classes that are held travel.
SYMBOLS: Mapping[str, str] = {
    "P": "all entries of the net, buffers included",
    "W": "the trained entries of the net, without buffers",
    "B": "the body's entries",
    "BN": "batch norm's entries: scale, shift, running statistics and counter",
    "H": "the head's entries",
    "Q": "entries that the method adds to the net, or of its second net",
    "d": "a row of d features",
    "Cd": "a row of d features for each class",
    "CC": "a row of C outputs for each class",
    "CH": "a row of the head, weights and bias, for each class",
    "Jd": "a row of d features for each prototype, several for some classes, and as many masks as a class has at most",
    "KCd": "a row of d features for each class and each of the K clients that have sent any, and K masks",
    "mCd": "a row of d features for each class and each of the m participants of the last round",
    "map": "a linear map with bias from the features of two nets to those of the first",
    "public": "the server's public inputs, as networks see them",
    "outputs": "a row of C outputs for each public input",
    "all Cd": "a row of d features for each class, held or not",
    "dd": "a matrix of d times d numbers",
    "shares": "a number for each class",
    "betas": "two numbers",
    "vectors": "a guiding vector of C or d numbers for each class, held or not",
    "study": "a guiding vector for each class of one batch",
    "MP": "all entries of the net for each of the M other clients whose models the client receives",
    "weights": "a number for each client",
    "centre": "a number for each end of a simplex",
    "foreign": "the classifiers of all other clients, N - 1 times the head's entries",
    "mask": "a bit for each class, as a byte",
    "masks": "m masks, one for each participant of the last round",
    "number": "one number in float64, which the server averages",
    "counts": "a count for each class, in int64",
    "X": "described on the method's page, because it is none of these",
}

Formula = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Citation:
    """The source of a method, and its traffic for one client and round.

    Attributes:
        source: authors, venue and year, then an arXiv number, a DOI or an address, in one line: "Li et al., MLSys 2020,
            arXiv 1812.06127". Empty for a method without a paper.
        traffic: tensors that a client receives, sends and keeps, each a sum of `SYMBOLS` as "2 P - BN + H", without
            scalars; empty for none.
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


# Local optimiser, epochs and batch size that the papers state for every method that they run, from their sections on
# experiments; FedDW's epochs are those of "Baseline1" in its Table II. A paper that gives SGD and no momentum has none
# here. A key is missing where a paper states nothing or searches: Fed-CO2 states no epochs and has other batches for
# each kind of skew; FedSSA searches both.
PAPERS: Mapping[str, Mapping[str, Any]] = {
    "fedskc": training(10, 64, name="sgd", lr=0.01, momentum=0.0),
    "fedsc": training(10, 64, name="sgd", lr=0.01, momentum=0.9, weight_decay=1e-5),
    "feddw": training(5, 128, name="adam", lr=0.001),
    "fedco2": training(name="sgd", lr=0.01, momentum=0.0),
    "fedssa": training(name="sgd", lr=0.01, momentum=0.0),
}
