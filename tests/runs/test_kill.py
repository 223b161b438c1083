"""kill -9 at random moments, then --resume: the same bits as a run that was left alone."""

import faulthandler
import json
import multiprocessing
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from command_line import call
from fedloom.engine.fast.kernels.compiling import compiler
from fedloom.engine.fast.torch_library import replay_library
from fedloom.runs.callbacks import Callback
from fedloom.runs.config.run_config import parse
from fedloom.runs.run import run
from forked import start_command

DEMO = Path(__file__).parents[2] / "configs" / "demo.yaml"
WORDS = ["rounds=8", "local_epochs=1", "checkpoint.seconds=0"]
ROUNDS = 8


def children_of(pid: int) -> list[int]:
    """Processes whose parent is `pid`."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            after_name = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it ended meanwhile
            continue
        if int(after_name[1]) == pid and after_name[0] != "Z":
            found.append(int(stat.parent.name))
    return found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def command(out: Path, *more: str) -> list[str]:
    return ["run", str(DEMO), *WORDS, "--out", str(out), *more]


def finished(capsys: pytest.CaptureFixture[str], out: Path, *more: str) -> dict[str, Any]:
    """The numbers of the same command, called in this process."""
    code, said, errors = call(capsys, *command(out, "--json", *more))
    assert code == 0, errors
    numbers: dict[str, Any] = json.loads(said)
    return numbers


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="forks")
def test_killed_at_three_random_moments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = finished(capsys, tmp_path / "whole")
    seed = random.SystemRandom().randrange(10**6)
    rng = random.Random(seed)
    cut = tmp_path / "cut"
    log = cut / "metrics.jsonl"
    target = 0
    for moment in range(3):
        process = start_command(command(cut, *(["--resume"] if moment else [])), tmp_path / "errors")
        target += rng.randint(1, 2)  # rounds seen so far before the kill; 6 of 8 at most
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline:
            if log.exists() and f'"round": {target},' in log.read_text():
                break
            assert process.is_alive(), f"ended early (seed {seed}): {(tmp_path / 'errors').read_text()!r}"
            time.sleep(0.002)
        time.sleep(rng.uniform(0, 0.1))
        process.kill()
        process.join()
        assert not (cut / "summary.json").exists(), f"finished before the kill (seed {seed})"
    resumed = finished(capsys, cut, "--resume")
    assert resumed["checkpoint_sha256"] == whole["checkpoint_sha256"], f"seed {seed}"
    for key in ("accuracy", "best_val_accuracy", "bytes_up", "bytes_down", "samples", "rounds"):
        assert resumed[key] == whole[key], f"{key}, seed {seed}"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_workers_end_with_a_killed_parent_and_leave_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["engine={name: processes, workers: 2}", "rounds=15"]
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    expected = finished(capsys, whole, "engine=serial", "rounds=15")["checkpoint_sha256"]
    memory = set(Path("/dev/shm").iterdir())
    process = start_command(command(cut, *words), tmp_path / "errors")
    log, deadline = cut / "metrics.jsonl", time.monotonic() + 90
    while not (log.exists() and '"round": 2,' in log.read_text()):
        assert process.is_alive()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    workers = children_of(process.pid or 0)
    assert len(workers) >= 2
    process.kill()
    process.join()
    deadline = time.monotonic() + 20
    while any(alive(worker) for worker in workers) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(alive(worker) for worker in workers)
    assert set(Path("/dev/shm").iterdir()) <= memory
    assert finished(capsys, cut, "--resume", *words)["checkpoint_sha256"] == expected


ON_THREADS: dict[str, Any] = {
    "method": "scaffold",
    "model": {"name": "mlp", "hidden": [8]},
    "scenario": {"source": "digits", "partition": "iid", "clients": 4, "val": 0},
    "rounds": 4,
    "local_epochs": 1,
    "checkpoint": {"seconds": 0},
    "engine": {"name": "threads", "workers": 2},
}


class CrashesInCpp(Callback):
    """After round 2, a thread of a pool reads memory that does not exist."""

    def on_round(self, config: Any, round_: int, rows: Any) -> None:
        if round_ == 2:
            program = torch.classes.fedloom_replay.Program()
            program.finish(2, [], 0, 0, 0, torch.jit.annotate(list[bool], []))
            samples = torch.classes.fedloom_replay.Samples(torch.zeros(2, 3), torch.zeros(2).long(), [], [])
            job = samples.replay([], False, [], [], [], 2, 1)
            job.gather([program], torch.full((2,), 2**50), [0, 2, 1, 0, 0], [])
            pool = torch.classes.fedloom_replay.Pool(1)
            pool.submit(1, job)
            time.sleep(60)


def _crash(out: Path) -> None:
    faulthandler.disable()
    run(parse(ON_THREADS), out=out, callbacks=[CrashesInCpp()])


@pytest.mark.skipif(sys.platform != "linux" or compiler() is None, reason="forks, and needs a C++ compiler")
def test_a_crash_in_cpp_leaves_the_last_checkpoint(tmp_path: Path) -> None:
    assert replay_library().wait()
    process = multiprocessing.get_context("fork").Process(target=_crash, args=(tmp_path / "cut",))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGSEGV
    resumed = run(parse(ON_THREADS), out=tmp_path / "cut", existing="resume")
    whole = run(parse(ON_THREADS | {"engine": "serial"}), out=tmp_path / "whole")
    assert resumed.numbers["checkpoint_sha256"] == whole.numbers["checkpoint_sha256"]


ROUNDS_OF_MANY = 24
MANY: dict[str, Any] = {
    "method": "local",
    "model": {"name": "mlp", "hidden": [8]},
    "scenario": {"source": "digits", "partition": "iid", "clients": 1000, "val": 0},
    "rounds": ROUNDS_OF_MANY,
    "local_epochs": 1,
    "participation": 0.1,
    "evaluation": {"protocol": "personal/local", "every": ROUNDS_OF_MANY},
    "checkpoint": {"seconds": 0},
    "engine": {"name": "processes", "workers": 2},
}


def _go_on(out: Path) -> None:
    run(parse(MANY), out=out, existing="resume")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="forks")
def test_killed_at_twenty_random_instants_with_a_thousand_states(tmp_path: Path) -> None:
    """Forked, so that each of the twenty starts at once."""
    whole = run(parse(MANY), out=tmp_path / "whole")
    seed = random.SystemRandom().randrange(10**6)
    rng, cut = random.Random(seed), tmp_path / "cut"
    log, target, seen = cut / "metrics.jsonl", 0, set()
    for _ in range(20):
        process = multiprocessing.get_context("fork").Process(target=_go_on, args=(cut,))
        process.start()
        target += rng.randint(0, 2) if target < ROUNDS_OF_MANY - 4 else 0
        while process.is_alive() and not (log.exists() and f'"round": {target},' in log.read_text()) and target:
            time.sleep(0.002)
        time.sleep(rng.uniform(0, 0.3))
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL, f"ended before the kill (seed {seed})"
        assert not (cut / "summary.json").exists(), f"finished before the kill (seed {seed})"
        seen.add(max((path.name for path in (cut / "checkpoint").glob("round-*")), default=""))
    assert len(seen) > 3, f"the kills came at the same place (seed {seed})"
    resumed = run(parse(MANY), out=cut, existing="resume")
    assert resumed.numbers["checkpoint_sha256"] == whole.numbers["checkpoint_sha256"], f"seed {seed}"
    rows = [[row for row in one.rows if not row["name"].startswith("seconds")] for one in (whole, resumed)]
    assert rows[0] == rows[1], f"seed {seed}"
