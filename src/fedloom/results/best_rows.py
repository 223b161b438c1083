"""The best rows of a setting, and differences from a method, by the one rule. Needs no torch."""

from collections.abc import Iterator, Sequence

from fedloom.core.errors import ConfigError, short_repr, suggest_name
from fedloom.core.text import listed, seeds_text
from fedloom.results.comparability import run_identity, same_runs
from fedloom.results.difference import STEP, Difference, best_of, rank_intervals
from fedloom.results.group import Group
from fedloom.results.pairs import POOLED, compare_rows

Rank = tuple[int, int] | None


def best_rows(
    groups: Sequence[Group], contexts: Sequence[str], values: Sequence[Sequence[float] | None], lower: bool = False
) -> set[int]:
    """Return the indices of the groups that no other one of their context is ahead of; none where that would be all.

    Diverged runs, pooled training and groups without `values` (one for each seed) take no part, nor do groups without
    three seeds in common with another one. `lower`: the lowest mean is the best."""
    return {index for ranks in _ranks(groups, contexts, values, lower) for index in best_of(ranks)}


def untested_rows(
    groups: Sequence[Group], contexts: Sequence[str], values: Sequence[Sequence[float] | None], lower: bool = False
) -> set[int]:
    """Return the indices of the groups that take part and have no three seeds in common with another one of their
    context, where others have; `groups`, `contexts`, `values` and `lower` are as in `best_rows`."""
    return {
        index
        for ranks in _ranks(groups, contexts, values, lower)
        if any(ranks.values())
        for index, interval in ranks.items()
        if interval is None
    }


def _ranks(
    groups: Sequence[Group], contexts: Sequence[str], values: Sequence[Sequence[float] | None], lower: bool
) -> Iterator[dict[int, Rank]]:
    """Yield for each context the interval of ranks of the groups that take part, equal runs of two names as one."""
    for context in dict.fromkeys(contexts):
        members = [
            (index, group.row, dict(zip(group.row["seeds"], of_group, strict=True)))
            for index, (group, of_group) in enumerate(zip(groups, values, strict=True))
            if contexts[index] == context and _takes_part(group) and of_group is not None
        ]
        distinct = {run_identity(row): by_seed for _, row, by_seed in members}
        step = next((row["step"] for index, row, _ in members if values[index] == row["by_seed"]), STEP)
        intervals = dict(zip(distinct, rank_intervals([*distinct.values()], step, lower), strict=True))
        yield {index: intervals[run_identity(row)] for index, row, _ in members}


def differences_against(
    against: str,
    groups: Sequence[Group],
    methods: Sequence[str],
    contexts: Sequence[str],
    values: Sequence[Sequence[float] | None],
    measure: str,
) -> dict[int, Difference]:
    """Compare the groups of each context with that of the method `against`; by index.

    Diverged runs and training on pooled data are left out. `methods` are the names of the groups' rows, `contexts` say
    which groups compare, and `values` of the `measure` has one for each seed, or None. Raises `ConfigError` if no group
    is of that method, if all of these diverged, or if one context has several of them."""
    references = _references(against, groups, methods, contexts)
    if not references:
        raise ConfigError(f"--against {short_repr(against)}: {_why_no_reference(against, groups, methods)}")
    differences: dict[int, Difference] = {}
    for reference in references:
        names = [methods[other] for other in references if contexts[other] == contexts[reference]]
        if len(names) > 1:
            raise ConfigError(f"--against {short_repr(against)}: one setting has {listed(names)}; name one of them")
        row = groups[reference].row
        others = [
            index
            for index, group in enumerate(groups)
            if contexts[index] == contexts[reference]
            and group.row["method"] != POOLED
            and not same_runs(group.row, row)
        ]
        of_others = [groups[index].row for index in others], row, measure, [values[index] for index in others]
        outcomes = zip(others, compare_rows(*of_others, values[reference]), strict=True)
        differences |= {index: outcome for index, outcome in outcomes if outcome is not None}
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
