"""Results that are read from folders: what was changed after the run is noticed, in one line."""

import json
from collections.abc import Callable
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest

from fedloom.core.errors import RunFolderError
from fedloom.results.result import Result
from fedloom.runs.config.run_config import parse
from fedloom.runs.run import run

CONFIG = parse({"scenario": {"source": "digits", "partition": "iid", "clients": 2}, "rounds": 2, "local_epochs": 1})


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished") / "run"
    run(CONFIG, out=folder)
    return folder


def with_summary(folder: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    file = folder / "summary.json"
    file.write_text(json.dumps(change(json.loads(file.read_text()))))


def lines(folder: Path, change: Callable[[list[str]], list[str]]) -> None:
    file = folder / "metrics.jsonl"
    file.write_text("".join(change(file.read_text().splitlines(keepends=True))))


def without_sums(numbers: dict[str, Any]) -> dict[str, Any]:
    """As an earlier version wrote it."""
    return {key: value for key, value in numbers.items() if key != "checksums"}


CHANGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "empty summary": (lambda f: with_summary(f, lambda n: {}), "it lacks method, preset"),
    "no object": (lambda f: (f / "summary.json").write_text("[]"), "damaged"),
    "no JSON": (lambda f: (f / "summary.json").write_text("{"), "damaged"),
    "edited accuracy": (lambda f: with_summary(f, lambda n: n | {"accuracy": 0.99}), "not those that the run wrote"),
    "edited engine": (lambda f: with_summary(f, lambda n: n | {"engine": "x"}), "not those that the run wrote"),
    "edited, no sums": (
        lambda f: with_summary(f, lambda n: without_sums(n) | {"bytes_up": 1}),
        "numbers are not those",
    ),
    "missing rows": (lambda f: (f / "metrics.jsonl").unlink(), "rows were lost or changed"),
    "dropped rows": (lambda f: lines(f, lambda rows: rows[:5]), "rows were lost or changed"),
    "damaged rows": (lambda f: lines(f, lambda rows: ["{\n", *rows[1:]]), "rows were lost or changed"),
    "no rows, no sums": (lambda f: (with_summary(f, without_sums), (f / "metrics.jsonl").unlink()), "not those"),
    "no row, no sums": (
        lambda f: (with_summary(f, without_sums), lines(f, lambda rows: [rows[0], "{}\n", *rows[2:]])),
        "line 2 is damaged",
    ),
    "damaged config": (lambda f: (f / "config.yaml").write_text("a: ["), "damaged"),
    "rows are a folder": (lambda f: ((f / "metrics.jsonl").unlink(), (f / "metrics.jsonl").mkdir()), "cannot be read"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_was_changed_after_the_run_is_one_line(finished: Path, tmp_path: Path, change: str) -> None:
    folder = copytree(finished, tmp_path / "run")
    act, says = CHANGES[change]
    act(folder)
    with pytest.raises(RunFolderError, match=says) as caught:
        Result.read(folder)
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_results_of_an_earlier_version_are_read(finished: Path, tmp_path: Path) -> None:
    folder = copytree(finished, tmp_path / "run")
    with_summary(folder, without_sums)
    now, before = Result.read(folder), Result.read(finished)
    assert now is not None
    assert before is not None
    assert now.numbers == before.numbers


def test_a_summary_that_was_deleted_is_written_anew_from_checkpoint_and_metrics(finished: Path, tmp_path: Path) -> None:
    folder = copytree(finished, tmp_path / "run")
    before = Result.read(folder)
    (folder / "summary.json").unlink()
    again = run(CONFIG, out=folder, existing="resume")
    assert before is not None
    for key in ("accuracy", "bytes_up", "samples", "checkpoint_sha256", "degenerate"):
        assert again.numbers[key] == before.numbers[key], key


@pytest.mark.parametrize("place", ["a file", "a loop"])
def test_a_place_that_is_no_folder_is_one_line(tmp_path: Path, place: str) -> None:
    path = tmp_path / "x"
    if place == "a file":
        path.touch()
    else:
        path.symlink_to(path)
    with pytest.raises(RunFolderError, match="cannot be read"):
        Result.read(path)
