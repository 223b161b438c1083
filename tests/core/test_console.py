"""The console of tables and progress."""

import contextlib
import logging

import pytest

from fedloom.core.console import console_of, quiet_logger


def test_a_file_has_no_edge(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    line = "word " * 100
    console_of(False).print(line)
    assert capsys.readouterr().out == f"{line}\n"


def test_warnings_are_kept_back_and_errors_are_not(caplog):
    logger = logging.getLogger("fedloom.test_quiet_logger")
    with contextlib.suppress(ValueError), quiet_logger(logger.name):
        logger.warning("kept back")
        logger.error("said")
        raise ValueError("the level comes back all the same")
    logger.warning("said again")
    assert caplog.messages == ["said", "said again"]
