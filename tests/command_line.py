"""The command line, called in this process."""

import json
from pathlib import Path

import pytest

from fedloom.cli.app import main


def call(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Exit code, stdout, stderr."""
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    captured = capsys.readouterr()
    return int(ended.value.code or 0), captured.out, captured.err


def age(run: Path) -> None:
    """Make a finished run look like one of an earlier version."""
    environment = json.loads((run / "env.json").read_text())
    del environment["checksums"]  # which folders of earlier versions lack
    environment["versions"]["fedloom"] = "0.0.1"
    (run / "env.json").write_text(json.dumps(environment))
