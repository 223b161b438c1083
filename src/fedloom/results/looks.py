"""Plans of studies and what their seeds will show, and studies that add seeds until the rule decides: the chance of a
false word is spent over the looks (Bonferroni), so a decided row keeps its word and stops."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fedloom.core.text import ALPHA, BASELINE, counted, seconds_text
from fedloom.results.comparability import context_numbers, same_runs
from fedloom.results.difference import USUAL_SPREADS, p_text, visible_effect
from fedloom.results.pairs import POOLED, compare_rows
from fedloom.results.table import result_table
from fedloom.runs.storage.run_data import LookedAt, Plan
from fedloom.runs.studies.outcome import outcome
from fedloom.runs.studies.plan import Cell, StudyPlan
from fedloom.runs.studies.study_folder import StudyFolder
from fedloom.runs.studies.tuning import job_states, jobs_of, seconds_left


def overview(study: StudyPlan, folder: StudyFolder, cells: Sequence[Cell]) -> dict[str, Any]:
    """Return the states of cells and trials by name, the seconds of those left, and what the study will show."""
    jobs = jobs_of(study, cells)
    trials, states = job_states(study, folder, cells, jobs)
    left = [job for job in jobs if (trials | states)[job.name] not in ("done", "spared")]
    plan = {
        "study": study.hash,
        "cells": states,
        "trials": trials,
        "runs": len(jobs),
        "counts": Counter(states.values()),
    }
    return plan | {"seconds_left": seconds_left(folder, left), "foresight": foresight(study)}


def overview_lines(plan: Mapping[str, Any]) -> list[str]:
    """Return an `overview` in sentences, without the states of single cells."""
    counts = ", ".join(f"{n} {state}" for state, n in plan["counts"].items())
    trials = f" and {counted(len(plan['trials']), 'trial')} of tuning" if plan["trials"] else ""
    totals = f"{counted(len(plan['cells']), 'cell')}{trials} in {counted(plan['runs'], 'run')}: {counts}"
    seconds = plan["seconds_left"]
    left = f"about {seconds_text(seconds)} on one core, judging by the finished runs" if seconds else ""
    return [*filter(None, (totals, *plan["foresight"], left))]


def foresight(study: StudyPlan) -> list[str]:
    """Return for each family of a study which differences from the baseline its seeds will be able to show."""
    families, members = study.families, dict[tuple[str, str], set[str]]()
    for cell in study.cells:
        if cell.config.method != BASELINE:
            members.setdefault((families[cell.group], cell.setting), set()).add(cell.group)
    sizes = {name: max(len(of) for (family, _), of in members.items() if family == name) for name, _ in members}
    seeds = len({cell.config.seed for cell in study.cells})
    count, alpha = [*study.looks.items()][-1] if study.looks else (seeds, ALPHA)
    sentences, fewer = [], "".join(f"{looks}, " for looks in [*study.looks][:-1])
    for name, size in sizes.items():
        effect, reach = visible_effect(count, size, alpha), "too few for any word"
        if effect is not None:
            low, usual, high = (f"{effect * spread:.1f}" for spread in USUAL_SPREADS)
            reach = (
                f"a method is seen to be ahead or behind with chance .8 from about {usual} points on ({low} in quiet "
                f"settings, {high} in noisy ones; {effect:.1f} standard deviations of its differences), or from fewer "
                f"if it stands out (noncentral t at {p_text(alpha)} / methods)"
            )
        family = f"{name or 'one'} family of {counted(size, 'comparison')}"
        sentences.append(f"{fewer}{counted(count, 'seed')}, {family}: {reach}")
    return sentences


def stages(study: StudyPlan, folder: StudyFolder, cells: Sequence[Cell]) -> Iterator[list[Cell]]:
    """Yield those of `cells` in `study` that are to run. Where seeds are added, yield the next seeds of undecided rows
    after each look, which is taken once all cells of its setting in `folder` have ended, in this call or in others."""
    begun = set[str]()
    while stage := [cell for cell in _needed(study, folder, cells) if cell.name not in begun]:
        yield stage
        begun |= {cell.name for cell in stage}
        for setting in {cell.setting: None for cell in stage if study.looks}:
            if looks := _looks(study, folder, setting, begun):
                folder.record_looks(looks)


def _next_look(study: StudyPlan, looks: Sequence[LookedAt], setting: str) -> int | None:
    """Return the number of seeds of the next look at a setting; None after the last one."""
    taken = max((len(look.seeds) for look in looks if look.setting == setting), default=0)
    return next((count for count in study.looks if count > taken), None)


def _needed(study: StudyPlan, folder: StudyFolder, cells: Sequence[Cell]) -> list[Cell]:
    """Return `cells` that may run now: all, or those before the next look at a setting; rows added later run all."""
    if not study.looks:
        return list(cells)
    looks, plans, numbers, spared = folder.looks(), folder.plans(), study.numbered(), folder.spared(study)
    limits = {cell.setting: _next_look(study, looks, cell.setting) or max(study.looks) for cell in cells}
    later = {cell.group for cell in cells if plans[cell.group].family == "added later"}
    return [
        cell
        for cell in cells
        if cell.name not in spared and (cell.group in later or numbers[cell.name] < limits[cell.setting])
    ]


def _looks(study: StudyPlan, folder: StudyFolder, setting: str, begun: set[str]) -> list[LookedAt]:
    """Return the next look at the rows of a setting; empty if cells have not run. begun: those of this call."""
    recorded, numbers = folder.looks(), study.numbered()
    count = _next_look(study, recorded, setting)
    cells = _needed(study, folder, [cell for cell in study.cells if cell.setting == setting])
    ended = outcome(study, folder, cells)
    if count is None or ended.remaining or not begun.issuperset(ended.failed):
        return []
    seeds, alpha = sorted({cell.config.seed for cell in cells if numbers[cell.name] < count}), study.looks[count]
    runs = [run for run in ended.cell_results if run.plan.sequential and run.numbers["seed"] in seeds]
    rows = result_table([replace(run, plan=Plan(family=run.plan.family, margin=run.plan.margin)) for run in runs])
    names = {id(row): ("/".join(filter(None, row["cell"] or (row["label"],))), row["protocol"]) for row in rows}
    words = dict.fromkeys(names.values(), "undecided") | {(look.row, look.protocol): look.word for look in recorded}
    looks, contexts = list[LookedAt](), context_numbers(rows)
    for context in dict.fromkeys(contexts):
        members = [row for row, number in zip(rows, contexts, strict=True) if number == context]
        reference = next((row for row in members if row["method"] == BASELINE), None)
        if reference is None or reference["seeds"] != seeds:
            continue
        looks.append(LookedAt(setting, *names[id(reference)], seeds, alpha, "baseline"))
        federated = [row for row in members if row["method"] != POOLED and not same_runs(row, reference)]
        family = [row for row in federated if words[names[id(row)]] in ("undecided", "diverged")]  # these are counted
        for row, judged in zip(family, compare_rows(family, reference, alpha=alpha, least=count), strict=True):
            at = setting, *names[id(row)], seeds, alpha
            if judged is not None:
                figures = judged.adjusted, judged.equivalent_p, judged.tested, judged.planned
                looks.append(LookedAt(*at, judged.word, *figures))
            elif words[names[id(row)]] == "undecided" and (row["diverged"] or reference["diverged"]):
                looks.append(LookedAt(*at, "diverged"))
    return looks
