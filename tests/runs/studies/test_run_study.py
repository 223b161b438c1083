"""Studies that run: resumed, shared, with cells that fail; nothing is done twice."""

import contextlib
import errno
import json
import random
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from command_line import call
from die_once import DieOnce, FullDisk
from fedloom.core.errors import ConfigError, RunFolderError
from fedloom.results.result import Result
from fedloom.results.table import result_table
from fedloom.runs.callbacks import Callback
from fedloom.runs.studies.live_progress import Event
from fedloom.runs.studies.outcome import Outcome, collect, done_of, outcome
from fedloom.runs.studies.plan import StudyPlan, parse_study
from fedloom.runs.studies.run_study import run_study
from fedloom.runs.studies.study_folder import StudyFolder

TINY: dict[str, Any] = {
    "scenario": {"source": "digits", "partition": "iid", "clients": 2, "val": 0.1},
    "model": {"name": "mlp", "hidden": [8]},
    "rounds": 2,
    "local_epochs": 1,
    "methods": ["fedavg", "fedprox"],
    "seeds": 2,
    "engine": "serial",
    "checkpoint": {"seconds": 0},
}


def run_all(study: StudyPlan, out: Path, only: list[str] | None = None, **how: Any) -> Outcome:
    return run_study(study, StudyFolder(out), study.chosen(only or ()), **how)


class Count(Callback):
    """Which rounds were trained, in a file that copies of it share."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_round(self, config: Any, round_: int, rows: Any) -> None:
        with self.path.open("a") as stream:
            stream.write(f"{config.method} {config.seed} {round_}\n")


def test_any_subset_first_then_the_rest_and_finished_cells_are_left_alone(tmp_path: Path) -> None:
    study, counted = parse_study(TINY), tmp_path / "rounds"
    some = run_all(study, tmp_path / "s", ["fedprox/seed1"], callbacks=[Count(counted)])
    assert (list(some.done), some.failed, some.remaining) == (["fedprox/seed1"], {}, [])
    everything = run_all(study, tmp_path / "s", callbacks=[Count(counted)])
    assert len(everything.done) == 4
    assert set(Counter(counted.read_text().splitlines()).values()) == {1}
    assert len(collect([tmp_path / "s"]).results) == 4
    before = counted.read_text()
    run_all(study, tmp_path / "s", callbacks=[Count(counted)])
    assert counted.read_text() == before


def test_each_cell_of_equal_configs_shows_their_one_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A second name of a method, and a second setting of equal keys, once had no row in any table."""
    values = TINY | {
        "rounds": 1,
        "settings": {"plain": {}, "spelled": {"participation": 1.0}},
        "methods": {"fedprox": {}, "fedavg": {}, "again": {"method": "fedavg"}},
    }
    out = tmp_path / "s"
    ended = run_all(parse_study(values), out)
    assert (len(ended.done), len(ended.results)) == (12, 4)
    rows = [(setting, name) for setting in ("plain", "spelled") for name in ("fedprox", "fedavg", "again")]
    for results in (ended.cell_results, collect([out]).results):
        assert [result.cell for result in results] == [row for row in rows for _ in range(2)]
        assert [result.numbers["seed"] for result in results] == [0, 1] * 6
        table = result_table(results)
        assert [(row["label"], row["n"], row["repeats"]) for row in table] == [("/".join(row), 2, 0) for row in rows]
    code, _, told = call(capsys, "table", str(out))
    assert code == 0
    assert "plain/fedprox and spelled/fedprox; plain/fedavg, plain/again, spelled/fedavg and spelled/again" in told


def test_a_cell_that_fails_is_kept_and_the_rest_goes_on(tmp_path: Path) -> None:
    data = tmp_path / "x.npz"
    values = TINY | {
        "methods": ["fedavg"],
        "seeds": 1,
        "settings": {"no-data": {"scenario": {"source": "npz", "path": str(data)}}, "fine": {}},
    }
    study, out = parse_study(values), tmp_path / "s"
    ended = run_all(study, out)
    assert list(ended.done) == ["fine/fedavg/seed0"]
    assert "x.npz" in ended.failed["no-data/fedavg/seed0"]
    (kept,) = out.glob("*.error.txt")
    assert "Traceback" in kept.read_text()
    first = kept.read_text()
    assert list(run_all(study, out).failed) == ["no-data/fedavg/seed0"]
    assert kept.read_text() != first  # tried again
    import numpy as np

    rng = np.random.default_rng(0)
    x, y = rng.random((40, 8, 8), np.float32), np.arange(40) % 4
    np.savez(data, x_train=x, y_train=y, x_test=x, y_test=y)
    assert run_all(study, out).failed == {}
    assert not list(out.glob("*.error.txt"))


def test_a_full_disk_ends_the_study_before_its_other_cells_meet_it(tmp_path: Path) -> None:
    news: list[Event] = []
    says = f"^{tmp_path}/s: no space left on the device; its runs have stopped, .*: free space there, and the same"
    with pytest.raises(RunFolderError, match=says):
        run_all(parse_study(TINY), tmp_path / "s", listener=news.append, callbacks=[FullDisk()])
    assert {event.position for event in news} == {0}
    assert len(run_all(parse_study(TINY), tmp_path / "s").done) == 4


def test_a_cell_without_a_whole_checkpoint_says_which_folder_to_delete(tmp_path: Path) -> None:
    study, out = parse_study(TINY | {"methods": ["fedavg"], "seeds": 1}), tmp_path / "s"
    with pytest.raises(RunFolderError):  # after its first round
        run_all(study, out, callbacks=[FullDisk()])
    (cell,) = out.glob("fedavg-*")
    for file in cell.glob("checkpoint/*/server.safetensors"):
        file.write_bytes(b"")
    why = run_all(study, out).failed["fedavg/seed0"]
    assert why.endswith(f"or delete the run folder and run again; the run folder is {cell}")
    shutil.rmtree(cell)
    assert len(run_all(study, out).done) == 1


def test_a_disk_that_is_full_when_an_error_is_to_be_kept_ends_the_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(study_folder: StudyFolder, folder: str, text: str) -> None:
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    monkeypatch.setattr(StudyFolder, "write_error", full)
    values = TINY | {"scenario": {"source": "npz", "path": "none.npz", "partition": "iid"}}
    with pytest.raises(RunFolderError, match="/s: the disk quota is used up; its runs have stopped"):
        run_all(parse_study(values), tmp_path / "s")


def test_who_waits_for_other_processes_says_so_once(tmp_path: Path) -> None:
    study, study_folder, news = parse_study(TINY), StudyFolder(tmp_path / "s"), list[Event]()
    study_folder.claim(study)
    held = threading.Event()

    def work_elsewhere() -> None:
        with StudyFolder(study_folder.path).cell_lock(study.cells[0].folder):
            held.set()
            time.sleep(1)

    other = threading.Thread(target=work_elsewhere)
    other.start()
    held.wait()
    assert len(run_all(study, study_folder.path, ["fedavg"], listener=news.append).done) == 2
    other.join()
    assert [event.note for event in news if event.note] == ["1 run left, with other processes; waiting for them"]


def test_the_folder_of_another_study_is_refused(tmp_path: Path) -> None:
    run_all(parse_study(TINY), tmp_path / "s", ["fedavg/seed0"])
    with pytest.raises(RunFolderError, match=r"holds another study \(.*rounds: 2 there, 3 here"):
        run_all(parse_study(TINY | {"rounds": 3}), tmp_path / "s")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    with pytest.raises(RunFolderError, match="did not write"):
        run_all(parse_study(TINY), tmp_path / "mine")


def test_a_study_grows_in_its_folder_and_a_part_of_it_finds_its_place(tmp_path: Path) -> None:
    out = tmp_path / "s"
    first, larger = parse_study(TINY | {"seeds": 1}), parse_study(TINY | {"methods": ["fedavg", "fedprox", "fedbn"]})
    run_all(first, out)
    made = {path: path.stat().st_mtime_ns for path in out.glob("*/summary.json")}
    assert len(run_all(larger, out).done) == 6
    assert {path: path.stat().st_mtime_ns for path in made} == made  # nothing is done twice
    assert len(collect([out]).results) == 6
    assert len(run_all(first, out).done) == 2  # a part again
    assert len(collect([out]).results) == 6
    with pytest.raises(RunFolderError, match="another study"):  # neither has all cells of the other
        run_all(parse_study(TINY | {"methods": ["fedavg", "moon"]}), out)


def test_a_run_of_another_config_under_the_name_of_a_cell_is_not_taken_for_it(tmp_path: Path) -> None:
    study, out = parse_study(TINY | {"seeds": 1}), tmp_path / "s"
    done = run_all(study, out).done
    stray = out / done["fedavg/seed0"]
    shutil.rmtree(stray)
    shutil.copytree(out / done["fedprox/seed0"], stray)  # as a slip of rsync does
    ended = run_all(study, out)
    assert list(ended.done) == ["fedprox/seed0"]
    why = ended.failed["fedavg/seed0"]
    assert why.startswith(f"{stray} holds a run of another config (")
    assert "method: fedprox there, fedavg here); delete this folder, and the same command runs it again" in why
    shutil.rmtree(stray)
    assert len(run_all(study, out).done) == 2


def test_runs_of_another_config_or_version_are_not_joined_unawares(tmp_path: Path) -> None:
    out = tmp_path / "s"
    run_all(parse_study(TINY), out, ["fedavg"])
    kept = yaml.safe_load((out / "study.yaml").read_text())
    kept["settings"][""]["rounds"] = 3  # as if the same words meant another config now
    (out / "study.yaml").write_text(yaml.safe_dump(kept))
    with pytest.raises(ConfigError, match=r"no finished run there: .*no cell of its study has this config"):
        collect([out])
    assert len(collect([out], allow_mixed=True).results) == 2
    kept["settings"][""]["rounds"] = 2
    (out / "study.yaml").write_text(yaml.safe_dump(kept))
    one = next(path for path in out.iterdir() if (path / "env.json").exists())
    env = json.loads((one / "env.json").read_text())
    del env["checksums"]  # as in folders of earlier versions
    env["versions"]["fedloom"] = "0.0.1"
    (one / "env.json").write_text(json.dumps(env))
    with pytest.raises(
        ConfigError,
        match=r"1 run of 0\.0\.1 and 1 run of .*; .*/fedavg.* is of 0\.0\.1, .*join them with --allow-mixed",
    ):
        collect([out])
    assert len(collect([out], allow_mixed=True).results) == 2
    study = parse_study(TINY)
    with pytest.raises(ConfigError, match="join them with --allow-mixed"):
        done_of(study, outcome(study, StudyFolder(out), study.cells))
    assert len(done_of(study, outcome(study, StudyFolder(out), study.cells), allow_mixed=True)["", "fedavg"]) == 2


# -- with processes ----------------------------------------------------------------------------------------------------
PROGRAM = """
import sys
from pathlib import Path
import yaml
from fedloom.runs.callbacks import Callback
from fedloom.runs.studies.study_folder import StudyFolder
from fedloom.runs.studies.plan import parse_study
from fedloom.runs.studies.run_study import run_study

class Count(Callback):
    def on_round(self, config, round_, rows):
        with open(sys.argv[2], "a") as stream:
            stream.write(f"{config.method} {config.seed} {round_}\\n")

study = parse_study(yaml.safe_load(Path(sys.argv[3]).read_text()))
ended = run_study(study, StudyFolder(Path(sys.argv[1])), study.cells, callbacks=[Count()])
sys.exit(len(ended.remaining) + len(ended.failed))
"""


@contextlib.contextmanager
def begun(values: dict[str, Any], out: Path, counted: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that works on the study; it ends with the block at the latest."""
    counted.touch()
    file = counted.with_suffix(".yaml")
    file.write_text(yaml.safe_dump(values))
    words = [sys.executable, "-c", PROGRAM, str(out), str(counted), str(file)]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def end(process: subprocess.Popen[str]) -> None:
    errors = process.communicate(timeout=60)[1]
    assert process.returncode == 0, errors


@pytest.mark.slow
def test_two_processes_on_one_folder_do_no_cell_twice(tmp_path: Path) -> None:
    values, counted = TINY | {"seeds": 4}, tmp_path / "rounds"
    with begun(values, tmp_path / "s", counted) as one, begun(values, tmp_path / "s", counted) as other:
        end(one)
        end(other)
    rounds = Counter(counted.read_text().splitlines())
    assert len(rounds) == 2 * 4 * 2
    assert set(rounds.values()) == {1}


@pytest.mark.slow
def test_a_study_that_is_killed_goes_on_where_it_was(tmp_path: Path) -> None:
    values, out, counted = TINY | {"rounds": 6}, tmp_path / "s", tmp_path / "rounds"
    seed = random.SystemRandom().randrange(10**6)
    rng = random.Random(seed)
    with begun(values, out, counted) as process:
        target, deadline = rng.randint(1, 20), time.monotonic() + 60  # of 24 rounds
        while len(counted.read_text().splitlines()) < target:
            assert process.poll() is None, f"ended early (seed {seed})"
            assert time.monotonic() < deadline
            time.sleep(0.002)
        time.sleep(rng.uniform(0, 0.05))
        process.kill()
        process.communicate()
    study = parse_study(values)
    ended = run_all(study, out)
    assert len(ended.done) == 4, f"seed {seed}"
    whole = run_all(study, tmp_path / "whole")
    for name, folder in whole.done.items():
        one, two = Result.read(tmp_path / "whole" / folder), Result.read(out / ended.done[name])
        assert one is not None
        assert two is not None
        assert one.numbers["checkpoint_sha256"] == two.numbers["checkpoint_sha256"], f"seed {seed}"


@pytest.mark.slow
def test_a_full_disk_ends_the_study_of_several_processes_in_the_same_line(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="/s: no space left on the device; its runs have stopped"):
        run_all(parse_study(TINY), tmp_path / "s", workers=2, callbacks=[FullDisk()])


@pytest.mark.slow
def test_a_worker_that_is_killed_leaves_its_cell_to_the_others(tmp_path: Path) -> None:
    news: list[Event] = []
    how: dict[str, Any] = {"listener": news.append, "callbacks": [DieOnce(tmp_path / "died")]}
    ended = run_all(parse_study(TINY), tmp_path / "s", workers=2, **how)
    assert (tmp_path / "died").exists()
    (note,) = [event.note for event in news if event.note and "process" in event.note]
    assert "killed by signal 9, as the system does when memory runs out; 1 still at work" in note
    assert (len(ended.done), ended.failed, ended.remaining) == (4, {}, [])
