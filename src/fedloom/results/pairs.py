"""Rows of a table, paired by seed and judged by the one rule, family by family; and the best ones. Needs no torch."""

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedloom.core.errors import ConfigError, short_repr, suggest_name
from fedloom.core.text import ALPHA, BASELINE, counted, is_share, listed, seeds_text
from fedloom.results.comparability import context_numbers, different_keys, run_identity, same_runs
from fedloom.results.difference import STEP, Difference, best_of, compare_family, paired_differences, rank_intervals
from fedloom.results.group import Group, ResultRow

POOLED = "central"  # trains on the pooled data of all clients: a reference, neither ranked nor part of a family
_CEILING = 3  # steps from 0 or 100 % within which accuracies have no room to differ


@dataclass(frozen=True, slots=True)
class Paired:
    """The accuracy of the row `label` of a table minus that of `reference`, over the `seeds` that both ran.

    outcome: the difference as a share in [0, 1]. left_out: seeds that only one row has. unlike: other keys in which the
    rows differ, with their values; empty if there are none."""

    label: str
    reference: str
    seeds: list[int]
    outcome: Difference
    left_out: list[int]
    unlike: str = ""

    def words(self) -> str:
        """Return the comparison in one sentence."""
        skipped = f"; {seeds_text(self.left_out)} run by one of them alone" if self.left_out else ""
        checks = f"; {text}" if (text := self.outcome.checks_text()) else ""
        unlike = f"; they differ in {self.unlike} too" if self.unlike else ""
        line = f"{self.outcome.verdict}, {self.outcome.figures()}"
        return f"{self.label} against {self.reference}: {line}{checks}{skipped}{unlike}"


def compare_rows(
    rows: Sequence[ResultRow],
    reference: ResultRow,
    measure: str = "accuracy",
    values: Sequence[Sequence[float] | None] | None = None,
    reference_values: Sequence[float] | None = None,
    *,
    alpha: float = ALPHA,
    least: int = 1,
) -> list[Difference | None]:
    """Judge comparable rows against a reference, seed by seed and family by family; equal runs of two names count once.
    None for rows without common seeds and, counted, for diverged ones and those with fewer than `least` common seeds.

    A study's words are those of its planned seeds: more seeds give an unplanned look, which changes none. Where seeds
    are added until rows are decided, they are those of the last recorded look. values, reference_values: of the
    `measure`, in the order of the seeds; the accuracies if left out. alpha: chance of a false word in a family."""
    theirs = reference["by_seed"] if reference_values is None else reference_values
    differences: list[dict[int, float] | None] = []
    for row, ours in zip(rows, values or [row["by_seed"] for row in rows], strict=True):
        by_seed = paired_differences(row["seeds"], ours, reference["seeds"], theirs) if ours is not None else {}
        lost = reference["diverged"] or row["diverged"] or 0 < len(by_seed) < least
        differences.append(None if lost else by_seed)
    planned = [by_seed and _planned(row, by_seed) for row, by_seed in zip(rows, differences, strict=True)]
    families = [row["plan"].family if row["plan"].study == reference["plan"].study else "added later" for row in rows]
    keys = [(family, run_identity(row)) for family, row in zip(families, rows, strict=True)]
    step = reference["step"] if measure == "accuracy" else STEP
    margin = reference["plan"].margin if is_share(measure) else 0.0

    def by_family(differences: Sequence[Mapping[int, float] | None]) -> list[Difference | None]:
        judged: dict[tuple[str, Hashable], Difference] = {}
        for name in dict.fromkeys(families):
            of_family = [(key, of) for key, of in zip(keys, differences, strict=True) if key[0] == name and of != {}]
            tested = {key: [*of.values()] for key, of in of_family if of}
            how: dict[str, Any] = {"margin": margin, "alpha": alpha, "family": name}
            outcomes = compare_family([*tested.values()], step, absent=len(dict(of_family)) - len(tested), **how)
            judged |= zip(tested, outcomes, strict=True)
        return [judged.get(key) for key in keys]

    outcomes = by_family(planned)
    every = outcomes if planned == differences else by_family(differences)
    has_looks = measure == "accuracy" and reference["method"] == BASELINE
    for k, (row, outcome, more) in enumerate(zip(rows, outcomes, every, strict=True)):
        plan, seeds = row["plan"], planned[k] or {}
        if outcome is None or more is None:
            continue
        notes = ["at the ceiling"] if measure == "accuracy" and _at_the_ceiling(seeds, row, reference) else []
        if plan.sequential and plan.study == reference["plan"].study:
            look = plan.looks.get(row["protocol"]) if has_looks else None
            numbers: dict[str, Any] = {key: getattr(look, key, None) for key in _OF_A_LOOK}
            outcome = replace(outcome, **numbers, alpha=alpha if look is None else look.alpha)
        else:
            missing = len({*plan.seeds} - seeds.keys())
            notes += [f"{missing} of {counted(len(plan.seeds), 'planned seed')} missing"] if missing else []
            outcome = replace(outcome, unplanned=more if more.n > outcome.n else None)
        outcomes[k] = replace(outcome, notes=tuple(notes))
    return outcomes


_OF_A_LOOK = ("adjusted", "equivalent_p", "tested", "planned")  # what depends on the other rows of then


def _planned(row: ResultRow, values: Mapping[int, float]) -> Mapping[int, float]:
    """Return the values of the planned seeds, or of those of the last look; all if none is among them."""
    seeds = row["plan"].looks.get(row["protocol"], row["plan"]).seeds
    return {seed: value for seed, value in values.items() if seed in seeds} or values


def all_paired(rows: Sequence[ResultRow], against: str) -> list[Paired]:
    """Compare every row with that of the method `against` in the same setting, in the order of `rows`.

    Which rows compare is told in `comparability`. Rows with a diverged run, training on pooled data, and the runs of
    the reference under another name are left out, as in the headline. Further rows of `against` are compared, too."""
    contexts = context_numbers(rows)
    pairs: dict[tuple[int, int], Paired] = {}
    for index, reference in enumerate(rows):
        if reference["method"] != against or reference["diverged"]:
            continue
        if any(same_runs(reference, rows[earlier]) for earlier in range(index) if contexts[earlier] == contexts[index]):
            continue
        family = [
            (position, row)
            for position, row in enumerate(rows)
            if contexts[position] == contexts[index] and row["method"] != POOLED and not same_runs(row, reference)
        ]
        for (position, row), outcome in zip(family, compare_rows([row for _, row in family], reference), strict=True):
            if outcome is not None:
                ours, theirs = {*row["seeds"]}, {*reference["seeds"]}
                seeds = [*_planned(row, dict.fromkeys(sorted(ours & theirs), 0.0))]
                unlike = different_keys(row, reference)
                pairs[position, index] = Paired(
                    row["label"], reference["label"], seeds, outcome, sorted(ours ^ theirs), unlike
                )
    return [pairs[key] for key in sorted(pairs)]


def _at_the_ceiling(seeds: Collection[int], *rows: ResultRow) -> bool:
    room = _CEILING * rows[0]["step"] + 1e-12  # for accuracies that are exactly that far
    values = [value for row in rows for seed, value in zip(row["seeds"], row["by_seed"], strict=True) if seed in seeds]
    return all(value <= room for value in values) or all(value >= 1 - room for value in values)


def family_note(rows: Sequence[ResultRow]) -> str:
    """Return a sentence that says over which rows p values are corrected."""
    names = ", ".join(name for name in dict.fromkeys(row["plan"].family for row in rows) if name)
    unplanned = "All methods of a setting are one family: no plan names primary ones."
    return f"Families of the study, each corrected alone: {names}." if names else unplanned


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
            if contexts[index] == context
            and (not group.row["diverged"] and group.row["method"] != POOLED)
            and of_group is not None
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
