"""The processes engine: the serial engine's bits whatever happens to its workers. Each method: `test_engines.py`."""

import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest
import torch

from fedloom.core.errors import ClientError
from fedloom.engine.processes import Processes, shared_memory
from fedloom.engine.processes import engine as module
from fedloom.engine.processes import engine as workers
from fedloom.methods.fedavg import FedAvg
from support import TinyBN, configured, furthest, same_bits, world

# Unequal clients, one of a single sample; with a part of them drawn, some are new in a late round.
LABELS = [[0, 1, 2, 0, 1], [1, 1, 2, 3, 3, 0, 1], [0], [2, 3, 2, 1, 0, 2, 2, 2, 1], [0, 0]]


def parallel(toy, *, workers=2, client_seconds=None, stack=1):
    """The toy federation on the processes engine."""
    tasks = toy.federation.tasks
    engine = Processes(toy.worker, tasks, workers=workers, client_seconds=client_seconds, stack=stack)
    toy.federation.engine = engine
    return engine


def rounds(toy, count=3):
    try:
        return [toy.federation.step() for _ in range(count)]
    finally:
        toy.federation.engine.close()


def same_federation(one, other):
    return (
        same_bits(one.federation.server, other.federation.server)
        and one.federation.states.keys() == other.federation.states.keys()
        and all(same_bits(state, other.federation.states[k]) for k, state in one.federation.states.items())
    )


def test_spawned_workers_have_the_same_bits(monkeypatch):
    monkeypatch.setattr(workers, "_context", lambda: multiprocessing.get_context("spawn"))
    toys = [world(configured("fedco2"), LABELS, net=TinyBN) for _ in range(2)]
    parallel(toys[1])
    for toy in toys:
        rounds(toy, 2)
    assert same_federation(*toys)


@pytest.mark.parametrize(("name", "clients"), [("fedsc", 5), ("fedco2", 5), ("local", 60)])
def test_without_shared_memory_pipes_carry_the_same_bits(monkeypatch, name, clients):
    monkeypatch.setattr(shared_memory, "_SPACE", 1 << 60)
    labels = (LABELS * 12)[:clients]
    toys = [world(configured(name), labels, net=TinyBN) for _ in range(2)]
    engine = parallel(toys[1])
    assert not engine._orders.reserved
    for toy in toys:
        rounds(toy, 2)
    assert same_federation(*toys)


class Large(FedAvg):
    """Payloads far above what a pipe holds, in both directions."""

    def extra(self, net):
        return torch.nn.Linear(300, 1000, bias=False)


def test_large_messages_do_not_wait_for_each_other(monkeypatch):
    monkeypatch.setattr(shared_memory, "_SPACE", 1 << 60)
    toys = [world(Large(), LABELS * 12) for _ in range(2)]
    parallel(toys[1])
    for toy in toys:
        rounds(toy, 2)
    assert same_federation(*toys)


class Dies(FedAvg):
    """Client 3's process is killed while it works, `times` times; a file counts."""

    count = ""
    times = 1

    def begin(self, payload, state, ctx):
        count = Path(self.count)
        if ctx.client == 3 and len(count.read_text()) < self.times:
            count.write_text(count.read_text() + "x")
            os.kill(os.getpid(), signal.SIGKILL)
        return super().begin(payload, state, ctx)


def dying(tmp_path, times):
    count = tmp_path / "count"
    count.touch()
    return type("Dies", (Dies,), {"count": str(count), "times": times})()


@pytest.mark.parametrize("times", [1, 2])
def test_a_killed_worker_costs_a_retry_and_no_bit(tmp_path, times):
    toys = [world(configured("fedavg"), LABELS), world(dying(tmp_path, times), LABELS)]
    engine = parallel(toys[1])
    before = {hand.process.pid for hand in engine._workers}
    toys[0].federation.step()
    toys[1].federation.step()
    after = {hand.process.pid for hand in engine._workers}
    assert len(after - before) >= 1
    assert len(after) == 2
    for toy in toys:
        rounds(toy, 1)
    assert same_federation(*toys)


@pytest.mark.parametrize("killed", [1, 2])
def test_workers_that_died_between_rounds_are_replaced(killed):
    """What is sent to them goes nowhere: they are noticed all the same."""
    toys = [world(configured("fedbn"), LABELS, net=TinyBN) for _ in range(2)]
    engine = parallel(toys[1])
    for toy in toys:
        toy.federation.step()
    for hand in engine._workers[:killed]:
        hand.process.kill()
        hand.process.join()
    for toy in toys:
        rounds(toy, 2)
    assert same_federation(*toys)


@pytest.mark.parametrize("stack", [1, 2])
def test_a_killed_worker_costs_a_retry_of_all_its_clients(tmp_path, stack):
    labels = LABELS * 6  # several clients at a time
    toys = [world(configured("fedavg"), labels), world(dying(tmp_path, 1), labels)]
    parallel(toys[1], stack=stack)
    for toy in toys:
        rounds(toy, 2)
    one, other = (toy.federation.server["model"] for toy in toys)
    assert furthest(one, other) < (1e-5 if stack > 1 else 1e-30)


@pytest.mark.parametrize(("clients", "stack"), [(5, 1), (30, 1), (5, 2)])
def test_a_client_under_which_workers_keep_dying_is_named(tmp_path, clients, stack):
    toy = world(dying(tmp_path, 99), (LABELS * 6)[:clients])
    parallel(toy, stack=stack)
    with pytest.raises(ClientError, match=r"client 3 failed in round 1 .*died 3 times \(exit code -9\)"):
        rounds(toy, 1)


class Hangs(FedAvg):
    def begin(self, payload, state, ctx):
        if ctx.client == 1:
            time.sleep(60)
        return super().begin(payload, state, ctx)


@pytest.mark.parametrize(("clients", "stack"), [(5, 1), (30, 1), (5, 2)])
def test_a_client_that_hangs_is_ended_and_named(clients, stack):
    toy = world(Hangs(), (LABELS * 6)[:clients])
    engine = parallel(toy, client_seconds=0.3, stack=stack)
    workers, started = [hand.process for hand in engine._workers], time.monotonic()
    with pytest.raises(ClientError, match=r"client 1 failed in round 1 .*client_seconds = 0\.3"):
        rounds(toy, 1)
    assert time.monotonic() - started < 10
    assert not any(process.is_alive() for process in workers)


class Slow(FedAvg):
    def begin(self, payload, state, ctx):
        if ctx.client == 1 and ctx.round == 2:
            time.sleep(0.6)
        return super().begin(payload, state, ctx)


def test_it_says_once_whom_a_round_waits_for(monkeypatch):
    monkeypatch.setattr(module, "PATIENCE", 0.2)
    toy, told = world(Slow(), LABELS), []
    toy.federation.engine = Processes(toy.worker, toy.federation.tasks, workers=2, note=told.append)
    rounds(toy, 3)
    (note,) = told
    assert note.startswith("round 2 has waited 0 s for client 1; engine.client_seconds sets the longest time")


class Unsendable(Exception):
    def __reduce__(self):
        raise TypeError("cannot be pickled")


class Fails(FedAvg):
    error: Exception = ValueError("no such thing")

    def loss(self, net, batch, consts):
        raise self.error


@pytest.mark.parametrize("error", [ValueError("no such thing"), Unsendable("no such thing")])
def test_an_exception_keeps_its_place_and_its_traceback(error):
    toy = world(type("Fails", (Fails,), {"error": error})(), LABELS)
    parallel(toy)
    with pytest.raises(ClientError, match=r"failed in round 1 \(phase 0\).*no such thing") as caught:
        rounds(toy, 1)
    assert "raise self.error" in "".join(caught.value.__notes__)
    assert "no such thing" in str(caught.value.__cause__)


class FailsOnce(FedAvg):
    """The first client to begin fails, if the file is not there; the others take their time."""

    path: Path

    def begin(self, payload, state, ctx):
        if ctx.round == 1 and not self.path.exists():
            self.path.touch()
            raise ValueError("no such thing")
        time.sleep(0.01)
        return super().begin(payload, state, ctx)


@pytest.mark.parametrize("clients", [5, 60])
def test_a_round_after_one_that_failed_meets_none_of_its_answers(tmp_path, clients):
    """Workers had more clients, and answers of theirs may be on the way."""
    labels = (LABELS * 12)[:clients]
    plain, failing = world(FedAvg(), labels), world(type("FailsOnce", (FailsOnce,), {"path": tmp_path / "f"})(), labels)
    parallel(failing)
    with pytest.raises(ClientError, match="no such thing"):
        failing.federation.step()
    assert failing.federation.round == 0
    assert [r.terms for r in rounds(failing, 2)] == [r.terms for r in rounds(plain, 2)]
    assert same_federation(plain, failing)


def test_server_state_outlives_the_round_it_was_made_in():
    toy = world(configured("fedco2"), LABELS, net=TinyBN)  # its bank holds uploads as they are
    engine = parallel(toy)
    toy.federation.step()
    head = toy.federation.server["head.0"]["head.weight"]
    before = head.clone()
    assert not any(hand.results.holds(head) for hand in engine._workers)
    rounds(toy, 1)
    assert torch.equal(head, before)
