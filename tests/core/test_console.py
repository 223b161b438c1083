"""The console of tables and progress."""

import pytest

from fedloom.core.console import console_of


def test_a_file_has_no_edge(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    line = "word " * 100
    console_of(False).print(line)
    assert capsys.readouterr().out == f"{line}\n"
