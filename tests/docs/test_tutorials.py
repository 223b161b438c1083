"""The tutorials as a reader follows them: the Python, files and commands of a page in their order, in an empty folder.

A `yaml` block whose first line is a comment with a file name is a file that the reader writes. The lines of an `output`
block are among those that were printed since the one before, numbers aside: processors round differently.
"""

import re
import shlex
from pathlib import Path

import pytest

from command_line import call

DOCS = Path(__file__).parents[2] / "docs"
NOT_RUN = ("pip install ", "fedloom flower up config.yaml --data data\n")  # test_deployment_typed.py runs the second
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def without_numbers(text: str) -> str:
    return " ".join(re.sub(r"[-+]?\d[\d.,]*", "0", text).split())


def type_line(capsys: pytest.CaptureFixture[str], line: str) -> str:
    """Type a command, write its output where `>` says, and return all that it printed."""
    command, _, file = line.partition(" > ")
    program, *words = shlex.split(command, comments=True)
    assert program == "fedloom"
    code, out, err = call(capsys, *words)
    assert code == 0, f"{line}: {err}"
    if file:
        Path(file.strip()).write_text(out)
    return out + err


@pytest.mark.slow
@pytest.mark.parametrize("page", ["tutorials/paper", "tutorials/clinic", "tutorials/classroom", "deployment/tutorial"])
def test_a_tutorial_does_what_it_says(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.setenv("COLUMNS", "200")
    path = DOCS / f"{page}.md"
    text = path.read_text(encoding="utf-8").partition("## 3. Three machines")[0]
    namespace, printed = {"__name__": "__page__"}, ""
    for language, block in FENCE.findall(text):
        if language == "python":
            exec(compile(block, str(path), "exec"), namespace)
            captured = capsys.readouterr()
            printed += captured.out + captured.err
        elif language == "yaml":
            Path(block.splitlines()[0].removeprefix("# ")).write_text(block)
        elif language == "text":
            printed += "".join(
                type_line(capsys, line) for line in block.splitlines(True) if not line.startswith(NOT_RUN)
            )
        elif language == "output":
            (tmp_path / "printed.txt").write_text(printed)
            lines = [without_numbers(line) for line in block.splitlines()]
            assert [line for line in lines if line not in without_numbers(printed)] == [], printed
            printed = ""
    for name in re.findall(r"^\| `([\w./-]+)` \|", text, re.MULTILINE):
        assert Path(name).exists(), name
