"""The ratios that we asked for, and how the measured ones compare: misses stay in the table."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

LINEAR = ("mlp", "logistic", "mlp-sizes", "logistic-sizes")
EVERYTHING = ("cnn", "fashion", *LINEAR)


@dataclass(frozen=True)
class Peer:
    """A contestant with a separate process and environment."""

    module: str
    environment: str  # the option that names its Python
    package: str  # that it must be able to import
    takes: tuple[str, ...]  # workloads


PEERS = {
    "flower": Peer("with_flower", "peers", "flwr", EVERYTHING),
    "pfl": Peer("with_pfl", "peers", "pfl", EVERYTHING),
    "fedjax": Peer("with_fedjax", "fedjax", "fedjax", LINEAR),
    "fluke": Peer("with_fluke", "fluke", "fluke", EVERYTHING),
}


@dataclass(frozen=True)
class Bound:
    """A number of a part, and the least value that we asked for; with `most` the largest."""

    part: str
    figure: str
    value: float
    most: bool = False

    def judged(self, results: Mapping[str, Any]) -> dict[str, Any]:
        """Return the number and its bound: MET, MISSED, or why it was not measured."""
        part = results.get(self.part, {})
        seen = part.get("figures", {}).get(self.figure)
        row = {"figure": f"{self.part}: {self.figure}", "bound": f"{'<=' if self.most else '>='} {self.value:g}"}
        if seen is None:
            peer_name = self.figure.partition(" / ")[2]
            return row | {"seen": None, "verdict": part.get("left out", {}).get(peer_name, "not measured")}
        holds = seen <= self.value if self.most else seen >= self.value
        return row | {
            "seen": seen,
            "range": part.get("ranges", {}).get(self.figure),
            "verdict": "MET" if holds else "MISSED",
        }


METHODS = ("fedskc", "feddw", "fedsc", "fedco2", "fedssa")
WHOLE_RUNS = ("cnn", "fashion", "mlp-sizes", "logistic-sizes")
LOADS = ("idle", "a core busy")
# Of the speed of the default engine over that of each peer.
_OVER_PEERS = {"cnn": 2.0, "fashion": 2.0, "mlp": 1.0, "logistic": 1.0, "mlp-sizes": 1.3, "logistic-sizes": 1.3}
_OVER_FEDJAX = {"mlp": 1.8, "logistic": 1.8, "mlp-sizes": 2.0, "logistic-sizes": 2.0}
_OWN_KERNELS = {"cnn": 3.0, "fashion": 4.0}
FORMER = "default / former default"
BOUNDS = [
    Bound("no-op", "ms a client, 10 parameters", 0.3, most=True),
    Bound("no-op", "ms a client, 500000 parameters", 1.5, most=True),
    *(
        Bound(part, f"auto / {who}", _OVER_FEDJAX[part] if who == "fedjax" else _OVER_PEERS[part])
        for part in _OVER_PEERS
        for who, peer in PEERS.items()
        if part in peer.takes
    ),
    *(
        Bound(part, f"auto, own kernels / {who}", bound)
        for part, bound in _OWN_KERNELS.items()
        for who, peer in PEERS.items()
        if part in peer.takes
    ),
    *(Bound("methods", f"{method}: {FORMER}", 1.6) for method in METHODS),
    Bound("short-runs", f"50 rounds: {FORMER}", 2.0),
    Bound("short-runs", f"10 rounds: {FORMER}", 1.0),
    Bound("every-round", FORMER, 1.3),
    Bound("every-round", f"{FORMER}, own kernels", 1.5),
    Bound("every-round", "share of tests", 0.2, most=True),
    *(Bound(part, "serial / plain loop", 0.97) for part in ("resnet8", "resnet10")),
    *(Bound("auto", f"{name}, {load}", 1.1, most=True) for name in WHOLE_RUNS for load in LOADS),
    Bound("evaluation", "2 processes / serial", 1.7),
    Bound("scale", "1,000,000 / 1,000", 1.1, most=True),
]


def table(results: Mapping[str, Any]) -> str:
    """Return the bounds and the measured ratios as text."""
    lines = [f"\n{'asked for':52s}{'bound':>10s}{'measured':>10s}"]
    for row in (bound.judged(results) for bound in BOUNDS):
        seen = "" if row["seen"] is None else f"{row['seen']:.3f}"
        lines.append(f"{row['figure']:52s}{row['bound']:>10s}{seen:>10s}  {row['verdict']}{range_of(row)}")
    return "\n".join(lines)


def range_of(row: Mapping[str, Any]) -> str:
    """Return the range of a judged number over the turns in brackets; empty where none was kept."""
    return "" if not row.get("range") else " ({:g} to {:g})".format(*row["range"])
