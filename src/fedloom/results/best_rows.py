"""The best row of a setting, the rows that are not told apart from it, and differences from one row: by the one rule.

Needs no torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean

from fedloom.core.errors import ConfigError, short_repr, suggest_name
from fedloom.core.text import listed, seeds_text
from fedloom.results.comparability import same_runs
from fedloom.results.difference import MIN_SEEDS, STEP, Difference, paired_differences
from fedloom.results.group import Group
from fedloom.results.paired import POOLED, compare_rows


def best_rows(
    groups: Sequence[Group], contexts: Sequence[str], values: Sequence[Sequence[float] | None], lower: bool = False
) -> set[int]:
    """Return the indices of the best group of each context, and of those that are not behind it.

    The best is chosen among the groups that have three seeds in common with another one of their context; nothing is
    best without such a pair. Groups with a diverged run, those without values, and training on pooled data do not take
    part.

    Args:
        groups: the groups of runs.
        contexts: of each group, the setting and protocol in which methods compare.
        values: of each group, one value for each of its seeds; None where it has none.
        lower: whether the lowest mean is the best.
    """
    best: set[int] = set()
    worse = "ahead" if lower else "behind"
    for leader, members in _leaders(groups, contexts, values, lower):
        if leader is None:
            continue
        outcomes = differences_from(groups, values, leader, members)
        best |= {index for index, outcome in outcomes.items() if outcome.word not in (worse, "too few seeds")}
        best |= {index for index in members if same_runs(groups[index].row, groups[leader].row)}
    return best


def untested_rows(
    groups: Sequence[Group], contexts: Sequence[str], values: Sequence[Sequence[float] | None], lower: bool = False
) -> set[int]:
    """Return the indices of the groups that have fewer than three seeds in common with the best one of their context.

    Args:
        groups: as in `best_rows`.
        contexts: as in `best_rows`.
        values: as in `best_rows`.
        lower: as in `best_rows`.
    """
    return {
        index
        for leader, members in _leaders(groups, contexts, values, lower)
        for index in members
        if leader is not None and not same_runs(groups[index].row, groups[leader].row)
        if not _testable(groups, index, leader)
    }


def _leaders(
    groups: Sequence[Group], contexts: Sequence[str], values: Sequence[Sequence[float] | None], lower: bool
) -> Iterator[tuple[int | None, list[int]]]:
    """Yield the best group of each context, None without one, and the groups that take part there."""
    for context in dict.fromkeys(contexts):
        members = [
            index
            for index, group in enumerate(groups)
            if contexts[index] == context and _takes_part(group) and values[index] is not None
        ]
        candidates = [index for index in members if any(_testable(groups, index, other) for other in members)]
        means = {index: fmean(values[index] or ()) for index in candidates}
        yield (min if lower else max)(means, key=means.__getitem__, default=None), members


def _testable(groups: Sequence[Group], index: int, other: int) -> bool:
    """Whether two groups are of different runs with the common seeds that a comparison needs."""
    row, other_row = groups[index].row, groups[other].row
    return len({*row["seeds"]} & {*other_row["seeds"]}) >= MIN_SEEDS and not same_runs(row, other_row)


def differences_from(
    groups: Sequence[Group], values: Sequence[Sequence[float] | None], reference: int, others: Sequence[int]
) -> dict[int, Difference]:
    """Compare groups with one of them, seed by seed, as one family; by index, without those that lack a common seed,
    and without its own runs under another name.

    Args:
        groups: groups of runs that differ in the seed only.
        values: of each group, one value for each seed; None if it lacks the measure.
        reference: index of the group to compare with.
        others: indices of the groups that are compared; the reference itself does not count.
    """
    reference_values, reference_row = values[reference], groups[reference].row
    by_index: dict[int, list[float]] = {}
    for index in others:
        own_values, row = values[index], groups[index].row
        if own_values is not None and reference_values is not None and not same_runs(row, reference_row):
            paired = paired_differences(row["seeds"], own_values, reference_row["seeds"], reference_values)
            if paired:
                by_index[index] = list(paired.values())
    step = reference_row["step"] if reference_values == reference_row["by_seed"] else STEP  # that of the accuracy
    outcomes = compare_rows([groups[index].row for index in by_index], list(by_index.values()), step)
    return dict(zip(by_index, outcomes, strict=True))


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
    references = _references(against, groups, methods, contexts)
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


def _references(against: str, groups: Sequence[Group], methods: Sequence[str], contexts: Sequence[str]) -> list[int]:
    """Return the groups of a method that did not diverge; of those of equal runs in one context the first."""
    references: list[int] = []
    for index, group in enumerate(groups):
        alike = (groups[other].row for other in references if contexts[other] == contexts[index])
        if against not in (methods[index], group.row["method"]) or group.row["diverged"]:
            continue
        if not any(same_runs(group.row, row) for row in alike):
            references.append(index)
    return references


def _takes_part(group: Group) -> bool:
    return not group.row["diverged"] and group.row["method"] != POOLED
