"""What was tuned, read from a study's folder: a record is whole, or it is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedloom.core.errors import RunFolderError
from fedloom.core.files import json_text
from fedloom.results.tuning_record import read

WHOLE: dict[str, Any] = {
    "group": "fedavg",
    "chosen": {"optimizer.lr": 0.1},
    "trials": [{"values": {"optimizer.lr": 0.1}, "validation_accuracy": 0.5}],
}


def test_a_whole_record_is_as_it_was_written(tmp_path: Path) -> None:
    (tmp_path / "choice.json").write_text(json_text(WHOLE))
    assert read(tmp_path / "choice.json") == WHOLE


@pytest.mark.parametrize(
    "changed",
    [
        {"group": None},
        {"chosen": []},
        {"trials": []},
        {"trials": {"a": 1}},
        {"trials": [3]},
        {"trials": [{"values": {}}]},
        {"trials": [*WHOLE["trials"], {"validation_accuracy": None}]},
    ],
)
def test_what_a_record_lacks_is_damage(tmp_path: Path, changed: dict[str, Any]) -> None:
    (tmp_path / "choice.json").write_text(json_text(WHOLE | changed))
    with pytest.raises(RunFolderError, match=r"choice\.json: damaged \(it lacks .*delete this file, and the study"):
        read(tmp_path / "choice.json")
