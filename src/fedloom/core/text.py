"""Text for people: numbers with their units, counted nouns, lists, lists by key. Needs neither torch nor matplotlib.

Shares in [0, 1] are stored as such and printed in percent; all other measures are printed as they are stored."""

import re
from collections.abc import Callable, Iterable, Sequence
from importlib.resources import files
from typing import Any, NamedTuple, TypeVar

K = TypeVar("K")
V = TypeVar("V")

ALPHA = 0.05  # chance of a false word in a family of comparisons
MARGIN = 1.0  # of equivalence, in points
BASELINE = "fedavg"  # with which methods are compared
_BYTES = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1.0))
_SECONDS = (("h", 3600.0), ("min", 60.0), ("s", 1.0))


def split_names(names: str | Iterable[str]) -> tuple[str, ...]:
    """Return names that may be written as one text with commas.

    >>> split_names("accuracy, auroc")
    ('accuracy', 'auroc')
    """
    parts = names.split(",") if isinstance(names, str) else names
    return tuple(name.strip() for name in parts if name.strip())


def render_template(package: str, name: str, in_text: Callable[[Any], Any] | None = None, /, **values: object) -> str:
    """Render the template `name` in a package's folder `templates`. in_text: how values become text, e.g. escaped.
    Raises `jinja2.UndefinedError` for a value that is missing."""
    from jinja2 import Environment, StrictUndefined  # not needed by most commands

    kept: dict[str, Any] = {"trim_blocks": True, "lstrip_blocks": True, "keep_trailing_newline": True}
    environment = Environment(finalize=in_text, undefined=StrictUndefined, **kept)
    text = (files(package) / "templates" / name).read_text(encoding="utf-8")
    return environment.from_string(text).render(values)


def percent(share: float) -> str:
    """Return a share in [0, 1] as percent with one decimal, without the sign: 0.9824 -> "98.2"."""
    return f"{100 * share:.1f}"


def plus_minus(mean: float, std: float | None) -> str:
    """Return mean and sample std, shares in [0, 1], in percent: "98.2 ± 0.2"; the mean alone if std is None."""
    return percent(mean) if std is None else f"{percent(mean)} ± {percent(std)}"


def bytes_text(value: float, like: float | None = None) -> str:
    """Return bytes with a decimal unit, 8385200 -> "8.39 MB", in the unit and decimals of the value `like`."""
    return _with_unit(value, like, _BYTES)


def seconds_text(value: float, like: float | None = None) -> str:
    """Return seconds, minutes or hours: 1.798 -> "1.80 s", 754 -> "12.6 min". like: as in `bytes_text`."""
    return _with_unit(value, like, _SECONDS)


def _with_unit(value: float, like: float | None, units: Sequence[tuple[str, float]]) -> str:
    if value == 0:
        return f"0 {units[-1][0]}"
    # In the unit of a much larger value it would read 0.0, so it keeps its own.
    scale = value if like is None or value < like / 100 else like
    unit, size = next((u for u in units if scale >= u[1]), units[-1])
    shown = scale / size
    # Three significant digits; 9.995 and 99.95 are where rounding adds one before the point.
    decimals = 0 if unit == "B" or shown >= 99.95 else 1 if shown >= 9.995 else 2
    return f"{value / size:,.{decimals}f} {unit}"


def listed(words: Iterable[object]) -> str:
    """Join words to a list in a sentence: "a", "a and b", "a, b and c"."""
    texts = [str(word) for word in words]
    return " and ".join(filter(None, (", ".join(texts[:-1]), *texts[-1:])))


def lists_by_key(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """Return the values of `pairs` in a list for each key, keys and values in the order of the pairs."""
    lists: dict[K, list[V]] = {}
    for key, value in pairs:
        lists.setdefault(key, []).append(value)
    return lists


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


SHARES = frozenset(
    (
        *("accuracy", "best_val", "balanced_accuracy", "macro_f1", "weighted_f1", "precision", "recall", "auroc"),
        *("average_precision", "f1", "ece", "adaptive_ece", "attack_success", "majority", "majority_global"),
        *("majority_own", "worst10", "domain_accuracy", "accuracy_by_sample", "sensitivity", "specificity", "ppv"),
        *("npv", "recall_all", "precision_all", "macro_f1_all", "micro_f1", "micro_precision", "micro_recall"),
        *("exact_match", "hamming"),
        *("decision_sensitivity", "decision_specificity", "decision_ppv", "decision_npv"),
    )
)
NATS = frozenset(("loss", "nll"))
LOWER_IS_BETTER = frozenset(("loss", "nll", "ece", "adaptive_ece", "brier", "attack_success"))


def higher_is_better(measure: str) -> bool | None:
    """Return whether the highest value of a measure is the best; None for a custom one."""
    name = _base(measure)
    return False if name in LOWER_IS_BETTER else True if name in SHARES or name == "mcc" else None


def is_share(measure: str) -> bool:
    """Whether a measure, also of one predictor, such as "accuracy/online", is a share in [0, 1]."""
    return _base(measure) in SHARES


def _base(measure: str) -> str:
    """The name of a measure without its predictor and its condition: "sensitivity@specificity=0.95/online"."""
    return measure.partition("/")[0].partition("@")[0]


def unit(measure: str) -> str:
    """Return the unit in which people read a measure: "%", "nats", or "" for a plain number."""
    return "%" if is_share(measure) else "nats" if measure.partition("/")[0] in NATS else ""


def with_unit(measure: str) -> str:
    """Return a measure with its unit, for a heading: "auroc %"."""
    return f"{measure} {unit(measure)}".rstrip()


def number_text(measure: str, value: float, decimals: int = 1) -> str:
    """Return a value in the unit of its measure, without the unit: number_text("auroc", 0.9774) -> "97.7". `decimals`
    are those of a percentage; plain numbers have two more."""
    return f"{100 * value:.{decimals}f}" if is_share(measure) else f"{value:.{decimals + 2}f}"


def value_text(measure: str, value: float | None, decimals: int = 2) -> str:
    """Return the value of a measure with its unit, "97.74 %"; a dash for None. decimals: as in `number_text`."""
    return "–" if value is None else f"{number_text(measure, value, decimals)} {unit(measure)}".rstrip()


def flat(values: dict[str, Any], prefix: str = "") -> Iterable[tuple[str, str]]:
    """Yield the values of nested mappings as text, each with its path, e.g. "scenario.alpha"."""
    for key, value in values.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", str(value)


def distinct_notes(notes: Iterable[str]) -> list[str]:
    """Drop notes that differ from an earlier one in numbers only, because each seed measures its own."""
    first: dict[str, str] = {}
    for note in notes:
        first.setdefault(re.sub(r"\d[\d.,e+-]*", "#", note), note)
    return list(first.values())


class Criterion(NamedTuple):
    """The measure that selects a round. sign: 1 if the highest value is the best, -1 if the lowest is."""

    name: str = "accuracy"
    sign: int = 1

    def best(self, rounds: Sequence[int], values: Sequence[float]) -> int | None:
        """Return the round of the best value, the earliest of equal ones; None without a value that is no NaN."""
        scored = [(self.sign * value, -round_) for round_, value in zip(rounds, values, strict=True) if value == value]
        return -max(scored)[1] if scored else None


ACCURACY = Criterion()
