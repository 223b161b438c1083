"""`fedloom inspect --audit` on a table file and on a config."""

import json
from pathlib import Path
from typing import Any

import pytest

from command_line import call
from typed_commands import block_of, without_comment

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ages = [9999 if row in (5, 50) else 20 + row * 37 % 61 + row % 10 / 10 for row in range(120)]
    rows = "\n".join(f"{age};{'NS'[row % 2]};{'yes' if row % 3 else 'no'};DE" for row, age in enumerate(ages))
    Path("patients.csv").write_text(f"age;ward;ill;country\n{rows}\n")
    keys = "source: csv, path: patients.csv, separator: ;, label: ill, drop: [country], partition: iid, clients: 2"
    Path("patients.yaml").write_text(f"scenario: {{{keys}}}\n")


def test_a_table_file(capsys: Any) -> None:
    code, out, err = call(capsys, "inspect", "--audit", "patients.csv", "--label", "ill", "--json")
    assert (code, err) == (0, "")
    sentinel, constant = json.loads(out)["findings"]
    assert (sentinel["check"], sentinel["column"], sentinel["rows"]) == ("sentinel", "age", 2)
    assert sentinel["first_rows"] == [6, 51]
    assert (constant["check"], constant["key"]) == ("constant", 'scenario.drop: ["country"]')


def test_a_config_audits_the_columns_that_it_uses(capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("COLUMNS", "80")  # where sentences are broken, and keys are not
    code, out, _ = call(capsys, "inspect", "patients.yaml", "--audit")
    assert code == 0
    assert "sentinel" in out
    assert 'scenario.missing: ["9999"]' in out
    assert "country" not in out
    code, out, _ = call(capsys, "inspect", "patients.yaml", 'scenario.missing=["9999"]', "--audit")
    assert (code, out) == (0, "The audit found nothing.\n")


def test_the_commands_of_the_page_run_as_they_are_typed(capsys: Any) -> None:
    Path("patients.yaml").unlink()
    Path("patients.csv").write_text(Path("patients.csv").read_text().replace(";", ","))
    for line in block_of(ROOT / "docs/how-to/audit.md", "fedloom init").splitlines():
        code, out, err = call(capsys, *without_comment(line)[1:])
        assert code == 0, err
    assert out == "The audit found nothing.\n"  # what `init` wrote


def test_folders_and_files_of_persons(capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("COLUMNS", "2000")
    for number in range(60):
        path = Path(f"scans/{'ill' if number % 2 else 'well'}/patient{number // 4:03}_slice{number}.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    Path("scans.yaml").write_text("scenario: {source: image-folder, path: scans}\n")
    code, out, _ = call(capsys, "inspect", "--audit", "scans.yaml")
    assert code == 0
    assert "15 names 'patient' and a number in 60 files" in out
    assert "scenario.group: {pattern: '(patient\\d+)'}" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["patients.csv", "--audit", "--label", "il"], "patients.csv: label = 'il' is no column: did you mean 'ill'"),
        (["patients.csv", "rounds=3", "--audit"], "'rounds=3': patients.csv is a table, which has no keys"),
        (["patients.yaml", "--audit", "--label", "ill"], "a config names its label and owner; leave --label"),
        (["patients.yaml", "--audit", "--out", "a.png"], "--out a.png: an audit has no picture"),
        (["patients.yaml", "--label", "ill"], "--label and --owner belong to --audit FILE"),
        (["demo", "--audit"], "source digits is none of these"),
        (["gone.csv", "--audit"], "gone.csv: no such file"),
    ],
)
def test_what_cannot_be_audited(capsys: Any, words: list[str], message: str) -> None:
    code, out, err = call(capsys, "inspect", *words)
    assert (code, out) == (2, "")
    assert message in err
