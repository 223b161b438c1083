"""Draw the figure of a folder that `fedloom reproduce` has filled, from the cells that are done.

    fedloom reproduce feddw/fig5 --scale small
    python -m benchmarks paper-figures runs/feddw-fig5-small

The folder then holds figure.png, figure.svg, and figure.csv with every number of the picture. A table is drawn as bars.
Figures of trained models read the data of the runs again.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from benchmarks.figures.drawing import save
from benchmarks.figures.rows import figure_rows, not_drawn
from fedloom.cli.comparisons import REPRODUCED
from fedloom.core.errors import ConfigError
from fedloom.core.files import parse_json
from fedloom.papers.recipe import find_recipe
from fedloom.runs.studies.outcome import done_of, outcome
from fedloom.runs.studies.study_folder import StudyFolder, read


def draw(folder: Path, allow_mixed: bool = False) -> list[Path]:
    """Draw the figure of a reproduction in its folder; return the paths of picture and rows, none if no cell is done.

    Raises `ConfigError` for a folder without a reproduction, and for cells of different versions of fedloom unless
    `allow_mixed`.
    """
    study = read(folder)
    if study is None or not (folder / REPRODUCED).exists():
        raise ConfigError(
            f"{folder}: no reproduction in this folder; `fedloom reproduce NAME --out {folder}` makes one"
        )
    stored = parse_json((folder / REPRODUCED).read_text(encoding="utf-8"))
    recipe = find_recipe(stored["name"])
    changed = "" if stored["setting"] == recipe.scale_text("full") else stored["setting"]
    done = done_of(study, outcome(study, StudyFolder(folder), study.cells), allow_mixed)
    # The study may have columns and rows of an earlier version of the recipe.
    done = {key: runs for key, runs in done.items() if key[0] in recipe.table.columns and key[1] in recipe.rows}
    rows = [row | {"changed": changed} for row in figure_rows(recipe, done, print)]
    for text in not_drawn(recipe):
        print(f"not drawn: {text}")
    return save("bars" if recipe.table.kind == "table" else recipe.table.kind, rows, folder, recipe.table.axis)


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks paper-figures",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument("--allow-mixed", action="store_true", help="also cells of different versions of fedloom")
    options = parser.parse_args(arguments)
    for folder in options.folders:
        print(f"figure: {', '.join(map(str, draw(folder, options.allow_mixed))) or 'no cell is done'}")
