"""The best row of a setting, the rows that are not told apart from it, and differences from one row: by the one rule.

Needs no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from fedloom.core.errors import ConfigError, short_repr, suggest_name
from fedloom.results.difference import MIN_SEEDS, STEP, Difference, compare_family, paired_differences
from fedloom.results.paired import POOLED
from fedloom.results.table import Group
from fedloom.results.text import listed, seeds_text


def best_rows(
    groups: Sequence[Group], contexts: Sequence[str], values: Sequence[Sequence[float] | None], lower: bool = False
) -> set[int]:
    """Return the indices of the best group of each context, and of those that are not behind it.

    Nothing is best among fewer than two groups, and none with fewer than three seeds. Groups with a diverged run, those
    without values, and training on pooled data do not take part.

    Args:
        groups: the groups of runs.
        contexts: of each group, the setting and protocol in which methods compare.
        values: of each group, one value for each of its seeds; None where it has none.
        lower: whether the lowest mean is the best.
    """
    best: set[int] = set()
    for context in dict.fromkeys(contexts):
        members = [
            index
            for index, group in enumerate(groups)
            if contexts[index] == context and _takes_part(group) and values[index] is not None
        ]
        if len(members) < 2:
            continue
        leader = (min if lower else max)(members, key=lambda index: fmean(values[index] or ()))
        if groups[leader].row["n"] < MIN_SEEDS:
            continue
        others = [index for index in members if index != leader]
        worse = "ahead" if lower else "behind"
        outcomes = differences_from(groups, values, leader, others)
        best |= {leader, *(i for i, outcome in outcomes.items() if outcome.word not in (worse, "too few seeds"))}
    return best


def differences_from(
    groups: Sequence[Group], values: Sequence[Sequence[float] | None], reference: int, others: Sequence[int]
) -> dict[int, Difference]:
    """Compare groups with one of them, seed by seed, as one family; by index, without those that lack a common seed.

    Args:
        groups: groups of runs that differ in the seed only.
        values: of each group, one value for each seed; None if it lacks the measure.
        reference: index of the group to compare with.
        others: indices of the groups that are compared.
    """
    reference_values, reference_row = values[reference], groups[reference].row
    by_index: dict[int, list[float]] = {}
    for index in others:
        own_values, row = values[index], groups[index].row
        if own_values is not None and reference_values is not None:
            paired = paired_differences(row["seeds"], own_values, reference_row["seeds"], reference_values)
            if paired:
                by_index[index] = list(paired.values())
    step = reference_row["step"] if reference_values == reference_row["by_seed"] else STEP  # that of the accuracy
    return dict(zip(by_index, compare_family(list(by_index.values()), step), strict=True))


def differences_against(
    against: str,
    groups: Sequence[Group],
    methods: Sequence[str],
    contexts: Sequence[str],
    values: Sequence[Sequence[float] | None],
) -> dict[int, Difference]:
    """Compare the groups of each context with that of one method; by index, without diverged runs, and without training
    on pooled data, which is in no family.

    Args:
        against: the method's name, or that of its row.
        groups: the groups of runs.
        methods: the name of each group's row.
        contexts: of each group, the setting and protocol in which methods compare.
        values: of each group, one value for each of its seeds; None where it has none.

    Raises:
        ConfigError: if no group is of that method, all of these diverged, or several groups of one context are.
    """
    usable = [index for index, group in enumerate(groups) if not group.row["diverged"]]
    references = [index for index in usable if against in (methods[index], groups[index].row["method"])]
    if not references:
        raise ConfigError(f"--against {short_repr(against)}: {_why_no_reference(against, groups, methods)}")
    differences: dict[int, Difference] = {}
    for context in dict.fromkeys(contexts[reference] for reference in references):
        names = [methods[reference] for reference in references if contexts[reference] == context]
        if len(names) > 1:
            raise ConfigError(f"--against {short_repr(against)}: one setting has {listed(names)}; name one of them")
    for reference in references:
        alike = [index for index in usable if index != reference and contexts[index] == contexts[reference]]
        others = [index for index in alike if groups[index].row["method"] != POOLED]
        differences |= differences_from(groups, values, reference, others)
    return differences


def _why_no_reference(against: str, groups: Sequence[Group], methods: Sequence[str]) -> str:
    rows = [
        group.row for group, method in zip(groups, methods, strict=True) if against in (method, group.row["method"])
    ]
    if not rows:
        return f"no finished row of it; {suggest_name(against, set(methods))}"
    seeds = sorted({seed for row in rows for seed in row["diverged"]})
    return f"it diverged with {seeds_text(seeds)}, so nothing is compared with it; name another method"


def _takes_part(group: Group) -> bool:
    return not group.row["diverged"] and group.row["method"] != POOLED
