"""Keep the results of finished studies and reproductions in results/.

    python -m benchmarks keep runs/all-methods                        # a study, under the name of its folder
    python -m benchmarks keep feddw-table1=runs/feddw-table1-full     # a table or figure of `fedloom reproduce`
    python -m benchmarks keep fedskc-table1-lenet5=runs/fedskc-lenet5 # the same in another setting: another file

Values of a reproduction join those that were kept before. Values of different versions of fedloom are refused unless
--allow-mixed is given. The rules of `fedloom advise` follow from the studies, so they are written again.
"""

from __future__ import annotations

import argparse
import gzip
from collections.abc import Sequence
from pathlib import Path

from benchmarks import advice
from benchmarks.cells import keep_study
from benchmarks.tables.reproduction import FOLDER, read_figure, with_other_images
from fedloom.core.files import write_atomic
from fedloom.papers.measurements import measurements_csv, merge, read_measurements
from fedloom.papers.recipe import find_recipe


def keep_reproduction(name: str, study: Path, allow_mixed: bool) -> Path:
    """Keep the values of a table, which join the earlier ones, or the rows of a figure, which replace them."""
    path, values = FOLDER / f"{name}.csv.gz", study / "reproduced.csv"
    if values.exists():
        paper, table, *_ = name.split("-")
        earlier = read_measurements(path) if path.exists() else []
        measured = with_other_images(find_recipe(f"{paper}/{table}"), read_measurements(values))
        content = measurements_csv(merge(earlier, measured, allow_mixed)).encode()
    else:
        read_figure(study / "figure.csv")
        content = (study / "figure.csv").read_bytes()
    write_atomic(path, gzip.compress(content, mtime=0))
    return path


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks keep", description=__doc__.partition("\n")[0])
    parser.add_argument("studies", nargs="+", metavar="[NAME=]FOLDER")
    parser.add_argument("--allow-mixed", action="store_true", help="also values of different versions of fedloom")
    options = parser.parse_args(arguments)
    for study in options.studies:
        name, _, folder = study.rpartition("=")
        print(keep_reproduction(name, Path(folder), options.allow_mixed) if name else keep_study(Path(folder)))
    advice.write_rules()
