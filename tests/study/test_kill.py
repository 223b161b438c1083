"""kill -9 at random moments, then --resume: the same bits as a run that was left alone."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

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
    return [sys.executable, "-m", "fedloom", "run", str(DEMO), *WORDS, "--out", str(out), *more]


def finished(out: Path, *more: str) -> dict[str, Any]:
    done = subprocess.run(command(out, "--json", *more), capture_output=True, text=True, timeout=120, check=True)
    numbers: dict[str, Any] = json.loads(done.stdout)
    return numbers


@pytest.mark.slow
def test_killed_at_three_random_moments(tmp_path: Path) -> None:
    whole = finished(tmp_path / "whole")
    seed = random.SystemRandom().randrange(10**6)
    rng = random.Random(seed)
    cut = tmp_path / "cut"
    log = cut / "metrics.jsonl"
    target = 0
    for moment in range(3):
        process = subprocess.Popen(
            command(cut, *(["--resume"] if moment else [])), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        target += rng.randint(1, 2)  # rounds seen so far before the kill; 6 of 8 at most
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline:
            if log.exists() and f'"round": {target},' in log.read_text():
                break
            assert process.poll() is None, f"ended early (seed {seed}): {process.stderr and process.stderr.read()!r}"
            time.sleep(0.002)
        time.sleep(rng.uniform(0, 0.1))
        process.kill()
        process.communicate()
        assert not (cut / "summary.json").exists(), f"finished before the kill (seed {seed})"
    resumed = finished(cut, "--resume")
    assert resumed["checkpoint_sha256"] == whole["checkpoint_sha256"], f"seed {seed}"
    for key in ("accuracy", "best_val_accuracy", "bytes_up", "bytes_down", "samples", "rounds"):
        assert resumed[key] == whole[key], f"{key}, seed {seed}"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_workers_end_with_a_killed_parent_and_leave_nothing(tmp_path: Path) -> None:
    words = ["engine={name: processes, workers: 2}", "rounds=40"]
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    expected = finished(whole, "engine=serial", "rounds=40")["checkpoint_sha256"]
    memory = set(Path("/dev/shm").iterdir())
    process = subprocess.Popen(command(cut, *words), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    log, deadline = cut / "metrics.jsonl", time.monotonic() + 90
    while not (log.exists() and '"round": 2,' in log.read_text()):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    workers = children_of(process.pid)
    assert len(workers) >= 2
    process.kill()
    process.wait()
    deadline = time.monotonic() + 20
    while any(alive(worker) for worker in workers) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(alive(worker) for worker in workers)
    assert set(Path("/dev/shm").iterdir()) <= memory
    assert finished(cut, "--resume", *words)["checkpoint_sha256"] == expected
