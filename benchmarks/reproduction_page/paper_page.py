"""The page of one paper: every table and figure that was measured, beside what is printed."""

from __future__ import annotations

from tabulate import tabulate

from fedloom.papers.claims import judge_claims
from fedloom.papers.compared_values import compare_values
from fedloom.papers.gains import gain_lines
from fedloom.papers.table_section import bullets, markdown_of, table_blocks
from reproduction_page.committed import PaperResults, PlannedHours
from reproduction_page.cost_section import cost_section
from reproduction_page.glance import gains_of, tables_glance
from reproduction_page.setting import JPEG, columns, has_cifar, setting_of
from reproduction_page.sweep_section import sweep_section

_HEAD = """# {title}

This page puts what fedloom measured beside what the paper of [{title}](../methods/{name}.md) prints.
[Reproduction](index.md) says what the verdicts mean, and how to run a table yourself."""
_OF_FIGURES = {"costs": cost_section, "sweep": sweep_section}


def paper_page(paper: PaperResults, hours: PlannedHours) -> str:
    """The page as Markdown."""
    blocks = [_HEAD.format(title=paper.title, name=paper.name)]
    if paper.tables:
        blocks += ["## At a glance", bullets(gain_lines(gains_of(paper))), tables_glance(paper)]
    for recipe in paper.recipes.values():
        for values in (values for measured, values in paper.tables if measured is recipe):
            section = table_blocks(recipe, values, setting_of(values), None, recipe.table.choices)
            blocks += [f"## {recipe.table.title}", markdown_of(section)]
            blocks += [JPEG] if has_cifar(recipe, columns(values)) else []
        for rows in (rows for measured, rows in paper.figures if measured is recipe):
            blocks.append(_OF_FIGURES[recipe.table.kind](recipe, rows))
            blocks += [JPEG] if has_cifar(recipe, {row["panel"] for row in rows}) else []
    blocks += _claims(paper)
    if not paper.measured:
        blocks.append("No table has been run and committed yet.")
    choices = next(iter(paper.recipes.values())).paper.choices
    if choices:
        blocks += ["## Choices where the paper is silent", "These hold for all tables and figures:", bullets(choices)]
    return "\n\n".join([*blocks, *_undrawn(paper), *_not_run(paper, hours)]) + "\n"


def _claims(paper: PaperResults) -> list[str]:
    """What the paper states outside its tables, with ours and a verdict."""
    claims = next(iter(paper.recipes.values())).paper.claims
    if not claims:
        return []
    own = {recipe.name: compare_values(recipe, values) for recipe, values in paper.tables if not values[0].stand_in}
    rows = [judged.texts for judged in judge_claims(claims, own)]
    table = tabulate(rows, ("claim", "printed", "ours", "verdict", "why"), tablefmt="pipe", disable_numparse=True)
    return ["## Claims in text and figures", table]


def _undrawn(paper: PaperResults) -> list[str]:
    """What of the paper's figures no recipe draws, and why."""
    lines = [f"| `{name}` | {text} |" for name, recipe in paper.recipes.items() for text in recipe.not_drawn]
    return ["## Not drawn", "\n".join(["| name | not drawn |", "|---|---|", *lines])] if lines else []


def _not_run(paper: PaperResults, hours: PlannedHours) -> list[str]:
    """The recipes of which nothing was measured in the paper's own setting, with their cells and core hours."""
    lines = []
    for name, recipe in paper.recipes.items():
        if name in paper.in_papers_setting:
            continue
        planned = f"{recipe.cells} | {f'{hours.by_recipe[name]:,.1f}' if name in hours.by_recipe else '–'}"
        if recipe.table.why_not_run is not None:
            planned = "nothing is run | –"
        lines.append(f"| `{name}` | {recipe.table.title} | {planned} |")
    if not lines:
        return []
    machine = [
        f"Core hours are those of `fedloom reproduce --list` on {hours.machine}, as if every method cost what FedAvg "
        "costs. `--plan` counts the operations of each method."
    ]
    table = "\n".join(["| name | table | cells | core hours |", "|---|---|---|---|", *lines])
    return ["## Not run yet in the paper's own setting", *(machine if hours.machine else []), table]
