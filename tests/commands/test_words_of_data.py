"""Words of other people's data, their files and their configs are shown, and no terminal or page obeys them."""

import json

import pytest

from command_line import call

ACTS = "\x1b[2J\x1b]0;owned\x07\u202e"
CONFIG = {"method": "fedavg", "model": "mlp", "rounds": 1, "local_epochs": 1, "evaluation": {"every": 1}}


def shows(text):
    """No sign in it acts."""
    lines = text.replace("\t", " ").split("\n")
    return all(line.replace("\u00a0", " ").isprintable() for line in lines)


@pytest.fixture
def table(tmp_path, monkeypatch):
    """A table whose file, columns, words and classes hold control characters, and a config that reads it."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / f"rows{ACTS}.csv"
    names = [f"a{ACTS}", f"b\u2028{ACTS}", f"state{ACTS}"]
    rows = [f"{k % 7},{'x' if k % 3 else ACTS},{'ill' if k % 2 else 'well' + ACTS}" for k in range(60)]
    file.write_text("\n".join([",".join(names), *rows]) + "\n", encoding="utf-8")
    scenario = {"source": "csv", "path": str(file), "label": names[2], "partition": "iid", "clients": 2}
    (tmp_path / "config.yaml").write_text(json.dumps({**CONFIG, "scenario": scenario}))
    return tmp_path / "config.yaml"


def test_a_table_with_control_characters_is_shown_and_not_obeyed(table, capsys):
    for words in (
        ["inspect", "config.yaml"],
        ["inspect", "config.yaml", "--json"],
        ["run", "config.yaml", "--out", "run"],
        ["table", "run"],
        ["report", "run", "--out", "page.html"],
        ["model", "run", "--out", "model.safetensors"],
    ):
        code, out, err = call(capsys, *words)
        assert shows(out + err), words
        if words[0] in ("inspect", "run", "table", "report"):
            assert code == 0, err
    for page in (table.parent / "run" / "report.html", table.parent / "page.html"):
        assert not page.exists() or shows(page.read_text(encoding="utf-8"))


MISTAKES = {
    "a method": ["method=" + ACTS],
    "a key": [f"{ACTS}=1"],
    "a value": ["rounds=" + ACTS],
    "a column": ["scenario.label=" + ACTS],
    "a file": ["scenario.path=" + ACTS + ".csv"],
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes_with_control_characters_are_one_line_that_is_not_obeyed(case, table, capsys):
    code, out, err = call(capsys, "run", "config.yaml", *MISTAKES[case])
    assert code == 2
    assert shows(out + err)
    assert err.count("\n") == 1


@pytest.mark.parametrize("command", ["run", "inspect", "table", "report", "explain"])
def test_names_of_files_that_are_missing_are_not_obeyed(command, capsys):
    code, out, err = call(capsys, command, ACTS + "\nerror: none")
    assert code == 2
    assert shows(out + err)
    assert "\nerror: none" not in err


def test_names_of_files_that_are_written_are_not_obeyed(tmp_path, capsys):
    pytest.importorskip("cryptography", reason="needs the extra flower")
    code, out, err = call(capsys, "flower", "keys", str(tmp_path / f"keys{ACTS}"), "--host", "127.0.0.1")
    assert code == 0
    assert shows(out + err)
