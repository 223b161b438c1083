"""The notebook runs from top to bottom, at small size."""

import json
from pathlib import Path
from typing import Any

NOTEBOOK = Path(__file__).parents[2] / "examples" / "first_week.ipynb"


def test_the_notebook_runs(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    names: dict[str, Any] = {"__name__": "__main__"}
    for source in code:
        small = source.replace("ROUNDS, SEEDS = 5, 2", "ROUNDS, SEEDS = 2, 1")
        exec(compile(small, str(NOTEBOOK), "exec"), names)  # our own file, as Jupyter would run it
    assert (names["ROUNDS"], names["SEEDS"]) == (2, 1)
    assert len(names["compared"].results) == 2
    assert names["scores"].shape == (5, 10)


def test_the_notebook_is_kept_without_outputs() -> None:
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in cells if cell["cell_type"] == "code")
