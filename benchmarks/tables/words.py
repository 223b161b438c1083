"""Names, means and differences, as every table shows them."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from math import isfinite
from statistics import fmean
from typing import Any

from fedloom.methods.catalogue import entries
from fedloom.results import table
from fedloom.results.difference import Difference, compare_family, paired_differences
from fedloom.results.group import mean_std

FIVE = ("fedskc", "feddw", "fedsc", "fedco2", "fedssa")
PLAIN = {"fedavg": "FedAvg", "local": "Local, own models"}
DIVERGED = "diverged"  # in the place of a difference
Measured = tuple[Sequence[int], Sequence[float]]  # seeds, and one accuracy for each


def markdown(headers: Sequence[str], rows: Iterable[Sequence[object]], align: str = "") -> str:
    """Return a table. align: one letter per column, "r" for the right; the rest is left as the page has it."""
    rules = ["---:" if letter == "r" else "---" for letter in align.ljust(len(headers))]
    lines = [headers, *rows]
    text = [f"| {' | '.join(map(str, cells))} |" for cells in lines]
    return "\n".join([text[0], f"|{'|'.join(rules)}|", *text[1:]])


def has_diverged(cell: Mapping[str, Any]) -> bool:
    """Whether a run of the row diverged. It is neither ranked nor compared then, as in the library's own tables."""
    return table.has_diverged({"degenerate": cell["warnings"]})


def shown(cell: Mapping[str, Any] | None, key: str = "accuracies") -> str:
    """Return the mean of a row in percent, and whether it diverged; a dash for a row that was not measured."""
    if cell is None:
        return "–"
    return f"{percent(cell[key])}, {DIVERGED}" if has_diverged(cell) else percent(cell[key])


def percent(values: Sequence[float | None]) -> str:
    """Return mean ± sample standard deviation of shares, in percent; a dash if one of them is undefined."""
    shares = [value for value in values if value is not None and isfinite(value)]
    if len(shares) < len(values):
        return "–"
    mean, std = mean_std(shares)
    return f"{100 * mean:.1f} ± {100 * (std or 0):.1f}"


def worst(cell: Mapping[str, Any]) -> str:
    """Return the mean accuracy of the worst tenth of the clients, in percent."""
    return "–" if cell["worst"] is None else f"{100 * cell['worst']:.1f}"


def mean_accuracy(cell: Mapping[str, Any]) -> float:
    """Return the mean test accuracy over the seeds."""
    return mean_std(cell["accuracies"])[0]


def in_words(difference: Difference) -> str:
    """Return a difference in points with the word of the rule, e.g. "+2.1, undecided (needs about 7 seeds)"."""
    return f"{100 * difference.mean:+.1f}, {difference.verdict}"


def judged(rows: Mapping[str, Measured], baseline: Measured, added: Collection[str] = ()) -> dict[str, Difference]:
    """Return the difference of each row from a baseline over their common seeds.

    Args:
        rows: seeds and accuracies in [0, 1] of each method of one setting and protocol, by label.
        baseline: those of the method with which they are compared.
        added: the rows of a later study, which are a family of the rule apart from the others.
    """
    found = {}
    for later in (False, True):
        by_row = {
            label: list(paired_differences(*row, *baseline).values())
            for label, row in rows.items()
            if (label in added) == later
        }
        found |= dict(zip(by_row, compare_family(list(by_row.values())), strict=True))
    return {label: found[label] for label in rows}


def against(ours: Sequence[float], theirs: Sequence[float]) -> str:
    """Return the mean difference of two methods over equal seeds in points, and the seeds on which ours is higher."""
    differences = [100 * (our - their) for our, their in zip(ours, theirs, strict=True)]
    higher = sum(difference > 0 for difference in differences)
    return f"{fmean(differences):+.1f}, higher on {higher} of {len(differences)}"


def option_text(value: Any) -> str:
    """Return an option's value as one writes it in a config."""
    return str(list(value)) if isinstance(value, list | tuple) else str(value)


@cache
def titles() -> dict[str, str]:
    """Return by name how papers write a method's."""
    return {entry.name: entry.title for entry in entries()}


def display_name(label: str, cell: Mapping[str, Any]) -> str:
    """Return a method as papers write it, with what its row adds in brackets, e.g. FedDW (paper)."""
    method, *wrappers = cell["method"].split("+")
    title = "+".join([titles().get(method, method), *wrappers])
    variant = label.removesuffix("".join(f"+{wrapper}" for wrapper in wrappers)).removeprefix(method).strip("-")
    return f"{title} ({variant})" if variant else title
