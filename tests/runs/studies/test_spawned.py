"""Processes for whole runs: why they cannot start is one line, and whatever ends them, nothing of theirs stays."""

import concurrent.futures
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import fedloom as fl
from die_once import FailsOddly
from fedloom.runs.callbacks import Callback

linux = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc and /dev/shm")
SCRIPT = """
import fedloom as fl
fl.compare(["fedavg"], seeds=2, scenario="digits", rounds={rounds}, jobs=2, out={out!r})
"""
ENDLESS = 'if __name__ == "__main__":' + SCRIPT.replace("\n", "\n    ")


def called(*words: str, source: str = "") -> str:
    """The last line that Python says, called with `words`."""
    finished = subprocess.run(
        [sys.executable, *words], input=source, capture_output=True, text=True, timeout=120, check=False
    )
    assert finished.returncode == 1
    said = finished.stderr.strip().splitlines()
    assert sum(line.startswith("Traceback") for line in said) == 1  # this one, and none of a process that was started
    return said[-1]


@pytest.mark.slow
def test_a_script_without_a_guard_is_told_so(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(rounds=1, out=str(tmp_path / "out")))
    assert called(str(script)).endswith('put the script\'s work below if __name__ == "__main__":')


def test_a_script_from_standard_input_is_told_so(tmp_path: Path) -> None:
    script = SCRIPT.format(rounds=1, out=str(tmp_path / "out"))
    assert "which came through standard input; save it as a file" in called("-", source=script)


def _compared(out: str) -> str:
    try:
        fl.compare(["fedavg"], seeds=2, scenario="digits", rounds=1, jobs=2, out=out)
    except fl.FedloomError as error:
        return str(error)
    return "no error"


class Notes(Callback):
    """Collects what a run notes."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def on_note(self, config: Any, note: str) -> None:
        self.texts.append(note)


def _trained(engine: Any) -> tuple[str, list[str]]:
    notes = Notes()
    result = fl.run("fedavg", scenario=fl.scenario("digits", clients=3), rounds=1, engine=engine, callbacks=[notes])
    return result.numbers["engine"], notes.texts


@linux
def test_in_a_pool_clients_run_one_after_another_and_it_says_why(tmp_path: Path) -> None:
    with multiprocessing.get_context("fork").Pool(1) as pool:
        for engine, name in [
            ("auto", "serial"),
            ({"name": "processes", "workers": 2}, "serial"),
            ("batched", "batched"),
        ]:
            taken, notes = pool.apply(_trained, [engine])
            assert taken == name
            assert any("this process is daemonic" in note for note in notes) == (len(os.sched_getaffinity(0)) > 1)
        assert "jobs = 2: this process is daemonic" in pool.apply(_compared, [str(tmp_path)])


@linux
def test_processes_of_an_executor_may_start_others() -> None:
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as pool:
        taken, notes = pool.submit(_trained, {"name": "processes", "workers": 2}).result()
    assert taken == "processes"
    assert not any("daemonic" in note for note in notes)


@pytest.mark.slow
def test_a_run_that_fails_stops_the_others_and_is_shown_with_its_traceback(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="Odd: 1 and 2") as caught:
        fl.compare(["fedavg"], seeds=3, scenario="digits", rounds=10**5, jobs=2, out=tmp_path, callbacks=[FailsOddly()])
    assert "in on_round" in caught.value.__notes__[0]
    assert len(list(tmp_path.glob("fedavg-*"))) == 2  # the third was never begun


@linux
@pytest.mark.slow
def test_a_killed_group_leaves_nothing_in_shared_memory(tmp_path: Path) -> None:
    script, out, before = tmp_path / "script.py", tmp_path / "out", set(Path("/dev/shm").iterdir())
    script.write_text(ENDLESS.format(rounds=10**5, out=str(out)))
    process = subprocess.Popen([sys.executable, str(script)], start_new_session=True)
    deadline = time.monotonic() + 120
    while len([log for log in out.rglob("metrics.jsonl") if log.stat().st_size]) < 2:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    time.sleep(0.2)
    assert set(Path("/dev/shm").iterdir()) <= before


SPAWNS = """
import signal
from fedloom.runs.studies.runner import spawned

def masked(pipe):
    pipe.send(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []))

if __name__ == "__main__":
    with spawned("jobs = 2", 2, masked) as processes:
        print(*[pipe.recv() for pipe in processes])
    print(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []))
"""


@pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="this system has no signal masks")
def test_no_process_gets_ctrl_c_the_first_one_neither(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SPAWNS)
    words = [sys.executable, str(tmp_path / "script.py")]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True", "False"]
