"""Numbers for people: percent, bytes, seconds. Needs neither torch nor matplotlib."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_BYTES = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1.0))
_SECONDS = (("h", 3600.0), ("min", 60.0), ("s", 1.0))


def percent(share: float) -> str:
    """Return a share in [0, 1] as percent with one decimal, without the sign: 0.9824 -> "98.2"."""
    return f"{100 * share:.1f}"


def plus_minus(mean: float, std: float | None) -> str:
    """Return mean and sample std, shares in [0, 1], in percent: "98.2 ± 0.2"; the mean alone if std is None."""
    return percent(mean) if std is None else f"{percent(mean)} ± {percent(std)}"


def bytes_text(value: float, like: float | None = None) -> str:
    """Return bytes with a decimal unit: 8385200 -> "8.39 MB".

    Args:
        value: number of bytes.
        like: another value whose unit and decimals to use.
    """
    return _with_unit(value, like, _BYTES)


def seconds_text(value: float, like: float | None = None) -> str:
    """Return seconds, minutes or hours: 1.798 -> "1.80 s", 754 -> "12.6 min".

    Args:
        value: seconds.
        like: as in `bytes_text`.
    """
    return _with_unit(value, like, _SECONDS)


def _with_unit(value: float, like: float | None, units: Sequence[tuple[str, float]]) -> str:
    if value == 0:
        return f"0 {units[-1][0]}"
    # In the unit of a much larger value it would read 0.0, so it keeps its own.
    scale = value if like is None or value < like / 100 else like
    unit, size = next((u for u in units if scale >= u[1]), units[-1])
    shown = scale / size
    decimals = 0 if unit == "B" or shown >= 99.95 else 1 if shown >= 9.995 else 2
    return f"{value / size:,.{decimals}f} {unit}"


def listed(words: Iterable[object]) -> str:
    """Join words to a list in a sentence: "a", "a and b", "a, b and c"."""
    texts = [str(word) for word in words]
    return " and ".join(filter(None, (", ".join(texts[:-1]), *texts[-1:])))


def counted(n: int, noun: str) -> str:
    """Return a number with its noun: "1 seed", "3 seeds"."""
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def counts_text(counts: Iterable[int]) -> str:
    """Return whole numbers as one or as their range: "36", "34 to 38"."""
    ordered = sorted(set(counts))
    return f"{ordered[0]:,}" if len(ordered) == 1 else f"{ordered[0]:,} to {ordered[-1]:,}"


def seed_counts_text(counts: Iterable[int]) -> str:
    """Return how many seeds several means are over: "3 seeds", "3 to 5 seeds"."""
    text = counts_text(counts)
    return f"{text} {'seed' if text == '1' else 'seeds'}"


def seeds_text(seeds: Sequence[int]) -> str:
    """Return seeds with their noun: "seed 0", "seeds 0, 1 and 2"."""
    return f"{'seed' if len(seeds) == 1 else 'seeds'} {listed(seeds)}"


def seeds_share(defined: int, seeds: int) -> str:
    """Return how many seeds a mean is over, to follow it: " (2 of 3 seeds)"; empty if it is over all of them."""
    return "" if defined == seeds else f" ({defined} of {counted(seeds, 'seed')})"
