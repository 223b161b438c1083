"""Without `engine/fast/` everything runs, with the same bits."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "configs" / "demo.yaml"

TESTS = """
import sys, pytest, fedloom
assert fedloom.__file__.startswith(sys.argv[1]), fedloom.__file__
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", *sys.argv[2:]]))
"""
# With the folder, every step is recorded at once: the demo is too short for it to pay.
RUN = """
import importlib.util, json, sys
from pathlib import Path
import fedloom
from fedloom.runs.config.run_config import load, parse
from fedloom.runs.run import run
assert fedloom.__file__.startswith(sys.argv[1]), fedloom.__file__
replayers = []
if importlib.util.find_spec("fedloom.engine.fast"):
    from fedloom.engine.fast.replayer import Replayer
    plain = Replayer.__init__
    Replayer.__init__ = lambda self, data: plain(self, data, eager=True) or replayers.append(self)
config = parse(load(Path(sys.argv[2]), ["rounds=2", "local_epochs=1", "engine=serial"]))
numbers = run(config, out=Path(sys.argv[3])).numbers
print(json.dumps([numbers["checkpoint_sha256"], numbers["flops"], sum(replayer.programs for replayer in replayers)]))
"""


@pytest.fixture(scope="module")
def copied(tmp_path_factory):
    """The sources without the folder."""
    source = tmp_path_factory.mktemp("copied") / "src"
    shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__", "fast"))
    assert not (source / "fedloom" / "engine" / "fast").exists()
    assert (source / "fedloom" / "engine" / "speedups.py").exists()
    return source


def python(source, code, *words):
    """What a program says that has these sources."""
    done = subprocess.run(
        [sys.executable, "-c", code, str(source), *map(str, words)],
        env={"PYTHONPATH": str(source), **{name: os.environ.get(name, "") for name in ("PATH", "FEDLOOM_CACHE")}},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def test_the_serial_engines_tests_pass(copied):
    files = [f"tests/engine/test_{name}.py" for name in ("client", "loop")]
    assert " passed" in python(copied, TESTS, *files)


def test_a_run_has_the_same_bits(copied, tmp_path):
    with_it = json.loads(python(ROOT / "src", RUN, DEMO, tmp_path / "with"))
    without = json.loads(python(copied, RUN, DEMO, tmp_path / "without"))
    assert with_it[:2] == without[:2]
    assert with_it[2] > 0
    assert without[2] == 0
