"""Make the scripts of `benchmarks/` importable, after everything else on the path."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
