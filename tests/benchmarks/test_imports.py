"""Every script of the benchmarks can be imported: a name that was changed in the library is found here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "benchmarks"
NEEDS_A_PEER = {"flower_inprocess"}
IMPORT_ALL = """
import importlib, sys
sys.argv = sys.argv[:1]
for name in {names}:
    importlib.import_module(name)
"""


def test_every_script_can_be_imported():
    names = sorted(file.stem for file in FOLDER.glob("*.py") if file.stem not in NEEDS_A_PEER)
    assert "results" in names
    program = IMPORT_ALL.format(names=names)
    done = subprocess.run([sys.executable, "-c", program], cwd=FOLDER, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
