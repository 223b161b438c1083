"""The executed notebooks of the docs: they run, and what is kept shows progress, tables, plots and one short error."""

import ast
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import fedloom as fl
from sentences import LONGEST, sentences

DOCS = Path(__file__).parents[2] / "docs"
NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))
SMALL = {"ROUNDS, SEEDS = 12, 3": "ROUNDS, SEEDS = 2, 2", "ROUNDS, SEEDS = 20, 3": "ROUNDS, SEEDS = 2, 2"}
LARGEST = 300_000  # bytes

each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def small(notebook: dict[str, Any]) -> dict[str, Any]:
    """The notebook with few rounds and seeds."""
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        for large, quick in SMALL.items():
            source = source.replace(large, quick)
        cell["source"] = source.replace("ROUNDS = 8", "ROUNDS = 2")
    return notebook


def read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def code_cells(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def check_outputs(notebook: dict[str, Any]) -> None:
    """Progress, tables, plots and one error of one line are among the outputs, and nothing else is long."""
    cells = code_cells(notebook)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    shown = [{kind: "".join(text) for kind, text in output.get("data", {}).items()} for output in outputs]
    bars = [data["text/plain"].splitlines()[0] for data in shown if "━" in data.get("text/plain", "")]
    assert bars
    for bar in bars:
        done = re.search(r"(\d+)/(\d+)", bar)
        assert done is not None
        assert done[1] == done[2]
    assert any("<table" in data.get("text/html", "") for data in shown)
    assert any("image/png" in data for data in shown)
    (error,) = [output for output in outputs if output["output_type"] == "error"]
    assert len(error["traceback"]) == 1
    assert "\n" not in error["traceback"][0]
    assert error["ename"] in ("ConfigError", "DataError")
    assert all(len("".join(output.get("text", "")).splitlines()) < 30 for output in outputs)


def test_there_are_three() -> None:
    assert len(NOTEBOOKS) == 3


@each_notebook
def test_the_kept_outputs_show_all_and_are_small(path: Path) -> None:
    check_outputs(read(path))
    assert path.stat().st_size < LARGEST
    assert "/home/" not in path.read_text(encoding="utf-8")
    assert "/work/" not in path.read_text(encoding="utf-8")


@each_notebook
def test_no_sentence_of_a_notebook_is_a_riddle(path: Path) -> None:
    texts = ["".join(cell["source"]) for cell in read(path)["cells"] if cell["cell_type"] == "markdown"]
    assert [words for text in texts for words in sentences(text) if len(words.split()) > LONGEST] == []


@each_notebook
def test_a_notebook_runs_as_python(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import matplotlib.pyplot as plt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    names: dict[str, Any] = {"__name__": "__main__"}
    errors = 0
    for cell in code_cells(small(read(path))):
        ast.parse(cell["source"])  # no magic: it is plain Python
        program = compile(cell["source"], str(path), "exec")
        if "raises-exception" in cell["metadata"].get("tags", []):
            errors += 1
            with pytest.raises(fl.FedloomError) as caught:
                exec(program, names)
            assert "\n" not in str(caught.value)
        else:
            exec(program, names)
    plt.close("all")
    assert errors == 1


@each_notebook
def test_nbconvert_executes_a_notebook(path: Path, tmp_path: Path) -> None:
    pytest.importorskip("nbconvert", reason="needs the notebooks extra: make notebooks")
    pytest.importorskip("ipykernel", reason="needs the notebooks extra: make notebooks")
    copy = tmp_path / path.name
    copy.write_text(json.dumps(small(read(path))), encoding="utf-8")
    words = ["--to", "notebook", "--execute", "--inplace", "--ExecutePreprocessor.record_timing=False", str(copy)]
    settings = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "IPYTHONDIR": str(tmp_path / "ipython")}
    ended = subprocess.run(
        [sys.executable, "-m", "nbconvert", *words], env=os.environ | settings, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    check_outputs(read(copy))
    assert copy.stat().st_size < LARGEST


def test_the_trace_of_an_error_stays_at_hand() -> None:
    nbformat = pytest.importorskip("nbformat", reason="needs the notebooks extra: make notebooks")
    nbclient = pytest.importorskip("nbclient", reason="needs the notebooks extra: make notebooks")
    sources = ['import fedloom as fl\nfl.scenario("digitz")', "%tb", "1 / 0"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
    nbclient.NotebookClient(notebook, kernel_name="python3", allow_errors=True).execute()
    line, trace, plain = ("\n".join(cell.outputs[0]["traceback"]) for cell in notebook.cells)
    assert line.startswith("ConfigError: ")
    assert line.endswith("did you mean 'digits'?")
    assert "\n" not in line
    assert "Traceback (most recent call last)" in trace
    assert "in scenario" in trace
    assert "ZeroDivisionError" in plain  # other errors are as they were


@each_notebook
def test_the_site_shows_a_notebook_with_its_outputs(path: Path) -> None:
    pytest.importorskip("mkdocs", reason="needs the docs extra: make docs")
    spec = importlib.util.spec_from_file_location("notebook_pages", DOCS / "notebook_pages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    page = module.notebook_page(read(path), path.name)
    assert page.startswith("# ")
    assert page.count("```python\n") == len(code_cells(read(path)))
    assert "data:image/png;base64," in page
    assert re.search(r"<pre>(Config|Data)Error: .*</pre>", page)
    assert ".ipynb)" not in page.replace(f"({path.name})", "")
