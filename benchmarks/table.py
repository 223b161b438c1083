"""Print a table of the documentation as Markdown, e.g. `python -m benchmarks table leaderboard`."""

import argparse
from collections.abc import Sequence

from benchmarks.tables import tables


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks table", description=__doc__)
    parser.add_argument("name", choices=sorted(tables()), metavar="NAME", help=", ".join(sorted(tables())))
    print(tables()[parser.parse_args(arguments).name])
