"""The sentences below a table for a paper: seeds, protocol, what bold means, and what is not ranked. Needs no torch."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence

from fedloom.core.text import counted, listed, percent, seed_counts_text, seeds_text
from fedloom.results.best_rows import untested_rows
from fedloom.results.comparability import same_runs_notes
from fedloom.results.difference import LEVEL, MIN_SEEDS
from fedloom.results.group import Group
from fedloom.results.measured import display_name
from fedloom.results.paired import POOLED
from fedloom.results.table_measures import TableMeasure


def notes_of(
    groups: Sequence[Group], measures: Sequence[TableMeasure], best: Sequence[Collection[int]], against: str
) -> list[str]:
    """Return the notes of a table.

    Args:
        groups: the groups of runs in it.
        measures: its columns.
        best: of each measure, the indices of the groups that are bold.
        against: the method from which differences are shown; empty for none.
    """
    counts = [group.row["n"] for group in groups]
    seeds = seed_counts_text(counts)
    protocols = dict.fromkeys(group.row["protocol"] for group in groups)
    selections = dict.fromkeys(group.row["select"] for group in groups)
    spread = "Mean ± sample standard deviation" if max(counts) > 1 else "Values"
    notes = [f"{spread} over {seeds}; {_named('protocol', protocols)}, {_named('selected round:', selections)}."]
    if any(best):
        notes.append(
            f"Bold: the best mean of its setting{' and protocol' if len(protocols) > 1 else ''}, and methods that the "
            f"paired t test with Holm's correction does not tell apart from it ({100 * (1 - LEVEL):.0f} %)."
        )
    elif any(measure.ranked for measure in measures) and len(groups) > 1:
        notes.append(f"Nothing is bold: a comparison needs {MIN_SEEDS} seeds of two methods in one setting.")
    unknown = [display_name(measure.name) for measure in measures if measure.is_score and measure.higher is None]
    if unknown:
        notes.append(f"Nothing is bold by {listed(unknown)}: no run says whether the highest value is the best.")
    if against:
        notes.append(
            f"Differences from {against} over common seeds; the {100 * LEVEL:.0f} % t intervals are not corrected, "
            "the p values are (Holm, over the methods of the setting)."
        )
    notes += _majority(groups)
    pooled = dict.fromkeys(group.row["label"] for group in groups if group.row["method"] == POOLED)
    if pooled:
        notes.append(f"{listed(pooled)}: trained on pooled data, not ranked.")
    notes += _ended_early(groups)
    return notes


def run_notes(groups: Sequence[Group]) -> list[str]:
    """Return a sentence for each run that ended early, and for the runs that a row leaves out.

    Args:
        groups: the groups of runs in the table.
    """
    notes: list[str] = []
    for group in groups:
        row = group.row
        if group.is_further:  # the row of the main protocol says it
            continue
        notes += [f"{row['label']}: {reason}." for reason in row["stopped"]]
        if row["repeats"]:
            notes.append(f"{row['label']}: {counted(row['repeats'], 'run')} left out, whose seed is already counted.")
    return notes


def _ended_early(groups: Sequence[Group]) -> list[str]:
    """Return a sentence that names the rows and seeds of runs that ended early; empty without any."""
    seeds_by_row = {
        group.row["label"]: [run.numbers["seed"] for run in group.results if run.numbers.get("stopped")]
        for group in groups
        if not group.is_further
    }
    named = [f"{label} ({seeds_text(seeds)})" for label, seeds in seeds_by_row.items() if seeds]
    return [f"Ended early: {listed(named)}."] if named else []


def comparison_notes(
    groups: Sequence[Group],
    contexts: Sequence[str],
    measures: Sequence[TableMeasure],
    best: Sequence[Collection[int]],
    places: Sequence[Hashable],
) -> list[str]:
    """Return sentences on what a table does not compare: rows of other settings, too few seeds, and equal runs.

    Args:
        groups: the groups of runs in the table.
        contexts: of each group, the words for the setting and protocol in which methods compare.
        measures: its columns.
        best: of each measure, the indices of the groups that are bold.
        places: of each group, the part of the table in which its reader compares methods.
    """
    labels = [group.row["label"] for group in groups]
    notes = []
    if len({*zip(places, contexts, strict=True)}) > len({*places}):
        labels_by_context: dict[str, list[str]] = {}
        for context, label in zip(contexts, labels, strict=True):
            labels_by_context.setdefault(context, []).append(label)
        told = "; ".join(
            f"{context}: {listed(members)}" if context else listed(members)
            for context, members in labels_by_context.items()
        )
        notes.append(f"Compared only among themselves: {told}.")
    untested = {
        index
        for measure, indices in zip(measures, best, strict=True)
        if indices
        for index in untested_rows(groups, contexts, measure.complete, measure.lower)
    }
    if untested:
        notes.append(
            f"Not compared, with fewer than {MIN_SEEDS} seeds in common with the best mean: "
            f"{listed(labels[index] for index in sorted(untested))}."
        )
    return notes + [f"{note}." for note in same_runs_notes([group.row for group in groups])]


def _named(noun: str, names: Collection[str]) -> str:
    """Return names with their noun, "protocols global/local and personal/local"."""
    plural = "s" if len(names) > 1 and not noun.endswith(":") else ""
    return f"{noun}{plural} {listed(names)}"


def _majority(groups: Sequence[Group]) -> list[str]:
    """Return what always predicting the most frequent class reaches: of each client's own data for personal models that
    are tested on these, else of all data; without the protocols that have no such baseline."""
    shares: dict[str, list[float]] = {}
    for group in groups:
        metrics = group.row["metrics"]
        names = ("majority_own", "majority_global") if group.row["protocol"].startswith("personal/") else _OF_ALL
        name = next((name for name in names if name in metrics), None)
        if name is not None:
            shares.setdefault(name, []).append(metrics[name])
    return [
        f"Always predicting {_MAJORITY[name]} reaches {_range(values)} % accuracy." for name, values in shares.items()
    ]


_OF_ALL = ("majority_global",)
_MAJORITY = {
    "majority_global": "the most frequent class",
    "majority_own": "the most frequent class of each client's own data",
}


def _range(shares: Sequence[float]) -> str:
    low, high = percent(min(shares)), percent(max(shares))
    return low if low == high else f"{low} to {high}"
