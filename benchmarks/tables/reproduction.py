"""The sections of the pages docs/reproduction/*.md, from the values and figures in results/reproduction.

Values of a table are in PAPER-TABLE.csv.gz, those of other settings in PAPER-TABLE-WORD.csv.gz, as `fedloom reproduce`
writes them; so are the rows of figures of the kinds `costs` and `sweep`.
"""

import csv
import gzip
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean

from tabulate import tabulate

from benchmarks.data import RESULTS, read_rows
from benchmarks.figures.rows import not_drawn
from benchmarks.tables.gains import Gain, count_gains, gain_lines, gains, gains_sheet, judged
from benchmarks.tables.words import markdown
from fedloom.core.text import listed
from fedloom.papers.compared_values import (
    ComparedValue,
    bullets,
    compare_orders,
    compare_values,
    markdown_of,
    number,
    table_blocks,
)
from fedloom.papers.measurements import ACCURACY, OTHER_IMAGES, Measurement, read_measurements
from fedloom.papers.recipe import Claim, Recipe, printed_values, recipes
from fedloom.papers.verdicts import NOT_RUN, STEP, judge_value
from fedloom.results.difference import Difference, compare_family
from fedloom.results.group import mean_std

FOLDER = RESULTS / "reproduction"
FIGURE_COLUMNS = {  # of the file, by the kind of the figure
    "costs": ("panel", "row", "seed", "x", "accuracy", "target", "bytes", "flops", "changed"),
    "sweep": ("panel", "row", "seed", "x", "accuracy", "changed"),
}
JPEG = (
    "The images of CIFAR were JPEG files of quality 95 in all runs of this table, not the original pixels, so these "
    "are not the paper's own data."
)
_OWN_SETTING = "the paper's own"
_VERDICTS = ("reproduced", "differs", "undecided")
_ORDERS = ("order reproduced", "order differs", "undecided order")
_COUNTED = (
    "values: reproduced / differs / undecided",
    "orders: reproduced / differs / undecided",
    "own gains seen",
    "baselines' gains seen",
)
FigureRow = dict[str, str]


@dataclass(frozen=True, slots=True)
class PaperResults:
    """All measurements of one paper. A table that was run in several settings is in `tables` several times."""

    name: str  # feddw
    recipes: dict[str, Recipe] = field(default_factory=dict)
    tables: list[tuple[Recipe, list[Measurement]]] = field(default_factory=list)
    figures: list[tuple[Recipe, list[FigureRow]]] = field(default_factory=list)

    @property
    def title(self) -> str:
        """The paper's name as printed, e.g. Fed-CO2."""
        return next(iter(self.recipes.values())).paper.title

    @property
    def measured(self) -> set[str]:
        """The recipes with measurements in any setting."""
        return {recipe.name for recipe, _ in (*self.tables, *self.figures)}

    @property
    def in_papers_setting(self) -> set[str]:
        """The recipes with measurements in the paper's own setting; one point of a search is not in it."""
        tables = {recipe.name for recipe, values in self.tables if any(value.comparable for value in values)}
        return tables | {
            recipe.name
            for recipe, rows in self.figures
            if not recipe.paper.searched and any(not row["changed"] for row in rows)
        }


def sections(folder: Path = FOLDER) -> dict[str, str]:
    """Return the generated part of each page: `glance` of the index, and one section per paper.

    Raises `OSError` for a file that cannot be read, `ValueError` for one with other columns.
    """
    papers = read_results(folder)
    planned = folder / "planned.csv.gz"
    hours = {row["name"]: (row["hours"], row["machine"]) for row in read_rows(planned)} if planned.exists() else {}
    return {"glance": papers_glance(papers)} | {paper.name: paper_section(paper, hours) for paper in papers}


def read_results(folder: Path) -> list[PaperResults]:
    """Read the measurements of every paper."""
    papers: dict[str, PaperResults] = {}
    for name, recipe in recipes().items():
        paper = papers.setdefault(name.partition("/")[0], PaperResults(name.partition("/")[0]))
        paper.recipes[name] = recipe
        stem = name.replace("/", "-")
        files = sorted([*folder.glob(f"{stem}.csv.gz"), *folder.glob(f"{stem}-*.csv.gz")], key=lambda path: path.stem)
        for path in files:
            if recipe.table.kind in FIGURE_COLUMNS:
                if rows := read_figure(path, recipe.table.kind):
                    paper.figures.append((recipe, rows))
            elif values := read_measurements(path):
                paper.tables.append((recipe, values))
    return list(papers.values())


def read_figure(path: Path, *kinds: str) -> list[FigureRow]:
    """Read the rows of a figure, one per finished run. kinds: those that are accepted; none accepts all.

    Raises `OSError` for a file that cannot be read, `ValueError` for one with other columns.
    """
    headers = [FIGURE_COLUMNS[kind] for kind in kinds or FIGURE_COLUMNS]
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8", newline="") as stream:
        reader = csv.DictReader(stream)
        if tuple(reader.fieldnames or ()) not in headers:
            needed = " or ".join(", ".join(header) for header in headers)
            raise ValueError(f"{path}: columns {reader.fieldnames}; need {needed}")
        return list(reader)


def papers_glance(papers: Sequence[PaperResults]) -> str:
    """Return one line per paper: how much of it was measured, and what came out."""
    rows = []
    for paper in papers:
        counts = sum((count(*values) for values in paper.tables), Counter[str]())
        runnable = [name for name, recipe in paper.recipes.items() if recipe.table.why_not_run is None]
        own, other = len(paper.in_papers_setting), len(paper.measured - paper.in_papers_setting)
        rows.append([f"[{paper.title}]({paper.name}.md)", len(runnable), own, other, *_counted(counts)])
    headers = ("paper", "tables and figures", "run in its own setting", "in another setting only", *_COUNTED)
    return markdown(headers, rows)


def tables_glance(paper: PaperResults) -> str:
    """Return one line per table of a paper and setting in which it was run."""
    rows = []
    for recipe, values in paper.tables:
        setting = re.sub(r"=\{[^}]{40,}\}", "={...}", setting_of(values))  # the table's section has all of it
        if any(value.stand_in for value in values):
            setting = f"other data, {setting}"
        seeds = sorted({len(value.seeds) for value in compare_values(recipe, values) if value.was_run})
        counted = _counted(count(recipe, values))
        rows.append([recipe.table.title, setting, " or ".join(map(str, seeds)), *counted])
    return markdown(("table", "setting", "seeds", *_COUNTED), rows)


def count(recipe: Recipe, measurements: list[Measurement]) -> Counter[str]:
    """Count the verdicts of one table in one setting, its orders, and its printed gains."""
    compared = compare_values(recipe, measurements)
    counts = Counter[str](value.verdict.word for value in compared if value.was_run)
    counts["values compared"] = sum(counts[word] for word in _VERDICTS)
    orders = [
        _ORDERS[2] if order.verdict.word == "undecided" else order.verdict.word
        for order in compare_orders(recipe, compared)
        if order.counts
    ]
    counts["orders compared"] = len(orders)
    counts.update(orders)
    computed = gains(recipe, compared)
    for group in ("own", "baselines"):
        total = count_gains(computed, group)
        counts.update({f"{group} {word}": total[word] for word in ("seen", "contradicted")})
        counts[f"{group} judged"] = judged(total)
    return counts


def _counted(counts: Counter[str]) -> list[str]:
    """The last cells of a line; a dash where nothing was compared."""
    cells = [" / ".join(str(counts[word]) for word in _VERDICTS) if counts["values compared"] else "–"]
    cells.append(" / ".join(str(counts[word]) for word in _ORDERS) if counts["orders compared"] else "–")
    for group in ("own", "baselines"):
        judged, contradicted = counts[f"{group} judged"], counts[f"{group} contradicted"]
        cells.append(f"{counts[f'{group} seen']} of {judged}, {contradicted} contradicted" if judged else "–")
    return cells


def paper_section(paper: PaperResults, hours: Mapping[str, tuple[float, str]]) -> str:
    """Return the tables of a paper with their verdicts.

    hours: core hours that a recipe takes, and the machine of the estimate, by the recipe's name.
    """
    blocks = []
    if paper.tables:
        of_paper: list[Gain] = [gain for table in paper.tables for gain in gains(table[0], compare_values(*table))]
        blocks += ["## At a glance", bullets(gain_lines(of_paper)), tables_glance(paper)]
    for recipe in paper.recipes.values():
        for values in (values for measured, values in paper.tables if measured is recipe):
            section = table_blocks(recipe, values, setting_of(values), None, recipe.table.choices)
            if of_table := gains(recipe, compare_values(recipe, values)):
                section += ["Gains in points, seed by seed:", gain_lines(of_table), gains_sheet(of_table)]
            blocks += [f"## {recipe.table.title}", markdown_of(section)]
            blocks += [JPEG] if has_cifar(recipe, {value.column for value in values}) else []
        for rows in (rows for measured, rows in paper.figures if measured is recipe):
            blocks.append(_FIGURES[recipe.table.kind](recipe, rows))
            blocks += [JPEG] if has_cifar(recipe, {row["panel"] for row in rows}) else []
    blocks += _claims(paper)
    if not paper.measured:
        blocks.append("No table has been run and committed yet.")
    choices = next(iter(paper.recipes.values())).paper.choices
    if choices:
        blocks += ["## Choices where the paper is silent", "These hold for all tables and figures:", bullets(choices)]
    left_out = [(f"`{name}`", text) for name, recipe in paper.recipes.items() for text in not_drawn(recipe)]
    blocks += ["## Not drawn", markdown(("name", "not drawn"), left_out)] if left_out else []
    return "\n\n".join([*blocks, *_not_run(paper, hours)])


def _claims(paper: PaperResults) -> list[str]:
    """The paper's claims outside its tables, with our values and verdicts."""
    claims = next(iter(paper.recipes.values())).paper.claims
    if not claims:
        return []
    own = {recipe.name: compare_values(recipe, values) for recipe, values in paper.tables if not values[0].stand_in}
    rows = [judged_claim(claim, own.get(claim.table or "", [])) for claim in claims]
    table = tabulate(rows, ("claim", "printed", "ours", "verdict", "why"), tablefmt="pipe", disable_numparse=True)
    return ["## Claims in text and figures", table]


def judged_claim(claim: Claim, values: Sequence[ComparedValue]) -> tuple[str, str, str, str, str]:
    """Return a claim, its printed value, ours, the verdict and its reason. values: those of the claim's table."""
    by_name = {f"{value.column}/{value.row}": value for value in values if value.was_run and value.metric in ACCURACY}
    names = [name for name in (claim.row, claim.minus) if name is not None]
    cells = [by_name[name] for name in names if name in by_name]
    ours: dict[int, float] = {}
    if not cells or len(cells) < len(names):
        missing = ", ".join(name for name in names if name not in by_name)
        reasons = [f"{NOT_RUN}: {missing} of `{claim.table}`" if claim.table and missing else NOT_RUN]
    else:
        reasons = [value.verdict.why.partition(";")[0] for value in cells if value.verdict.word == "not comparable"]
        ours = cells[0].by_seed
        if len(cells) == 2:
            ours = {seed: ours[seed] - value for seed, value in cells[1].by_seed.items() if seed in ours}
    verdict = judge_value([*ours.values()], claim.printed, reason=claim.why or next(iter(reasons), None))
    printed = "–" if claim.printed is None else f"{claim.printed:g} {claim.unit}"
    if claim.values is not None:
        printed = f"{len(printed_values(claim.values))} values"
    return claim.claim, printed, f"{fmean(ours.values()):.2f}" if ours else "–", verdict.word, verdict.why


def cells_of(recipe: Recipe) -> int:
    """Return the number of cells of a recipe's study at full scale."""
    columns = recipe.table.columns.values()
    return recipe.table.seeds * sum(len(recipe.rows) - len(column.get("without", [])) for column in columns)


def _not_run(paper: PaperResults, hours: Mapping[str, tuple[float, str]]) -> list[str]:
    """The recipes without measurements in the paper's own setting, with their cells and core hours."""
    rows = []
    for name, recipe in paper.recipes.items():
        if name in paper.in_papers_setting:
            continue
        planned = [str(cells_of(recipe)), f"{hours[name][0]:,.1f}" if name in hours else "–"]
        if recipe.table.why_not_run is not None:
            planned = ["nothing is run", "–"]
        rows.append([f"`{name}`", recipe.table.title, *planned])
    if not rows:
        return []
    machines = dict.fromkeys(machine for _, machine in hours.values())
    explanation = [
        f"Core hours were estimated on {machine}, as if every method cost what FedAvg costs." for machine in machines
    ]
    table = markdown(("name", "table", "cells", "core hours"), rows)
    return ["## Not run yet in the paper's own setting", *explanation, table]


def setting_of(values: Sequence[Measurement]) -> str:
    """Describe how the measured columns differ from the recipe, or say that the setting is the paper's own."""
    columns_by_setting: dict[str, dict[str, None]] = {}
    for value in values:
        columns_by_setting.setdefault(value.changed or _OWN_SETTING, {})[value.column] = None
    if len(columns_by_setting) == 1:
        return next(iter(columns_by_setting))
    return "; ".join(f"{setting} ({listed(names)})" for setting, names in columns_by_setting.items())


def with_other_images(recipe: Recipe, values: Sequence[Measurement]) -> list[Measurement]:
    """Mark measurements on CIFAR, whose original pixels we do not have, as made on other images."""
    return [
        replace(value, changed=OTHER_IMAGES, comparable=False)
        if value.comparable and has_cifar(recipe, {value.column})
        else value
        for value in values
    ]


def has_cifar(recipe: Recipe, names: set[str]) -> bool:
    """Whether one of these columns, or of the panels of a figure, has CIFAR's images."""
    settings = {name for name, keys in recipe.table.columns.items() if names & {name, keys.get("panel")}}
    sources = {cell.config.scenario.source for cell in recipe.study().cells if cell.setting in settings}
    return any(name.startswith("cifar") for name in sources)


def cost_section(recipe: Recipe, rows: Sequence[FigureRow]) -> str:
    """Return megabytes and FLOPs until a target accuracy, and their ratio to those of the paper's own method."""
    paper = recipe.paper.title
    table_rows = []
    for panel, x in dict.fromkeys((row["panel"], row["x"]) for row in rows):
        in_setting = [row for row in rows if (row["panel"], row["x"]) == (panel, x)]
        baseline = [row for row in in_setting if row["row"] == paper]
        for method in dict.fromkeys(row["row"] for row in in_setting):
            runs = [row for row in in_setting if row["row"] == method]
            accuracy, target = (f"{_mean(runs, key):.2f}" for key in ("accuracy", "target"))
            megabytes, teraflops = f"{_mean(runs, 'bytes') / 1e6:.2f}", f"{_mean(runs, 'flops') / 1e12:,.1f}"
            costs = [megabytes, _ratio(runs, baseline, "bytes"), teraflops, _ratio(runs, baseline, "flops")]
            table_rows.append([f"{panel}, {x}", method, len(runs), accuracy, target, *costs])
    headers = ("setting", "row", "seeds", "accuracy %", "target %", "MB", f"of {paper}'s", "TFLOPs", f"of {paper}'s")
    explanation = (
        "Accuracy is that at the end. MB (up and down) and TFLOPs are those of all clients until the first test at the "
        f"target. Means are over the row's seeds, multiples over the seeds that {paper} has too."
    )
    return _figure_section(recipe, rows, explanation, headers, table_rows)


def _mean(runs: Sequence[FigureRow], key: str) -> float:
    return fmean(float(run[key]) for run in runs)


def _ratio(runs: Sequence[FigureRow], baseline: Sequence[FigureRow], key: str) -> str:
    """The ratio to `baseline` over the seeds of both; a dash where they share no seed, or the baseline is zero."""
    seeds = {run["seed"] for run in runs} & {run["seed"] for run in baseline}
    ours, theirs = ([run for run in rows if run["seed"] in seeds] for rows in (runs, baseline))
    return f"{_mean(ours, key) / _mean(theirs, key):.2f} x" if seeds and _mean(theirs, key) else "–"


def sweep_section(recipe: Recipe, rows: Sequence[FigureRow]) -> str:
    """Return the accuracy at each value of an option, and its gain over the first value, seed by seed."""
    table_rows = []
    for panel, method in dict.fromkeys((row["panel"], row["row"]) for row in rows):
        by_value: dict[str, dict[str, float]] = {}
        for row in rows:
            if (row["panel"], row["row"]) == (panel, method):
                by_value.setdefault(row["x"], {})[row["seed"]] = float(row["accuracy"])
        outcomes = _over_the_first(by_value)
        for x, by_seed in by_value.items():
            gain = ["–"] * 3
            if x in outcomes:
                outcome = outcomes[x]
                gain = [f"{outcome.mean:+.2f}", outcome.interval_text(decimals=2), outcome.verdict]
            table_rows.append([panel, method, x, len(by_seed), number(*mean_std(list(by_seed.values()))), *gain])
    axis = recipe.table.axis
    explanation = f"Gains are in points, seed by seed, over the first {axis} of each setting."
    headers = ("setting", "row", axis, "seeds", "accuracy %", "gain", "95 % interval", "word")
    return _figure_section(recipe, rows, explanation, headers, table_rows)


def _over_the_first(by_value: Mapping[str, Mapping[str, float]]) -> dict[str, Difference]:
    """Compare all values of the axis with the first one, as one family; without those that share no seed with it."""
    baseline, *others = by_value.items()
    by_other = {
        x: [by_seed[seed] - baseline[1][seed] for seed in sorted(by_seed.keys() & baseline[1].keys())]
        for x, by_seed in others
    }
    compared = {x: values for x, values in by_other.items() if values}
    return dict(zip(compared, compare_family(list(compared.values()), STEP, points=1.0), strict=True))


def _figure_section(
    recipe: Recipe,
    rows: Sequence[FigureRow],
    explanation: str,
    headers: Sequence[str],
    table_rows: Sequence[Sequence[object]],
) -> str:
    """A figure's section of the page: its setting, an explanation, the table, and choices where the paper is silent."""
    setting = rows[0]["changed"] or _OWN_SETTING
    table = tabulate(table_rows, headers, tablefmt="pipe", disable_numparse=True)
    blocks = [f"## {recipe.table.title}", f"Setting: {setting}.", explanation, table]
    if recipe.table.choices:
        blocks += ["Choices where the paper is silent:", bullets(recipe.table.choices)]
    return "\n\n".join(blocks)


_FIGURES = {"costs": cost_section, "sweep": sweep_section}
