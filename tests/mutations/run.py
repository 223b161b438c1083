"""Puts each mistake of mutations.py into a copy of the source, and runs the tests that must notice it.

python tests/mutations/run.py                # all: a table, and exit code 1 if the suite misses one
python tests/mutations/run.py fedsc moon     # those whose line has one of these words
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from mutations import MUTATIONS, Mutation

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "fedloom"
NOTICED, PASSED = 1, 0  # pytest's exit codes


def outcome(tests: tuple[str, ...], source: Path) -> tuple[int, str]:
    """pytest's exit code over `tests` with the sources below `source`, and the last lines that it printed."""
    words = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-n", "0"]
    done = subprocess.run(
        [*words, *(f"tests/{test}" for test in tests)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout[-2000:]


def mutated(mutation: Mutation, source: Path) -> tuple[int, str]:
    """As `outcome`, with the mistake put in and taken out again."""
    path = source / "fedloom" / mutation.file
    before = path.read_text(encoding="utf-8")
    if before.count(mutation.old) != 1:
        raise SystemExit(f"{mutation.mistake}: {mutation.file} has {before.count(mutation.old)} places like it, not 1")
    try:
        path.write_text(before.replace(mutation.old, mutation.new), encoding="utf-8")
        return outcome(mutation.tests, source)
    finally:
        path.write_text(before, encoding="utf-8")


def main(words: list[str]) -> int:
    chosen = [m for m in MUTATIONS if not words or any(word in m.mistake for word in words)]
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "src"
        shutil.copytree(SOURCE, source / "fedloom", ignore=shutil.ignore_patterns("__pycache__"))
        for tests in sorted({m.tests for m in chosen}):
            code, said = outcome(tests, source)
            if code != PASSED:
                raise SystemExit(f"{' '.join(tests)}: must pass without a mistake\n{said}")
        print("| mistake | file | noticed |\n|---|---|---|")
        for mutation in chosen:
            code, said = mutated(mutation, source)
            if code not in (NOTICED, PASSED):
                raise SystemExit(f"{mutation.mistake}: the tests did not run\n{said}")
            missed += code == PASSED
            print(f"| {mutation.mistake} | `{mutation.file}` | {'yes' if code == NOTICED else 'NO'} |", flush=True)
    print(f"\n{len(chosen) - missed} of {len(chosen)} mistakes are noticed.")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
