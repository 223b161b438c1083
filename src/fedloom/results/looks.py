"""Studies that add seeds until the rule decides. The chance of a false word is spent over the looks (Bonferroni), so a
decided row keeps its word and stops."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from fedloom.core.text import BASELINE
from fedloom.results.comparability import context_numbers, same_runs
from fedloom.results.pairs import POOLED, compare_rows
from fedloom.results.table import result_table
from fedloom.runs.storage.run_data import LookedAt, Plan
from fedloom.runs.studies.outcome import outcome
from fedloom.runs.studies.plan import Cell, StudyPlan
from fedloom.runs.studies.study_folder import StudyFolder


def stages(study: StudyPlan, folder: StudyFolder, cells: Sequence[Cell]) -> Iterator[list[Cell]]:
    """Yield the `cells` to run. Where seeds are added, yield the next seeds of undecided rows after each look, which is
    taken once all cells of its setting have ended, in this call or in others."""
    asked: list[Cell] = []
    while new := [cell for cell in _needed(study, folder, cells) if cell not in asked]:
        yield new
        asked += new
        for setting in {cell.setting: None for cell in new if study.looks}:
            if looks := _looks(study, folder, setting, asked):
                folder.record_looks(looks)


def _next_look(study: StudyPlan, looks: Sequence[LookedAt], setting: str) -> int | None:
    """Return the number of seeds of the next look at a setting; None after the last one."""
    taken = max((len(look.seeds) for look in looks if look.setting == setting), default=0)
    return next((count for count in study.looks if count > taken), None)


def _needed(study: StudyPlan, folder: StudyFolder, cells: Sequence[Cell]) -> list[Cell]:
    """Return those of `cells` that may run now: all, or those before the next look at their setting. Rows that the
    study got later run all seeds."""
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


def _looks(study: StudyPlan, folder: StudyFolder, setting: str, ran: Sequence[Cell]) -> list[LookedAt]:
    """Return the next look at each row of a setting; empty after the last one, and if cells have not run."""
    recorded, numbers = folder.looks(), study.numbered()
    count = _next_look(study, recorded, setting)
    cells = _needed(study, folder, [cell for cell in study.cells if cell.setting == setting])
    ended = outcome(study, folder, cells)
    if count is None or ended.remaining or not {cell.name for cell in ran}.issuperset(ended.failed):
        return []
    seeds = sorted({cell.config.seed for cell in cells if numbers[cell.name] < count})
    runs = [run for run in ended.cell_results if run.plan.sequential and run.numbers["seed"] in seeds]
    rows = result_table([replace(run, plan=Plan(family=run.plan.family, margin=run.plan.margin)) for run in runs])
    words = {(look.row, look.protocol): look.word for look in recorded}
    looks, contexts = list[LookedAt](), context_numbers(rows)
    for context in dict.fromkeys(contexts):
        members = [row for row, number in zip(rows, contexts, strict=True) if number == context]
        reference = next((row for row in members if row["method"] == BASELINE), None)
        if reference is None or reference["seeds"] != seeds:
            continue
        names = {row["label"]: "/".join(filter(None, row["cell"] or (row["label"],))) for row in members}
        said = {row["label"]: words.get((names[row["label"]], row["protocol"]), "undecided") for row in members}
        family = [
            row
            for row in members
            if said[row["label"]] in ("undecided", "diverged")  # a diverged row is still counted
            and row["method"] != POOLED
            and not same_runs(row, reference)
        ]
        alpha = study.looks[count]
        outcomes = compare_rows(family, reference, alpha=alpha, least=count)
        looks.append(LookedAt(setting, names[reference["label"]], reference["protocol"], seeds, alpha, "baseline"))
        for row, of in zip(family, outcomes, strict=True):
            at = setting, names[row["label"]], row["protocol"], seeds, alpha
            if said[row["label"]] == "undecided" and (row["diverged"] or reference["diverged"]):
                looks.append(LookedAt(*at, "diverged"))
            elif of is not None:
                looks.append(LookedAt(*at, of.word, of.adjusted, of.equivalent_p, of.tested, of.planned))
    return looks
