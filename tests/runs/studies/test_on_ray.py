"""A study on a cluster: the cells are those of one process, and no killed worker loses one."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from command_line import call
from die_once import DieOnce
from fedloom.core.errors import RunFolderError
from fedloom.results.result import Result
from fedloom.runs.callbacks import Callback
from fedloom.runs.studies.live_progress import Event
from fedloom.runs.studies.outcome import Outcome
from fedloom.runs.studies.plan import StudyPlan, parse_study
from fedloom.runs.studies.run_study import run_study
from fedloom.runs.studies.runner import Runner, _on_node
from fedloom.runs.studies.study_folder import StudyFolder

TINY: dict[str, Any] = {
    "scenario": {"source": "digits", "partition": "iid", "clients": 2, "val": 0.1},
    "model": {"name": "mlp", "hidden": [8]},
    "rounds": 2,
    "local_epochs": 1,
    "methods": ["fedavg", "fedprox"],
    "seeds": 1,
    "tune": {"optimizer.lr": [0.01, 0.1]},
    "checkpoint": {"seconds": 0},
}


def run_all(study: StudyPlan, out: Path, **how: Any) -> Outcome:
    return run_study(study, StudyFolder(out), study.cells, **how)


def bits(out: Path, ended: Outcome) -> dict[str, Any]:
    """The digest of each cell's last checkpoint."""
    found = {name: Result.read(out / folder) for name, folder in ended.done.items()}
    return {name: result.numbers["checkpoint_sha256"] for name, result in found.items() if result is not None}


def test_the_cells_have_the_bits_of_one_process_and_a_killed_worker_loses_none(tmp_path: Path, cluster: str) -> None:
    study, news = parse_study(TINY), list[Event]()
    dying = [DieOnce(tmp_path / "died")]
    there = run_all(study, tmp_path / "ray", on="ray", listener=news.append, callbacks=dying)
    assert (tmp_path / "died").exists()
    assert (there.failed, there.remaining) == ({}, [])
    assert bits(tmp_path / "ray", there) == bits(tmp_path / "here", run_all(study, tmp_path / "here"))
    assert {event.position for event in news if event.round == 2} == set(range(6))  # two cells, four trials


def test_the_command_works_in_the_folder_in_which_it_is_called(
    tmp_path: Path, cluster: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text("""
        scenario: {source: npz, path: x.npz, partition: iid, clients: 2}
        model: {name: mlp, hidden: [8]}
        rounds: 1
        methods: [fedavg]
        seeds: 1
        settings: {there: {}, missing: {scenario: {path: none.npz}}}
    """)
    import numpy as np

    x, y = np.random.default_rng(0).random((40, 8, 8), np.float32), np.arange(40) % 4
    np.savez("x.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    code, out, err = call(capsys, "study", "mine.yaml", "--out", "s", "--on", "ray")
    assert code == 1
    assert "1 done, 1 failed, 0 left" in out
    assert "failed: missing/fedavg/seed0: DataError: none.npz: no such file" in err


def test_a_node_without_the_folder_is_named(tmp_path: Path) -> None:
    study = parse_study(TINY)
    with pytest.raises(RunFolderError, match=r"^node .* does not see .*/elsewhere; all nodes must share the folder"):
        _on_node(Runner(study, StudyFolder(Path("elsewhere")), [], "record"), {}, tmp_path, 0)
    assert Path.cwd() != tmp_path


def test_a_cell_that_ray_gives_up_is_left_and_said(tmp_path: Path, cluster: str) -> None:
    class Dies(Callback):
        def on_start(self, config: Any, first_round: int) -> None:
            if config.method == "fedprox":
                os.kill(os.getpid(), signal.SIGKILL)

    study, news = parse_study({key: value for key, value in TINY.items() if key != "tune"}), list[Event]()
    ended = run_all(study, tmp_path / "s", on="ray", listener=news.append, callbacks=[Dies()])
    assert (list(ended.done), ended.remaining) == (["fedavg/seed0"], ["fedprox/seed0"])
    (note,) = [event.note for event in news if event.note]
    assert "is left: Ray has lost it 3 times (WorkerCrashedError); out of memory?; the same command resumes it" in note
