"""Words of other people's data, their files and their configs are shown, and no terminal or page obeys them."""

import json

import numpy as np
import pytest

from command_line import call

ACTS = "\x1b[2J\x1b]0;owned\x07\u202e"
CONFIG = {"method": "fedavg", "model": "mlp", "rounds": 1, "local_epochs": 1, "evaluation": {"every": 1}}


def shows(text):
    """No sign in it acts."""
    lines = text.replace("\t", " ").split("\n")
    return all(line.replace("\u00a0", " ").isprintable() for line in lines)


@pytest.fixture
def config(tmp_path, monkeypatch):
    """A config of arrays whose file and classes hold control characters."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / f"arrays{ACTS}.npz"
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 255, (60, 8, 8), dtype=np.uint8), np.arange(60) % 2
    np.savez(file, x_train=x, y_train=y, x_test=x, y_test=y, classes=np.array(["ill", "well" + ACTS]))
    scenario = {"source": "npz", "path": str(file), "partition": "iid", "clients": 2}
    (tmp_path / "config.yaml").write_text(json.dumps({**CONFIG, "scenario": scenario}))
    return tmp_path / "config.yaml"


def test_data_with_control_characters_are_shown_and_not_obeyed(config, capsys):
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
    for page in (config.parent / "run" / "report.html", config.parent / "page.html"):
        assert not page.exists() or shows(page.read_text(encoding="utf-8"))


MISTAKES = {
    "a method": ["method=" + ACTS],
    "a key": [f"{ACTS}=1"],
    "a value": ["rounds=" + ACTS],
    "a source": ["scenario.source=" + ACTS],
    "a file": ["scenario.path=" + ACTS + ".npz"],
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes_with_control_characters_are_one_line_that_is_not_obeyed(case, config, capsys):
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
