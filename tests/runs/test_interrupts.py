"""Ctrl-C, SIGTERM, SIGHUP and SIGUSR1, and what becomes of processes: one line, their exit code, nobody is left."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fedloom.core.errors import RunFolderError
from fedloom.runs.config.run_config import parse
from fedloom.runs.studies.live_progress import Event
from fedloom.runs.studies.run_study import compare
from forked import start_command

DEMO = Path(__file__).parents[2] / "configs" / "demo.yaml"
RUN = ["run", str(DEMO), "rounds=100000", "engine={name: processes, workers: 2}"]
COMPARE = ["compare", str(DEMO), "rounds=100000", "--methods", "fedavg", "--seeds", "2", "--jobs", "2"]
linux = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


def group(leader: int) -> list[int]:
    """Living processes of a process group."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, its_group = stat.read_text().rpartition(")")[2].split()[:3]
        except OSError:  # it ended meanwhile
            continue
        if int(its_group) == leader and state != "Z":
            found.append(int(stat.parent.name))
    return found


def wait_for(done: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@linux
@pytest.mark.slow
@pytest.mark.parametrize(("words", "times"), [(RUN, 5), (COMPARE, 5)], ids=["run-5", "compare-5"])
def test_ctrl_c_is_one_line_and_ends_everything(tmp_path: Path, words: list[str], times: int) -> None:
    out = tmp_path / "out"
    process = subprocess.Popen(
        [sys.executable, "-m", "fedloom", *words, "--out", str(out), "--quiet"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    wait_for(lambda: len([*out.rglob("metrics.jsonl")]) == (1 if words is RUN else 2))
    assert len(group(process.pid)) >= 3
    for _ in range(times):
        os.killpg(process.pid, signal.SIGINT)
        time.sleep(0.05)
    _, err = process.communicate(timeout=60)
    says = "--resume continues from the last checkpoint" if words is RUN else "the same command continues from the last"
    assert process.returncode == 130
    (line,) = lines_of(err)
    assert line.startswith(f"stopped; {says}")
    wait_for(lambda: not group(process.pid))


def lines_of(errors: str) -> list[str]:
    """All lines but the advice on bfloat16, which depends on the processor."""
    return [line for line in errors.strip().splitlines() if not line.startswith("note: precision = bfloat16")]


@linux
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_request_to_end_is_one_line_and_ends_everything(tmp_path: Path, number: signal.Signals) -> None:
    out, errors = tmp_path / "out", tmp_path / "errors"
    process = start_command([*RUN, "checkpoint.seconds=0", "--out", str(out), "--quiet"], errors)
    pid = process.pid or 0
    try:
        wait_for(lambda: bool([*out.rglob("meta.json")]))
        assert len(group(pid)) >= 3
    finally:
        os.kill(pid, number)
    process.join(60)
    assert process.exitcode == 128 + number
    cause = "" if number == signal.SIGINT else f" by {number.name}"
    assert lines_of(errors.read_text()) == [f"stopped{cause}; --resume continues from the last checkpoint"]
    wait_for(lambda: not group(pid))


@linux
@pytest.mark.parametrize("words", [RUN, COMPARE], ids=["run", "compare"])
def test_sigusr1_saves_the_round_and_ends_with_75(tmp_path: Path, words: list[str]) -> None:
    out, errors = tmp_path / "out", tmp_path / "errors"
    process = start_command([*words, "checkpoint.seconds=1000", "--out", str(out), "--quiet"], errors)
    pid = process.pid or 0
    runs = 1 if words is RUN else 2
    try:
        wait_for(lambda: len([log for log in out.rglob("metrics.jsonl") if log.stat().st_size]) == runs)
        assert not [*out.rglob("meta.json")]  # no checkpoint is due for a long time
    finally:
        os.killpg(pid, signal.SIGUSR1)  # SLURM sends it to every process of a step
    process.join(60)
    assert process.exitcode == 75
    (line,) = lines_of(errors.read_text())
    stopped = re.fullmatch(
        r"stopped by SIGUSR1 after round (\d+) of 100000; .* continues from the last checkpoints?", line
    )
    assert stopped, line
    saved = [json.loads(path.read_text())["round"] for path in out.rglob("meta.json")]
    assert len(saved) == runs
    assert int(stopped[1]) in saved
    wait_for(lambda: not group(pid))


@linux
@pytest.mark.slow
@pytest.mark.parametrize("which", [0, -1], ids=["first", "last"])
def test_a_killed_process_of_a_comparison_is_one_line(tmp_path: Path, which: int) -> None:
    config = parse({"scenario": {"source": "digits", "clients": 4, "partition": "iid"}, "rounds": 100_000})
    children = {*Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()}
    killed: list[int] = []

    def kill(event: Event) -> None:
        if event.round and not killed:
            now = {*Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()}
            new = sorted(map(int, now - children))
            killed.append([p for p in new if b"spawn_main" in Path(f"/proc/{p}/cmdline").read_bytes()][which])
            os.kill(killed[0], signal.SIGKILL)

    with pytest.raises(RunFolderError, match=r"killed by signal 9, .* memory .*: call it again") as caught:
        compare([config, config.model_copy(update={"seed": 1})], out=tmp_path, jobs=2, listener=kill)
    assert killed
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2
