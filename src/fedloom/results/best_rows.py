"""The best rows of a setting, and differences from a method, by the one rule. Needs no torch."""

from collections.abc import Iterator, Sequence
from statistics import fmean

from fedloom.core.errors import ConfigError, short_repr, suggest_name
from fedloom.core.text import listed, seeds_text
from fedloom.results.comparability import same_runs
from fedloom.results.difference import MIN_SEEDS, POOLED, STEP, Difference, compare_rows, paired_differences
from fedloom.results.group import Group


def best_rows(
    groups: Sequence[Group], contexts: Sequence[str], values: Sequence[Sequence[float] | None], lower: bool = False
) -> set[int]:
    """Return the indices of the best group of each context, and of those that are not behind it.

    Candidates for the best have three seeds in common with another group of their context. Diverged runs, pooled
    training and groups without `values` (one for each seed) take no part. `lower`: the lowest mean is the best.
    """
    best: set[int] = set()
    worse = "ahead" if lower else "behind"
    for leader, members in _leaders(groups, contexts, values, lower):
        outcomes = differences_from(groups, values, leader, members)
        best |= {index for index, outcome in outcomes.items() if outcome.word not in (worse, "too few seeds")}
        best |= {index for index in members if same_runs(groups[index].row, groups[leader].row)}
    return best


def untested_rows(
    groups: Sequence[Group], contexts: Sequence[str], values: Sequence[Sequence[float] | None], lower: bool = False
) -> set[int]:
    """Return the indices of the groups that have fewer than three seeds in common with the best one of their context;
    `groups`, `contexts`, `values` and `lower` are as in `best_rows`."""
    return {
        index
        for leader, members in _leaders(groups, contexts, values, lower)
        for index in members
        if not same_runs(groups[index].row, groups[leader].row) and not _testable(groups, index, leader)
    }


def _leaders(
    groups: Sequence[Group], contexts: Sequence[str], values: Sequence[Sequence[float] | None], lower: bool
) -> Iterator[tuple[int, list[int]]]:
    """Yield the best group of each context that has one, and the groups that take part there."""
    for context in dict.fromkeys(contexts):
        members = [
            index
            for index, group in enumerate(groups)
            if contexts[index] == context and _takes_part(group) and values[index] is not None
        ]
        candidates = [index for index in members if any(_testable(groups, index, other) for other in members)]
        if candidates:
            means = {index: fmean(values[index] or ()) for index in candidates}
            yield (min if lower else max)(means, key=means.__getitem__), members


def _testable(groups: Sequence[Group], index: int, other: int) -> bool:
    """Whether two groups are of different runs with the common seeds that a comparison needs."""
    row, other_row = groups[index].row, groups[other].row
    return len({*row["seeds"]} & {*other_row["seeds"]}) >= MIN_SEEDS and not same_runs(row, other_row)


def differences_from(
    groups: Sequence[Group], values: Sequence[Sequence[float] | None], reference: int, others: Sequence[int]
) -> dict[int, Difference]:
    """Compare the groups of the indices `others` with the `reference`, seed by seed and as one family; by index.

    Left out are groups without common seeds or `values` (one for each seed), and the reference's own runs under another
    name.
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
    """Compare the groups of each context with that of the method `against`; by index.

    Diverged runs and training on pooled data are left out. `methods` are the names of the groups' rows, `contexts` say
    which groups compare, and `values` has one value for each seed, or None. Raises `ConfigError` if no group is of that
    method, if all of these diverged, or if one context has several of them.
    """
    references = _references(against, groups, methods, contexts)
    if not references:
        raise ConfigError(f"--against {short_repr(against)}: {_why_no_reference(against, groups, methods)}")
    differences: dict[int, Difference] = {}
    for reference in references:
        names = [methods[other] for other in references if contexts[other] == contexts[reference]]
        if len(names) > 1:
            raise ConfigError(f"--against {short_repr(against)}: one setting has {listed(names)}; name one of them")
        rivals = [index for index, context in enumerate(contexts) if context == contexts[reference]]
        others = [index for index in rivals if index != reference and _takes_part(groups[index])]
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
        earlier = (groups[other].row for other in references if contexts[other] == contexts[index])
        if against not in (methods[index], group.row["method"]) or group.row["diverged"]:
            continue
        if not any(same_runs(group.row, row) for row in earlier):
            references.append(index)
    return references


def _takes_part(group: Group) -> bool:
    return not group.row["diverged"] and group.row["method"] != POOLED
