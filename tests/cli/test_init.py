"""`fedloom init`: a commented config for a user's data, which other commands take as it is."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from command_line import call


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = "\n".join(f"{row % 7 + row / 100},{'NS'[row % 2]},{'yes' if row % 3 else 'no'}" for row in range(120))
    Path("my patients.csv").write_text(f"age,ward,ill\n{rows}\n")


def test_the_written_config_is_inspected_and_run(capsys: Any) -> None:
    code, out, err = call(capsys, "init", "--from", "my patients.csv", "--out", "configs/first.yaml")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "configs/first.yaml: csv, 2 classes, 2 clients (natural)",
        "next: fedloom inspect configs/first.yaml, then fedloom run configs/first.yaml",
    ]
    comments = [line for line in Path("configs/first.yaml").read_text().splitlines() if line.lstrip().startswith("#")]
    assert any("`fedloom help own-model`" in line for line in comments)
    assert not any(line.endswith("-") or line.count("`") % 2 for line in comments)  # no path or command over two lines
    code, out, _ = call(capsys, "inspect", "configs/first.yaml", "--json")
    assert code == 0
    assert json.loads(out)["clients"] == 2
    assert call(capsys, "run", "configs/first.yaml", "rounds=1", "--quiet")[0] == 0


def test_what_is_left_out_is_said(capsys: Any) -> None:
    rows = "\n".join(f"{row % 7}-{row % 9},{'x' if row == 5 else row % 7},{'yn'[row % 3 > 0]}" for row in range(120))
    Path("odd.csv").write_text(f"range,age,ill\n{rows}\n")
    _, _, err = call(capsys, "init", "--from", "odd.csv")
    assert "scenario.missing = ['x']: these cells are no numbers, and count as missing" in err
    assert "1 of 120 rows lack a value" in err
    assert "scenario.drop = ['range']: range: " in err


SIGNS = ("mass", "node")


def written(path: str, spell: Any) -> None:
    """Write 120 rows with two labels as `spell` writes them, of which the first rests on `a` and the second on `b`."""
    rows = [(row % 8, row // 8 % 15, *spell(row % 8 > 3, row // 8 % 15 > 7)) for row in range(120)]
    heads = ["a", "b", *(SIGNS if len(rows[0]) == 4 else ["finding"])]
    Path(path).write_text("\n".join(",".join(map(str, row)) for row in [heads, *rows]) + "\n")


def in_columns(*held: bool) -> list[str]:
    return [str(int(of)) for of in held]


def in_words(*held: bool, mark: str = "|") -> list[str]:
    return [mark.join(name for name, of in zip(SIGNS, held, strict=True) if of) or "No finding"]


@pytest.mark.parametrize(
    ("spell", "label"), [(in_columns, "mass,node"), (in_words, "finding"), (lambda *of: in_words(*of, mark=";"), None)]
)
def test_several_labels_from_init_to_new_rows(capsys: Any, spell: Any, label: str | None) -> None:
    written("rows.csv", spell)
    code, out, err = call(capsys, "init", "--from", "rows.csv", *(("--label", label) if label else ()))
    assert (code, "rows.yaml: csv, 2 labels, 2 clients (iid)" in out) == (0, True)
    assert "scenario.labels = multi" in err
    assert yaml.safe_load(Path("rows.yaml").read_text())["evaluation"]["metrics"] == ["auroc"]
    assert call(capsys, "run", "rows.yaml", "rounds=4", "--out", "run", "--quiet")[0] == 0
    for file, other, own in (("columns.csv", in_columns, ()), ("words.csv", in_words, ("--label", "finding"))):
        written(file, other)
        code, out, err = call(capsys, "evaluate", "run", file, *own, "--metric", "auroc", "--json")
        if spell is in_columns and other is in_words:  # the run knows no word for none
            assert err == "error: words.csv: label 'No finding' is none of mass, node\n"
        else:
            assert json.loads(out)["metrics"]["auroc"] > 0.95
    assert call(capsys, "evaluate", "run", "rows.csv")[0] == 0
    code, out, _ = call(capsys, "predict", "run", "rows.csv", "--json")
    (last,) = json.loads(out)["predictions"][119:]
    assert (last["labels"], [*last["probabilities"]]) == ([*SIGNS], [*SIGNS])


def test_several_labels_that_are_not_there_are_one_line(capsys: Any) -> None:
    written("rows.csv", in_columns)
    assert call(capsys, "init", "--from", "rows.csv", "--label", "mass,nod")[2].count("did you mean 'node'?\n") == 1
    call(capsys, "init", "--from", "rows.csv", "--label", "mass,node")
    call(capsys, "run", "rows.yaml", "rounds=1", "--out", "run", "--quiet")
    for label, problem in {
        "mass": "label '0' is none of mass, node",
        "mass,a": "those of all labels: mass, node",
    }.items():
        code, _, err = call(capsys, "evaluate", "run", "rows.csv", "--label", label)
        assert (code, err.count("\n"), problem in err) == (2, 1, True)


def test_names_with_spaces_are_quoted(capsys: Any) -> None:
    code, out, _ = call(capsys, "init", "--from", "my patients.csv", "--json")
    assert code == 0
    assert json.loads(out) == {"config": "my patients.yaml", "clients": 2, "classes": ["no", "yes"], "findings": []}
    _, out, _ = call(capsys, "init", "--from", "my patients.csv", "--out", "my own.yaml")
    assert out.splitlines()[1] == "next: fedloom inspect 'my own.yaml', then fedloom run 'my own.yaml'"
    assert "#   fedloom run 'my patients.yaml'" in Path("my patients.yaml").read_text()
    assert call(capsys, "inspect", "my patients.yaml")[0] == 0


def test_what_the_audit_finds_is_printed_and_mended(capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("COLUMNS", "2000")  # no sentence is broken
    rows = [
        f"{9999 if row % 40 == 7 else 20 + row % 61},{row % 30:05},DE,{'yes' if row % 3 else 'no'}"
        for row in range(240)
    ]
    Path("rows.csv").write_text("\n".join(["age,zip,country,ill", *rows]) + "\n")
    code, out, err = call(capsys, "init", "--from", "rows.csv")
    assert code == 0
    for words in ("sentinel", "9999 stands in 6 cells", 'scenario.missing: ["9999"]', 'scenario.drop: ["country"]'):
        assert words in out
    assert "scenario.drop = ['country']: country: all filled cells are the same" in err
    code, out, _ = call(capsys, "inspect", "--audit", "rows.yaml")
    assert (code, out) == (0, "The audit found nothing.\n")
    call(capsys, "init", "--from", "rows.csv", "--out", "again.yaml", "--json")
    written = yaml.safe_load(Path("again.yaml").read_text())["scenario"]
    assert {key: written[key] for key in ("missing", "drop", "categorical")} == {
        "missing": ["9999"],
        "drop": ["country"],
        "categorical": ["zip"],
    }


@pytest.mark.parametrize("existing", ["file", "folder", "link"])
def test_nothing_is_overwritten(capsys: Any, existing: str) -> None:
    path = Path("my patients.yaml")
    if existing == "link":
        path.symlink_to("nowhere.yaml")
    elif existing == "folder":
        path.mkdir()
    else:
        path.write_text("rounds: 7\n")
    for words in (["--from", "my patients.csv"], ["--from", "digits", "--out", str(path)]):
        code, out, err = call(capsys, "init", *words)
        assert (code, out) == (2, "")
        assert (
            err == "error: my patients.yaml: it exists, and `init` overwrites nothing; name another file with --out\n"
        )
    assert existing != "file" or path.read_text() == "rounds: 7\n"
    assert not Path("nowhere.yaml").exists()


def test_without_data_and_terminal_it_says_what_to_name(capsys: Any) -> None:
    code, out, err = call(capsys, "init")
    assert (code, out) == (2, "")
    assert err.startswith("error: name your data: fedloom init --from FILE.csv")
    assert err.count("\n") == 1


def test_in_a_terminal_it_asks(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[str]()

    def prompt(text: str, default: str | None = None, **_: Any) -> str:
        asked.append(text)
        return default or "my patients.csv"

    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(typer, "prompt", prompt)
    code, out, _ = call(capsys, "init")
    assert code == 0
    assert [text.partition(" (")[0] for text in asked] == [
        "Your data",
        "Which column is the class?",
        "Which column is the owner of a row?",
    ]
    assert out.startswith("my patients.yaml: csv, 2 classes, 2 clients (natural)")


@pytest.mark.parametrize("out", ["/proc/first.yaml", "my patients.csv/first.yaml"])
def test_a_place_that_cannot_be_written_is_one_line(capsys: Any, out: str) -> None:
    code, _, err = call(capsys, "init", "--from", "digits", "--out", out)
    assert code == 2
    assert err.count("\n") == 1
