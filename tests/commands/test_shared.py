"""What commands share: options as overrides, folders that go again, streams without Unicode."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from fedloom.commands.shared import make_printable, output_folder, overrides_with_options
from fedloom.core.errors import ConfigError, RunFolderError


def test_options_are_overrides_given_once() -> None:
    assert overrides_with_options(["lr=1"], seed=0, rounds=None) == ["lr=1", "seed=0"]
    assert overrides_with_options(None, rounds=3) == ["rounds=3"]
    with pytest.raises(ConfigError, match="--rounds 3 and rounds=4: give one of them"):
        overrides_with_options(["rounds=4"], rounds=3)


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


def test_why_something_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    below, why = tmp_path / "file" / "x", r"file/x: cannot be written \(a file is in the way\)"
    with pytest.raises(RunFolderError, match=why), output_folder(below):
        pass


def test_a_stream_without_unicode_loses_nothing() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    make_printable(stream)
    print("97.5 ± 0.6 …  ·░▒▓█ é🦊", file=stream, flush=True)
    assert raw.getvalue() == b"97.5 +- 0.6 ...  .:+*# \\xe9\\U0001f98a\n"
