"""The index of the reproduction pages: the glance, what the verdicts mean, and how to run a table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedloom.papers.compared_values import compare_values
from fedloom.papers.table_section import time_ratios
from reproduction_page.committed import PaperResults
from reproduction_page.glance import papers_glance

_HEAD = """# Reproduction

fedloom has a recipe for every table of its five papers, and for every figure that shows data. A recipe says what is
run, in which setting, and what the paper leaves open. The page of each paper puts what was measured beside what is
printed.

## At a glance
"""
_COUNTS = """Values are judged where they were run in the paper's own setting, on the paper's own data. Orders are
those of columns with at least five rows, and gains are the printed ones above zero with at least three seeds; both
also come from other settings, named on the page of each paper. Presets `authors` and `sound` are not counted, since
papers do not print them. CIFAR's images were JPEG files of quality 95 in these runs. They are not the original
pixels, so these runs are not in the paper's own setting. [What changed](verdicts.md) says how earlier counts came
about."""
_TEXT = """## What the verdicts mean

| verdict | what it means |
|---|---|
| reproduced | the 90 % interval of ours minus theirs lies within the margin |
| differs | the 95 % interval of ours minus theirs lies outside the margin |
| undecided | neither, or fewer than three seeds; the reason says how many seeds would decide |
| order reproduced | no pair of rows contradicts, at least half agree, and at most 2.5 % of all orders agree as well |
| order differs | a pair of rows is seen to be in the other order |
| not comparable | another setting, data, measure or method; the table gives the reason and the difference |

The margin is one point, or one round to a target, and is part of the recipe. The interval has our spread over seeds,
and the printed one too where the paper says over how many runs it is. Noise widens the interval, so it leads to
"undecided". Verdicts are not corrected for the number of values. Where the paper's own gain in a column is below
twice the margin, the reason says that the margin is as wide as the claim. Equal values are no certainty: the spread
counts as at least 0.29 of a step, which is one test sample, or one round.

An order is judged by its pairs of rows that are printed at least one margin apart. Each pair is compared by the rule
below, as one family, so it agrees, contradicts or is undecided. Up to eight rows all orders are counted. Fewer than
five rows are too few to tell an order from chance.

Papers claim gains. The paper's own method is compared with every baseline of a column, and a method that it wraps
with that method alone (MOON+DW with MOON). Other rows are compared with the plain one: FedAvg, or local training
where a table has no FedAvg. The rule is that of all [comparisons](../how-to/studies.md): ahead or behind needs p <
0.05 of the paired t test after Holm's correction over the column's comparisons, and at least three seeds. Otherwise
no difference is seen, which does not mean that the methods are equal.

## Run a table yourself

```text
fedloom reproduce --list                                  # every table: cells, data, hours on this machine
fedloom reproduce feddw/table1 --plan                     # rows, hours, what is missing
fedloom reproduce feddw/table1 --only 'mnist-*' --workers 2
fedloom reproduce fedsc/table1 --scale small              # a stated reduction: the order of the methods alone
fedloom reproduce feddw/fig5                              # figure.png, figure.svg and figure.csv in its folder
```

A table is a [study](../how-to/studies.md), so it continues after a crash, and several machines can share its folder.
A cell takes one core, and `--workers` says how many cells run at a time. With `engine=processes` a cell takes all
cores, and its time is not compared with the estimate. The study ends with `reproduced.md` and `report.html` in its
folder, which also say what failed and why.

Data are read from `$FEDLOOM_DATA/SOURCE`. If a file is missing, nothing runs, and the message names the file, its
layout and where to get it.

A figure is drawn from the cells that are done, also those of a table. [Draw figures](../how-to/figures.md) says how
each is measured. Papers print no numbers with most of their figures, so figures have no verdicts. The pages have the
numbers of two kinds: what was sent until a target accuracy, and accuracy by an option.

`python benchmarks/reproduction.py` writes these pages from the CSV files that `fedloom reproduce` leaves. Where
released code departs from its paper, and what each departure does, is on [a page of its own](../methods/departures.md).
"""
_FORESEEN = """## Foreseen and taken

Core minutes of a row are estimated by trials of about a second. Every table shows them beside what the row took.
"""
_FACTOR = 1.5


def index_page(papers: Sequence[PaperResults], estimates: Path) -> str:
    """The index as Markdown. estimates: a text file that says how the core minutes of the runs were estimated."""
    blocks = [_HEAD.rstrip(), papers_glance(papers), _COUNTS, _TEXT.rstrip(), *_foreseen(papers, estimates)]
    return "\n\n".join(blocks) + "\n"


def _foreseen(papers: Sequence[PaperResults], estimates: Path) -> list[str]:
    """How many rows took what was estimated, within the factor that is promised."""
    measured = [table for paper in papers for table in paper.tables]
    ratios = [ratio for table in measured for ratio in time_ratios(compare_values(*table)).values()]
    if not ratios:
        return []
    history = estimates.read_text(encoding="utf-8") if estimates.exists() else ""
    near = sum(1 / _FACTOR <= ratio <= _FACTOR for ratio in ratios)
    spread = f"The ratio of taken to foreseen goes from {min(ratios):.2f} to {max(ratios):.2f}."
    return [f"{_FORESEEN}{history}{near} of {len(ratios)} rows are within a factor of {_FACTOR}. {spread}"]
