"""The commands of the page on missing values, as a reader types them, on the table that its Python blocks write."""

import shlex
from pathlib import Path

import pytest

from command_line import call
from typed_commands import block_of, commands_of

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "missing-values.md"


def test_from_a_table_with_holes_to_predictions_of_new_rows(tmp_path, monkeypatch, capsys):
    pytest.importorskip("onnxscript")
    onnx = pytest.importorskip("onnx")
    monkeypatch.chdir(tmp_path)
    exec(block_of(PAGE, "default_rng").partition("table = ")[0], {})
    Path("new.csv").write_text("age,sex,chol,ward,ill\n61,f,,N,y\n,,,S,n\n44,m,210,E,n\n")
    printed = {}
    for command in commands_of(PAGE):
        if command.program == "fedloom" and command.section == "On the command line":
            words = shlex.split(command.text)[1:]
            code, out, err = call(capsys, *words, *(["rounds=1"] if words[0] == "run" else []))
            assert code == 0, f"{command.text}: {err}"
            printed[words[0]] = out + err
    config = Path("first.yaml").read_text()
    assert "incomplete: impute" in config
    assert "impute: {numbers: mean, words: most_frequent, indicator: true}" in config
    assert "missing cells of 300 rows: chol" in printed["init"]
    assert "on 3 samples of new.csv" in printed["evaluate"]
    assert "missing cells, filled as in training: 'age' (1, mean" in printed["predict"]
    assert all(f"new.csv:{row}" in printed["predict"] for row in (1, 2, 3))
    (entry,) = onnx.load("model.onnx").metadata_props
    assert '"imputed":[{"column":"age","features":["age"],"strategy":"mean"' in entry.value
