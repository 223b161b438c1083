"""The page docs/reproduction.md, from the values that were measured and committed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from fedloom.core.files import parse_json
from fedloom.papers.beside import lines, orders
from fedloom.papers.drawn import in_own_setting, read_rows
from fedloom.papers.gains import gains
from fedloom.papers.measured import Measured, read_measured
from fedloom.papers.page import as_markdown, ratios_of
from fedloom.papers.recipe import Recipe, recipes
from fedloom.papers.spent import spent_markdown
from fedloom.papers.swept import swept_markdown

_HEAD = """# Reproduction

Every table of the five papers, and every figure that shows data, has a recipe: what is run, in which setting,
and what the paper leaves open.
This page puts what was measured beside what is printed. It is made by `python benchmarks/reproduction.py`
from the CSV files that `fedloom reproduce` wrote.

```text
fedloom reproduce --list                                  # every table: cells, data, hours on this machine
fedloom reproduce feddw/table1 --plan                     # rows, hours, what is missing
fedloom reproduce feddw/table1 --only 'mnist-*' --workers 2
fedloom reproduce fedsc/table1 --scale small              # a stated reduction: the order of the methods alone
fedloom reproduce feddw/fig5                              # figure.png, figure.svg and figure.csv in its folder
```

Tables are [studies](how-to/studies.md): they go on after a crash, and share their folder with other machines.
A cell takes one core, and `--workers` says how many cells run at a time. With `engine=processes` a cell takes all
cores; then its time is not compared with what was foreseen.
A table ends as `reproduced.md` and in `report.html` in its folder, with what failed and why.
Data are looked for in `$FEDLOOM_DATA/SOURCE`. What is missing is named with its layout and where to get it.
Then nothing runs.

| verdict | what it means |
|---|---|
| reproduced | theirs lies inside the 95 % t interval of our mean over seeds; a large spread makes it wide |
| near | our mean is within one point of theirs |
| order reproduced | the rank correlation with theirs is above zero: by its interval, and by a count of all orders |
| not reproduced | none of these |
| not comparable | another setting, measure or method; the reason stands beside it |

With one seed there is no interval, so such a value is near at best.
Up to seven methods, all orders that they can have are counted: at most 2.5 % of these may agree with theirs as well.
Fewer than five methods are too few to tell an order from chance.
At `--scale small` values are never compared, only orders.

What a paper claims is a gain. So tables also have gains, each over the row that its column *over* names: FedAvg; local
training where a table has no FedAvg; the plain method where parts are taken out or added; MOON for MOON+DW. A gain is
the mean difference of equal seeds, with its 95 % t interval. A method is ahead or behind where the interval leaves out
zero. Intervals are not corrected for the number of rows.

A figure is drawn from the cells that are done, of a table too. [Draw figures](how-to/figures.md) says how each is
measured. Papers print no numbers with most of their figures, so figures have no verdicts. Of those that show what was
sent until a target, or accuracy by an option, the numbers stand here.

Where released code departs from its paper, and the measured effect of each departure, are on
[a page of their own](methods/departures.md).
"""

_GLANCE = """## At a glance

How many of the printed values that were run have which verdict. Then, of the columns with at least five methods, in how
many their order is the printed one. Last, of the printed gains above zero that were run with several seeds, how many
are seen. Presets `authors` and `sound` are not counted: they are not what is printed.

| table | setting | seeds | reproduced | near | not reproduced | orders reproduced | gains seen |
|---|---|---|---|---|---|---|---|
"""


_FORESEEN = """## Foreseen and taken

Core minutes of a row are foreseen by trials of about a second. Every table shows them beside what the row took.
"""
_WITHIN = 1.5

_OF_FIGURES = {"costs": spent_markdown, "sweep": swept_markdown}

_JPEG = "The images of CIFAR were JPEG files of quality 95 in all runs of this table, not the original pixels."


def document(folder: Path) -> str:
    """The page, from `folder/PAPER-TABLE.csv` and, for other settings of a table, `folder/PAPER-TABLE-WORD.csv`; of
    figures of the kinds `costs` and `sweep`, from their rows in files named alike.

    Tables that were not run in the paper's own setting are named as such, with their hours by `folder/planned.json`,
    which `fedloom reproduce --list --json` prints. `folder/foreseen.txt` says how the hours of what ran were foreseen.
    Raises `OSError` for a file that cannot be read, `ValueError` for one of another form.
    """
    run: list[str] = []
    left: list[str] = []
    glance: list[str] = []
    ratios: list[float] = []
    hours, machine = _hours(folder / "planned.json")
    for name, recipe in recipes().items():
        if as_section := _OF_FIGURES.get(recipe.table.kind):
            drawn = [rows for path in _files(folder, name) if (rows := read_rows(path, recipe.table.kind))]
            for rows in drawn:
                run += [as_section(recipe, rows), *_jpeg(recipe, {row["panel"] for row in rows})]
            if not any(in_own_setting(recipe, rows) for rows in drawn):
                left.append(_left(name, recipe, hours))
            continue
        found = [values for path in _files(folder, name) if (values := read_measured(path))]
        for values in found:
            run += [as_markdown(recipe, values, _setting(recipe, values)), *_jpeg(recipe, _columns(values))]
            glance.append(_counts(recipe, values))
            ratios += ratios_of(lines(recipe, values)).values()
        if not any(one.comparable for values in found for one in values):
            left.append(_left(name, recipe, hours))
    rest = ["## Not drawn", "\n".join(_not_drawn())]
    if left:
        rest += ["## Not run yet in the paper's own setting", *machine]
        rest.append("\n".join(["| name | table | cells | core hours |", "|---|---|---|---|", *left]))
    first = (
        [_GLANCE + "\n".join(glance), *_foreseen(ratios, folder / "foreseen.txt")]
        if run
        else ["No table has been run and committed yet."]
    )
    return "\n\n".join([_HEAD.rstrip(), *first, *(part.rstrip() for part in run), *rest]) + "\n"


def _files(folder: Path, name: str) -> list[Path]:
    stem = name.replace("/", "-")
    return sorted([*folder.glob(f"{stem}.csv"), *folder.glob(f"{stem}-*.csv")], key=lambda path: path.stem)


def _columns(found: list[Measured]) -> set[str]:
    return {one.column for one in found}


def _jpeg(recipe: Recipe, names: set[str]) -> list[str]:
    """What is said of CIFAR where one of these columns or panels has it."""
    here = {name for name, keys in recipe.table.columns.items() if names & {name, keys.get("panel")}}
    sources = {cell.config.scenario.source for cell in recipe.study().cells if cell.setting in here}
    return [_JPEG] if any(name.startswith("cifar") for name in sources) else []


def _setting(recipe: Recipe, found: list[Measured]) -> str:
    if found[0].changed:
        return found[0].changed
    return "the paper's own" + (", CIFAR from JPEG files of quality 95" if _jpeg(recipe, _columns(found)) else "")


def _counts(recipe: Recipe, found: list[Measured]) -> str:
    """One table's verdicts and gains, counted."""
    every = lines(recipe, found)
    words = Counter(line.verdict.word for line in every if line.run)
    order = [one.verdict.word for one in orders(every) if one.found and one.found.enough]
    seeds = sorted({len(line.seeds) for line in every if line.run})
    setting = re.sub(r"=\{[^}]{40,}\}", "={...}", _setting(recipe, found))  # the table's own section has all of it
    setting = f"other data, {setting}" if any(one.stand_in for one in found) else setting
    cells = [f"{recipe.paper.paper}, {recipe.table.title}", setting, " or ".join(map(str, seeds))]
    judged = all(one.comparable for one in found)
    cells += [str(words[word]) if judged else "–" for word in ("reproduced", "near", "not reproduced")]
    cells.append(f"{order.count('order reproduced')} of {len(order)}" if order else "–")
    claimed = [gain for gain in gains(recipe, every) if (gain.theirs or 0) > 0 and len(gain.ours) > 1]
    cells.append(f"{sum(gain.seen == 'ahead' for gain in claimed)} of {len(claimed)}" if claimed else "–")
    return f"| {' | '.join(cells)} |"


def _foreseen(ratios: list[float], about: Path) -> list[str]:
    """How many rows took what was foreseen, within the factor that is promised; after what the file `about` says of how
    these were foreseen."""
    if not ratios:
        return []
    said = about.read_text(encoding="utf-8") if about.exists() else ""
    near = sum(1 / _WITHIN <= ratio <= _WITHIN for ratio in ratios)
    spread = f"The ratio of taken to foreseen goes from {min(ratios):.2f} to {max(ratios):.2f}."
    return [_FORESEEN + said + f"{near} of {len(ratios)} rows are within a factor of {_WITHIN}. {spread}"]


def _not_drawn() -> list[str]:
    """What of the papers' figures no recipe draws, and why."""
    rows = [f"| `{name}` | {text} |" for name, recipe in recipes().items() for text in recipe.undrawn]
    return ["| name | not drawn |", "|---|---|", *rows]


def _hours(path: Path) -> tuple[dict[str, float], list[str]]:
    """Core hours by recipe, and on what machine they were foreseen."""
    if not path.exists():
        return {}, []
    told = parse_json(path.read_text(encoding="utf-8"))
    words = (
        f"Core hours are those of `fedloom reproduce --list` on {told['machine']}, as if every method cost what FedAvg"
        " costs. `--plan` tries each method."
    )
    return {row["name"]: row["hours"] for row in told["tables"]}, [words]


def _left(name: str, recipe: Recipe, hours: Mapping[str, float]) -> str:
    """The line of a table that was not run: its cells and hours."""
    planned = f"{recipe.cells} | {f'{hours[name]:,.1f}' if name in hours else '–'}"
    if recipe.table.facts is not None:
        planned = "nothing is run | –"
    return f"| `{name}` | {recipe.paper.paper}, {recipe.table.title} | {planned} |"
