"""What was tuned, read from a study's folder: a record is whole, or it is named."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedloom.core.errors import RunFolderError
from fedloom.core.files import json_text
from fedloom.core.text import Criterion
from fedloom.runs.storage.finished_runs import TRIALS, read_choices, rule_of, tuned_keys, tuned_notes, tuning_choices

WHOLE: dict[str, Any] = {
    "group": "fedavg",
    "chosen": {"optimizer.lr": 0.1},
    "trials": [{"values": {"optimizer.lr": 0.1}, "validation_accuracy": 0.5}],
}


def test_a_whole_record_is_as_it_was_written(tmp_path: Path) -> None:
    (tmp_path / "choice.json").write_text(json_text(WHOLE))
    assert read_choices(tmp_path / "choice.json") == WHOLE


@pytest.mark.parametrize(
    "changed",
    [
        {"group": None},
        {"chosen": []},
        {"trials": []},
        {"trials": {"a": 1}},
        {"trials": [3]},
        {"trials": [{"values": {}}]},
        {"trials": [*WHOLE["trials"], {"validation_accuracy": "high"}]},
        {"trials": [*WHOLE["trials"], {"accuracy": 0.5}]},
    ],
)
def test_what_a_record_lacks_is_damage(tmp_path: Path, changed: dict[str, Any]) -> None:
    (tmp_path / "choice.json").write_text(json_text(WHOLE | changed))
    with pytest.raises(RunFolderError, match=r"choice\.json: damaged \(it lacks .*delete this file, and the study"):
        read_choices(tmp_path / "choice.json")


def test_what_was_tuned_in_words(tmp_path: Path) -> None:
    """Of accuracy the score is a percentage, and of another metric its value with its name."""
    by_loss = {"values": {"optimizer.lr": 0.3}, "validation_loss": 0.25}
    records = {
        "choice-a.json": {
            **WHOLE,
            "trials": [{"values": {"optimizer.lr": 0.03}, "validation_accuracy": 0.4}, *WHOLE["trials"]],
        },
        "choice-b.json": {
            "group": "fedsc",
            "chosen": {"optimizer.lr": 0.3},
            "trials": [by_loss],
            "rule": rule_of(Criterion("loss", -1)),
        },
    }
    (tmp_path / TRIALS).mkdir()
    for name, record in records.items():
        (tmp_path / TRIALS / name).write_text(json_text(record))
    results: Any = [SimpleNamespace(folder=tmp_path / "fedavg-seed0"), SimpleNamespace(folder=None)]
    assert tuned_keys(results) == {"optimizer.lr"}
    assert tuned_notes(results) == [
        "optimizer.lr tuned per method on validation data (2 trials each, highest validation accuracy; of "
        "equal ones the first or lowest validation loss; of equal ones the first): fedavg optimizer.lr=0.1 (50.0 %); "
        "fedsc optimizer.lr=0.3 (loss 0.25)."
    ]
    first, second = tuning_choices(results)
    assert (first.score, first.score_text, first.trials) == (
        0.5,
        "50.0 %",
        ["optimizer.lr=0.03: 40.0 %", "optimizer.lr=0.1: 50.0 %"],
    )
    assert (second.score, second.score_text, second.trials) == (0.25, "loss 0.25", ["optimizer.lr=0.3: loss 0.25"])
