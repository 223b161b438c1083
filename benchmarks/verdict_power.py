"""How often the rule of differences is wrong among equal methods, and how often it sees a true difference.

    python -m benchmarks verdict-power   # write results/verdict_power.csv.gz again, ten minutes of one core

Tables of m methods and a baseline are drawn seed by seed. *Level*: share of tables with a false "ahead" or "behind"
where all methods are equal; bold: share in which one of the equal rows (ten at most) is not bold although another is.
*Power*: share of the truly better rows, a quarter of all, that are called ahead; `gain` is in standard deviations of a
single run of a typical method. Noise is normal or, for the limits of the rule, exponential. Spreads are equal, differ
by a factor of up to ten, or are 0.3 for the baseline and 3 for the methods. The tests use 999 directions rather than
9,999: they are as exact, and ten times as fast.
"""

import argparse
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks.data import RESULTS, read_rows, write_rows
from benchmarks.tables.words import markdown
from fedloom.results import difference

FILE = RESULTS / "verdict_power.csv.gz"
_STEP = 0.01
_BOLD_ROWS = 10
_Array = npt.NDArray[np.float64]


class Case(NamedTuple):
    """One kind of table: m methods, n seeds, a gain of a quarter of them, the noise and its spreads."""

    m: int
    n: int
    gain: float = 0.0
    noise: str = "normal"
    spreads: str = "equal"


CASES = (
    *(Case(m, n, spreads=spreads) for spreads in ("equal", "up to 10") for m in (5, 20, 40) for n in (3, 5, 10)),
    *(Case(m, 3, noise="exponential", spreads=spreads) for spreads in ("equal", "quiet baseline") for m in (1, 20)),
    *(Case(m, n, gain) for gain in (2.0, 5.0) for m in (5, 40) for n in (3, 5, 10)),
)


def draw(case: Case, rng: np.random.Generator) -> _Array:
    """Return one table: a line for each method, the baseline first, and a column for each seed."""
    shape = case.m + 1, case.n
    noise = rng.standard_normal(shape) if case.noise == "normal" else rng.standard_exponential(shape) - 1
    spreads = np.ones(case.m + 1)
    if case.spreads == "up to 10":
        spreads = 10 ** rng.uniform(-0.5, 0.5, case.m + 1)
    elif case.spreads == "quiet baseline":
        spreads = np.array([0.3, *[3.0] * case.m])
    table = noise * spreads[:, None]
    table[1 : 1 + -(-case.m // 4)] += case.gain
    return table


def measured(case: Case, tables: int) -> dict[str, Any]:
    """Return the shares of a case over drawn tables; its stream of random numbers is its own."""
    rng = np.random.default_rng(zlib.crc32(repr(case).encode()))
    wrong, unbold, seen, better = 0, 0, 0, -(-case.m // 4)
    for _ in range(tables):
        table = draw(case, rng)
        family = difference.compare_family((table[1:] - table[0]).tolist(), _STEP, points=1.0)
        words = [judged.word for judged in family]
        false = words[better:] if case.gain else words
        wrong += any(word in ("ahead", "behind") for word in false)
        seen += words[:better].count("ahead")
        if not case.gain and case.m > 1:
            rows = [dict(enumerate(row)) for row in table[:_BOLD_ROWS].tolist()]
            unbold += bool(difference.best_of(dict(enumerate(difference.rank_intervals(rows, _STEP)))))
    shares: dict[str, Any] = {**case._asdict(), "tables": tables, "wrong": round(wrong / tables, 3)}
    if case.gain:
        return shares | {"seen": round(seen / tables / better, 3)}
    return shares | ({"bold_wrong": round(unbold / tables, 3)} if case.m > 1 else {})


def tables() -> dict[str, str]:
    """Return the tables of the page that states the rule, by name."""
    rows = read_rows(FILE)
    level = [row for row in rows if not row.get("gain")]
    power = [row for row in rows if row.get("gain")]
    return {
        "verdict-level": markdown(
            ("noise", "spreads", "methods", "seeds", "a false word", "a wrong bold"), map(_level_line, level), "llrrrr"
        ),
        "verdict-power": markdown(("true gain, in std of a run", "methods", *_SEEDS), _power_lines(power), "lrrrr"),
    }


_SEEDS = ("3 seeds", "5 seeds", "10 seeds")


def _level_line(row: dict[str, Any]) -> list[object]:
    bold = f"{row['bold_wrong']:.3f}" if "bold_wrong" in row else "–"
    return [row["noise"], row["spreads"], row["m"], row["n"], f"{row['wrong']:.3f}", bold]


def _power_lines(rows: list[dict[str, Any]]) -> Iterator[list[object]]:
    for gain, m in dict.fromkeys((row["gain"], row["m"]) for row in rows):
        yield [f"{gain:g}", m, *(f"{row['seen']:.2f}" for row in rows if (row["gain"], row["m"]) == (gain, m))]


def main(arguments: list[str]) -> int:
    """Draw all cases and store their shares."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks verdict-power", description=__doc__)
    parser.add_argument("--tables", type=int, default=400, help="drawn tables of each case; a quarter for power")
    count = parser.parse_args(arguments).tables
    difference._DIRECTIONS = 999
    difference._directions.cache_clear()
    rows = []
    for case in CASES:
        rows.append(measured(case, count // 4 if case.gain else count))
        print(rows[-1], flush=True)
    write_rows(FILE, rows)
    return 0
