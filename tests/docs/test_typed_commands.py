"""The commands of the README, of the tutorial and of the FAQ, as a reader types them, in the folder of a fresh clone.

Every line of `fedloom` is taken from the page's text and runs unchanged. The clone is an empty folder with the
repository's `configs`, whose demo has one round here, and with the files of the reader's own that the lines name.
"""

import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest

from command_line import call
from typed_commands import block_of, commands_of

ROOT = Path(__file__).parents[2]
README, TUTORIAL, FAQ = ROOT / "README.md", ROOT / "docs" / "tutorial.md", ROOT / "docs" / "faq.md"
# What is not run here, and why.
NOT_RUN = {
    "python3 -m venv ~/federated && source ~/federated/bin/activate": "makes an environment in the home directory",
    "python -m pip install .": "needs a package index",
    "make demo": "makes an environment; `fedloom demo`, which it calls, runs before the other commands here",
    "make docs": "makes an environment",
    "make test": "runs this test",
    "fedloom methods NAME": "stands for any method",
}
LONG = "fedloom reproduce "  # makes all cells of a table


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """The folder in which a reader types, with the reader's own files."""
    from PIL import Image
    from sklearn.datasets import load_digits

    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    demo = tmp_path / "configs" / "demo.yaml"
    demo.write_text(re.sub(r"^rounds: \d+$", "rounds: 1", demo.read_text(), flags=re.MULTILINE))
    study = block_of(ROOT / "docs" / "how-to" / "studies.md", "# mine.yaml")
    study = study.replace("rounds: 30", "rounds: 1").replace("rounds: 50", "rounds: 2").replace("seeds: 3", "seeds: 1")
    (tmp_path / "mine.yaml").write_text(study)
    digits = load_digits()
    pictures = (255 / 16 * digits.images).astype(np.uint8)
    np.savez(tmp_path / "new.npz", x=pictures[:50, None], y=digits.target[:50])
    Image.fromarray(pictures[0]).save(tmp_path / "picture.png")
    rows = [f"{40 + k % 30},{110 + k % 20},{'fm'[k % 2]},{'ill' if k % 3 else 'well'}" for k in range(60)]
    (tmp_path / "data.csv").write_text("\n".join(["age,pressure,sex,state", *rows]) + "\n")
    return tmp_path


def typed_lines(page: Path) -> list[str]:
    return [command.text.partition(" #")[0].strip() for command in commands_of(page)]


def calls_in(line: str) -> list[list[str]]:
    """The words of each command of a line; a shell runs those between `;` one after another."""
    return [shlex.split(part) for part in line.split(";")]


@pytest.mark.matrix  # half a minute, among all that `make test-matrix` runs
@pytest.mark.slow
def test_the_readmes_commands_run_as_they_are_typed(clone, capsys):
    assert call(capsys, "demo", "--rounds", "1", "--seeds", "2", "--quiet")[0] == 0  # make demo
    for line in typed_lines(README):
        if line in NOT_RUN or line.startswith(LONG):
            continue
        for words in calls_in(line):
            assert words[0] == "fedloom"
            code, _, err = call(capsys, *words[1:])
            assert code == 0, f"{line}: {err}"
    assert (clone / "who.png").is_file()
    assert (clone / "model.safetensors").is_file()


@pytest.mark.matrix
@pytest.mark.slow
def test_the_readmes_long_command_runs_as_it_is_typed(clone, capsys):
    (line,) = [line for line in typed_lines(README) if line.startswith(LONG)]
    assert call(capsys, *shlex.split(line)[1:])[0] == 0


@pytest.mark.slow
@pytest.mark.parametrize(("page", "least"), [(TUTORIAL, 2), (FAQ, 12)], ids=["tutorial", "faq"])
def test_the_commands_of_a_page_run_as_they_are_typed(clone, capsys, page, least):
    lines = [line for line in typed_lines(page) if line not in NOT_RUN]
    assert len(lines) >= least
    for line in lines:
        for words in calls_in(line):
            assert words[0] == "fedloom"
            code, _, err = call(capsys, *words[1:])
            assert code == 0, f"{line}: {err}"


def test_what_is_not_run_is_on_a_page_and_make_knows_its_targets():
    lines = {line for page in (README, TUTORIAL, FAQ) for line in typed_lines(page)}
    assert NOT_RUN.keys() <= lines
    makefile = (ROOT / "Makefile").read_text()
    for line in lines:
        if line.startswith("make "):
            assert re.search(rf"^{line.split()[1]}:", makefile, re.MULTILINE), line
    assert re.search(r"^demo:.*\n\t\$\(BIN\)/fedloom demo$", makefile, re.MULTILINE)


def test_a_pipe_is_no_list_of_commands():
    """`fedloom models | fedloom datasets` prints the last one's list alone."""
    assert not [
        line for page in (README, TUTORIAL, FAQ) for line in typed_lines(page) if re.search(r"\| *fedloom", line)
    ]
