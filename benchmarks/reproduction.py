"""Keep what `fedloom reproduce` measured, and write docs/reproduction/*.md from it.

python benchmarks/reproduction.py feddw-table1=runs/feddw-table1-full      # a study's folder into results/
python benchmarks/reproduction.py fedskc-table1-lenet5=runs/fedskc-lenet5  # another setting: a file of its own
python benchmarks/reproduction.py fedssa-fig5=runs/fedssa-fig5             # what was sent until a target; a sweep
python benchmarks/reproduction.py                                          # the pages again
fedloom reproduce --list --json > benchmarks/results/reproduction/planned.json   # hours of what was not run

Values join those that are in the file; a cell that was measured again counts as measured last. Those of different
versions of fedloom are refused, unless the first argument is --allow-mixed.
"""

from __future__ import annotations

import sys
from pathlib import Path

from fedloom.core.files import write_atomic
from fedloom.papers.measurements import measurements_csv, merge, read_measurements
from fedloom.papers.recipe import Recipe, find_recipe
from reproduction_page.figure_rows import read_rows
from reproduction_page.pages import pages
from reproduction_page.setting import with_other_images

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "benchmarks" / "results" / "reproduction"


def keep(name: str, study: Path, allow_mixed: bool) -> None:
    """Copy what a study measured to `results/reproduction/NAME.csv`.

    A table's values join the earlier ones. The rows of a figure, which is drawn from all its cells, replace them.
    """
    path, values = FOLDER / f"{name}.csv", study / "reproduced.csv"
    FOLDER.mkdir(exist_ok=True)
    if values.exists():
        earlier = read_measurements(path) if path.exists() else []
        measured = with_other_images(_recipe_of(name), read_measurements(values))
        write_atomic(path, measurements_csv(merge(earlier, measured, allow_mixed)))
    else:
        read_rows(study / "figure.csv")
        write_atomic(path, (study / "figure.csv").read_bytes())


def _recipe_of(name: str) -> Recipe:
    """Find the recipe of a file: the words after the table's name say which other setting it has."""
    paper, table, *_ = name.split("-")
    return find_recipe(f"{paper}/{table}")


if __name__ == "__main__":
    mixed = sys.argv[1:2] == ["--allow-mixed"]
    for argument in sys.argv[2 if mixed else 1 :]:
        name, _, study = argument.partition("=")
        keep(name, Path(study), mixed)
    for file_name, text in pages(FOLDER).items():
        write_atomic(ROOT / "docs" / "reproduction" / file_name, text)
