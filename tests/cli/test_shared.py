"""What commands share: options as overrides, folders that go again, streams without Unicode."""

import io
from pathlib import Path

import pytest

from command_line import call
from fedloom.cli.shared import make_printable, note_unused_options, output_folder


def test_options_of_methods_that_do_not_run_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    typed = [
        "rounds=1",
        "fedprox.mu=0.5",
        "options.fedsc.tau=2",
        "fedsc.tau=null",
        "scenario.alpha=1",
        "local_epochs=1",
    ]
    note_unused_options(typed, {"fedavg", "fedprox+dw"})
    assert capsys.readouterr().err == (
        "note: without effect, since their method does not run: fedprox.mu, options.fedsc.tau; methods that run: "
        "fedavg, fedprox+dw\n"
    )
    note_unused_options(typed, {"fedprox", "fedsc"})
    note_unused_options(None, {"fedavg"})
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("words", "is_noted"),
    [
        (("run", "c.yaml"), True),
        (("run", "c.yaml", "method=fedprox"), False),
        (("compare", "c.yaml", "--seeds", "1", "--methods", "fedavg,fedprox"), False),
        (("compare", "c.yaml", "--seeds", "1", "--methods", "fedavg"), True),
        (("study", "c.yaml"), True),
    ],
    ids=str,
)
def test_commands_that_train_name_them(words, is_noted, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    Path("c.yaml").write_text(
        "model: logistic\nrounds: 1\nengine: serial\nscenario: {source: digits, partition: iid, clients: 2}\n"
    )
    code, _, err = call(capsys, *words, "fedprox.mu=0.5", "--out", "out", "--quiet")
    assert code == 0
    assert ("note: without effect, since their method does not run: fedprox.mu; " in err) == is_noted


def test_folders_that_stay_empty_go_and_others_stay(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    with pytest.raises(KeyError), output_folder(tmp_path / "mine" / "a" / "b"):
        raise KeyError
    assert [path.name for path in tmp_path.rglob("*")] == ["mine"]
    with output_folder(tmp_path / "mine"):
        pass
    assert (tmp_path / "mine").is_dir()  # empty, but not ours
    with output_folder(tmp_path / "new" / "run"):
        (tmp_path / "new" / "report.html").touch()
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["mine", "new", "report.html"]


def test_a_stream_without_unicode_loses_nothing() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    make_printable(stream)
    print("97.5 ± 0.6 …  ·░▒▓█ é🦊", file=stream, flush=True)
    assert raw.getvalue() == b"97.5 +- 0.6 ...  .:+*# \\xe9\\U0001f98a\n"
