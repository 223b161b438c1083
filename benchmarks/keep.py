"""Keep the results of finished studies and reproductions in results/.

    python -m benchmarks keep runs/all-methods                        # a study, under the name of its folder
    python -m benchmarks keep feddw-table1=runs/feddw-table1-full     # a table, or a figure that has been drawn
    python -m benchmarks keep fedskc-table1-lenet5=runs/fedskc-lenet5 # the same in another setting: another file

Values of a reproduction join those that were kept before. Values of different versions of fedloom are refused unless
--allow-mixed is given. The forecast of `fedloom advise` follows from the studies, so it is written again.
"""

import argparse
import gzip
from collections.abc import Sequence
from pathlib import Path

from benchmarks import advice
from benchmarks.cells import keep_study
from benchmarks.tables.reproduction import FOLDER, read_figure, with_other_images
from fedloom.core.files import write_atomic
from fedloom.papers.measurements import Measurement, measurements_csv, read_measurements
from fedloom.papers.recipe import find_recipe
from fedloom.runs.storage.finished_runs import refuse_mixed


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


def merge(earlier: Sequence[Measurement], later: Sequence[Measurement], allow_mixed: bool = False) -> list[Measurement]:
    """Join two sets; of what was measured in both, the later one counts.

    Raises `ValueError` for different settings, and `ConfigError` for different versions of fedloom unless
    `allow_mixed`.
    """
    changed_by_column: dict[str, set[str]] = {}
    for measurement in (*earlier, *later):
        changed_by_column.setdefault(measurement.column, set()).add(measurement.changed)
    for settings in changed_by_column.values():
        if len(settings) > 1:
            names = " and ".join(setting or "the paper's own" for setting in sorted(settings))
            raise ValueError(f"values of different settings: {names}; keep them in files of their own")
    # An empty later value, e.g. a gain whose baseline was not run, does not replace an earlier number.
    with_numbers = {_key(measurement) for measurement in earlier if measurement.ours is not None}
    new = [
        measurement for measurement in later if measurement.ours is not None or _key(measurement) not in with_numbers
    ]
    merged = list({_key(measurement): measurement for measurement in (*earlier, *new)}.values())
    if not allow_mixed:
        refuse_mixed({f"{m.column}/{m.row}/seed{m.seed}": version_in(m.machine) for m in merged})
    return merged


def _key(measurement: Measurement) -> tuple[str, str, str, str | None, int]:
    return measurement.column, measurement.row, measurement.metric, measurement.domain, measurement.seed


def version_in(machine: str) -> str | None:
    """Return the version of fedloom in a line of `environment_line`; None for any other text."""
    _, separator, version = machine.rpartition(", fedloom ")
    return version if separator else None


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks keep", description=__doc__.partition("\n")[0])
    parser.add_argument("studies", nargs="+", metavar="[NAME=]FOLDER")
    parser.add_argument("--allow-mixed", action="store_true", help="also values of different versions of fedloom")
    options = parser.parse_args(arguments)
    for study in options.studies:
        name, _, folder = study.rpartition("=")
        print(keep_reproduction(name, Path(folder), options.allow_mixed) if name else keep_study(Path(folder)))
    advice.write_forecast()
