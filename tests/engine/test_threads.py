"""Clients on threads: errors by name, and threads that end. Their bits for every method: `test_engines.py`."""

import gc
import os

import pytest
import torch

from fedloom.core.errors import ClientError, ConfigError
from fedloom.engine.choose import EngineChoice, choose_engine
from fedloom.engine.fast.kernels import compiling
from fedloom.engine.fast.kernels.compiling import compiler
from fedloom.engine.fast.replayer import Replayer
from fedloom.engine.fast.torch_library import TorchLibrary, replay_library
from fedloom.engine.speedups import Speedups
from fedloom.engine.threads import Threads
from fedloom.methods.fedavg import FedAvg
from support import TinyDropout, after, alike, configured, world

FEW = [[0, 1, 2, 0, 1, 1, 0, 2, 3, 1, 0], [1, 1, 2, 3, 3, 0, 1, 0, 2, 2, 1], [0], [3, 2, 1, 0, 3]]
needs_compiler = pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")


@needs_compiler
@pytest.mark.parametrize("threads", [1, 3])
def test_any_number_of_threads(threads):
    plain, toy = (world(configured("ditto"), FEW, net=TinyDropout, epochs=2) for _ in range(2))
    toy.worker.stepper = Replayer(toy.data, eager=True)
    toy.federation.engine = Threads(toy.worker, threads)
    assert alike(after(plain, 3, "plain"), after(toy, 3, "given"), "threads")
    assert toy.worker.stepper.replayed_steps > toy.worker.stepper.plain_steps


@needs_compiler
def test_rounds_in_which_threads_wait_for_python_are_counted(monkeypatch):
    toy = world(configured("fedavg"), FEW, batch_size=4)
    toy.worker.stepper = Replayer(toy.data, eager=True)
    assert replay_library().wait()
    engine = toy.federation.engine = Threads(toy.worker, 2)
    judged, judge = [], engine._judge
    monkeypatch.setattr(engine, "_judge", lambda *seconds: judged.append(seconds))
    toy.federation.step()
    engine.close()
    ((this_thread, all_threads, setup),) = judged
    assert 0 < setup < this_thread <= all_threads + 0.01
    engine._seconds_of_replays = 0.5
    for in_python, rounds in ((2.0, 1), (1.4, 2), (1.2, 0), (1.4, 1)):  # of 2 seconds of both threads
        judge(in_python + 0.5, 2.0, 0.0)
        assert engine.python_bound_rounds == rounds
    for _ in range(10):  # rounds of setup say nothing
        judge(2.0 + 0.5, 2.0, 0.5)
        assert engine.is_settling
        assert engine.python_bound_rounds == 1
    judge(2.0 + 0.5, 2.0, 0.5)  # but for so long alone
    assert not engine.is_settling
    assert engine.python_bound_rounds == 2


class Fails(FedAvg):
    """A loss that fails in Python for one client."""

    def begin(self, payload, state, ctx):
        if ctx.client == 2:
            raise ValueError("no weights here")
        return super().begin(payload, state, ctx)


@needs_compiler
def test_an_error_names_its_client_and_the_next_round_runs():
    toy = world(Fails(), FEW, batch_size=4)
    assert replay_library().wait()
    toy.worker.stepper = Replayer(toy.data, eager=True)
    engine = toy.federation.engine = Threads(toy.worker, 2)
    for _ in range(2):
        with pytest.raises(ClientError, match=r"client 2.*no weights here"):
            toy.federation.step()
    assert len(list(engine.run([toy.job(0), toy.job(1)]))) == 2
    engine.close()


@needs_compiler
def test_results_that_are_not_awaited_do_not_block_the_next_round():
    toy = world(configured("fedavg"), FEW, batch_size=4)
    assert replay_library().wait()
    toy.worker.stepper = Replayer(toy.data, eager=True)
    engine = Threads(toy.worker, 3)
    abandoned = [engine.run([toy.job(k) for k in range(4)]) for _ in range(5)]
    for results in abandoned:
        next(results)
    awaited = engine.run([toy.job(k) for k in range(4)])
    first = next(awaited)
    for results in abandoned:  # the garbage collector may do so at any time
        results.close()
    assert sorted([first.client, *(result.client for result in awaited)]) == [0, 1, 2, 3]
    unfinished = engine.run([toy.job(k) for k in range(4)])
    next(unfinished)
    engine.close()
    unfinished.close()


@needs_compiler
def test_pools_start_and_end():
    for _ in range(50):
        pool = torch.classes.fedloom_replay.Pool(3)
        pool.close()
        pool.close()
        del pool


def endless_job():
    """A replay of about a second, whose state is a tensor that Python has made and then forgotten."""
    samples = torch.classes.fedloom_replay.Samples(torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64), [], [])
    program = torch.classes.fedloom_replay.Program()
    program.call("aten::sin", "", [1], [[0]], [None], [1], [])
    program.finish(2, [1], 0, 0, 0, [False])
    state = torch.zeros(10**6)
    state.seen_by_python = True
    job = samples.replay([], False, [], [state], [], 2, 1)
    for _ in range(300):
        job.feed(program, [torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64)], False, [])
    return job


@needs_compiler
def test_a_pool_that_is_dropped_waits_for_no_thread():
    """Its threads may wait for Python's lock, to free a tensor, while whoever drops the pool has that lock."""
    assert replay_library().wait()
    pool = torch.classes.fedloom_replay.Pool(2)
    for number in range(2):
        pool.submit(number, endless_job())
    del pool  # and not for ever


@needs_compiler
def test_an_engine_that_nobody_closes_ends_its_threads():
    toy = world(configured("fedavg"), FEW, batch_size=4)
    assert replay_library().wait()
    engine = Threads(toy.worker, 3)
    assert len(list(engine.run([toy.job(0), toy.job(1)]))) == 2
    pool = engine._pool
    assert engine._end_pool.atexit  # also when the interpreter ends, before threads could miss its lock
    del engine
    gc.collect()
    pool.submit(1, endless_job())
    assert pool.waiting() == 1  # no thread takes it


@needs_compiler
@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_forked_process_ends_without_the_threads():
    assert replay_library().wait()
    pool = torch.classes.fedloom_replay.Pool(2)
    for end in (pool.close, pool.__repr__):
        if not (child := os.fork()):
            end()
            del pool, end
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    pool.close()


@needs_compiler
def test_too_few_threads_are_one_line(monkeypatch):
    def refused(speedups, threads):
        raise RuntimeError("Resource temporarily unavailable\nfrom C++")

    assert replay_library().wait()
    monkeypatch.setattr(Speedups, "pool", refused)
    toy = world(configured("fedavg"), FEW, batch_size=4)
    says = r"engine.workers = 9: the system allows no more threads \(Resource temporarily unavailable\); take fewer"
    with pytest.raises(ConfigError, match=says):
        next(Threads(toy.worker, 9).run([toy.job(0)]))


def test_without_a_compiler_clients_run_in_processes_and_a_line_says_so(monkeypatch, tmp_path):
    library = TorchLibrary(tmp_path / "none.cpp")
    library.obstacle = "there is no C++ compiler"
    monkeypatch.setattr("fedloom.engine.fast.replay_library", lambda: library)
    toy = world(configured("fedavg"), FEW, batch_size=4)
    found = choose_engine(toy.federation, toy.worker, EngineChoice(name="threads", workers=2))
    found.engine.close()
    assert found.engine.name == "processes"
    assert found.warning == "engine: threads cannot be used here (there is no C++ compiler); clients run in processes"


def test_a_compilation_that_fails_later_is_reported_once(monkeypatch, tmp_path):
    library = TorchLibrary(tmp_path / "none.cpp")
    monkeypatch.setattr("fedloom.engine.fast.replay_library", lambda: library)
    library.start = lambda: None
    library.obstacle = None
    toy = world(configured("fedavg"), FEW, batch_size=4)
    engine = toy.federation.engine = Threads(toy.worker, 2)
    assert not toy.federation.step().diagnostics
    library.obstacle = "it does not compile"
    (note,) = toy.federation.step().diagnostics
    assert note.code == "engine.threads"
    assert note.message.startswith(
        "threads cannot be used (it does not compile); clients are trained one after another"
    )
    assert not toy.federation.step().diagnostics
    engine.close()


def test_a_variable_says_that_there_is_no_compiler(monkeypatch):
    monkeypatch.setenv("FEDLOOM_NO_COMPILER", "1")
    assert compiling.compiler.__wrapped__() is None


def test_a_thread_has_no_time_limit():
    with pytest.raises(ConfigError, match=r"client_seconds = 5: a thread cannot be ended"):
        EngineChoice(name="threads", client_seconds=5)
