"""Clients on Ray: the serial engine's bits, whatever happens to its workers."""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from fedloom.core.errors import ClientError
from fedloom.engine import ray as engine
from fedloom.engine.ray import OnRay
from fedloom.methods.fedavg import FedAvg
from fedloom.runs.config.run_config import parse
from fedloom.runs.run import run
from support import ROW_METHODS, TinyBN, alike, configured, world

pytestmark = pytest.mark.usefixtures("cluster")
# Unequal clients, one of a single sample; with a part of them drawn, some are new in a late round.
LABELS = [[0, 1, 2, 0, 1], [1, 1, 2, 3, 3, 0, 1], [0], [2, 3, 2, 1, 0, 2, 2, 2, 1], [0, 0]]
WRAPPED = ["fedsc+dw", "fedssa+median", "fedavg+normbound"]


@pytest.fixture(autouse=True, scope="module")
def _methods_of_this_file(cluster):
    """Workers do not have this file: its classes come to them as they are."""
    from ray import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])


def rounds(toy, count=2):
    """The federation after some rounds on the engine that it has."""
    try:
        toy.reports = [toy.federation.step() for _ in range(count)]
    finally:
        toy.federation.engine.close()
    return toy


def on_ray(method, labels=LABELS, **how):
    toy = world(method, labels, **how)
    toy.federation.engine = OnRay(toy.worker, toy.federation.tasks)
    return toy


@pytest.mark.parametrize("name", [*ROW_METHODS, *WRAPPED])
def test_every_method_has_the_bits_of_the_serial_engine(name):
    how = {"net": TinyBN, "participation": 0.6, "epochs": 2, "batch_size": 3}
    serial, other = world(configured(name), LABELS, **how), on_ray(configured(name), **how)
    assert alike(rounds(serial), rounds(other), "ray")
    for one, two in zip(serial.reports, other.reports, strict=True):
        assert (one.terms, one.diagnostics, one.participants) == (two.terms, two.diagnostics, two.participants)


class Waits(FedAvg):
    """Client 3 waits for its end the first time, and says which process it is."""

    path = Path()

    def begin(self, payload, state, ctx):
        if ctx.client == 3 and not self.path.exists():
            self.path.write_text(str(os.getpid()))
            time.sleep(60)
        return super().begin(payload, state, ctx)


def kill(path):
    """Kill the process that writes its number there."""
    while not path.exists() or not path.read_text():
        time.sleep(0.01)
    os.kill(int(path.read_text()), signal.SIGKILL)


def test_a_killed_worker_costs_a_retry_and_no_bit(tmp_path):
    path = tmp_path / "pid"
    serial, other = world(FedAvg(), LABELS), on_ray(type("Waits", (Waits,), {"path": path})())
    killer = threading.Thread(target=kill, args=(path,))
    killer.start()
    assert alike(rounds(serial), rounds(other), "ray")
    killer.join()


class Dies(FedAvg):
    def begin(self, payload, state, ctx):
        if ctx.client == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().begin(payload, state, ctx)


class Fails(FedAvg):
    def loss(self, net, batch, consts):
        raise ValueError("no such thing")


def test_a_client_under_which_workers_keep_dying_is_named():
    with pytest.raises(ClientError, match=r"^client 3 failed in round 1 \(on Ray\): .* lost it 3 times \(WorkerCrash"):
        rounds(on_ray(Dies()))


def test_an_exception_keeps_its_place_and_its_traceback_and_the_next_round_is_whole():
    toy = on_ray(Fails())
    with pytest.raises(ClientError, match=r"failed in round 1 \(phase 0\).*no such thing$") as caught:
        toy.federation.step()
    assert 'raise ValueError("no such thing")' in "".join(caught.value.__notes__)
    toy.federation.engine.close()
    assert alike(rounds(world(FedAvg(), LABELS)), rounds(on_ray(FedAvg())), "ray")


def test_what_clients_share_is_put_into_the_store_once_a_round():
    toy = on_ray(FedAvg())
    cluster, put = toy.federation.engine._cluster, []
    plain = cluster.put
    cluster.put = lambda value: put.append(value) or plain(value)
    rounds(toy, 3)
    assert len(put) == 3  # the weights, for five clients


def test_no_more_clients_than_asked_for_are_under_way(monkeypatch):
    toy = world(FedAvg(), LABELS)
    toy.federation.engine = OnRay(toy.worker, toy.federation.tasks, workers=2)
    cluster, under_way = toy.federation.engine._cluster, []
    first = type(cluster)._first
    monkeypatch.setattr(type(cluster), "_first", lambda s, out, *a: under_way.append(len(out)) or first(s, out, *a))
    rounds(toy, 1)
    assert under_way == [2, 2, 2, 2, 1]


class Slow(FedAvg):
    """Client 1 waits in round 2 until a file exists, for a minute at most."""

    def __init__(self, until):
        super().__init__()
        self.until = until

    def begin(self, payload, state, ctx):
        waits_until = time.monotonic() + 60
        while ctx.client == 1 and ctx.round == 2 and not self.until.exists() and time.monotonic() < waits_until:
            time.sleep(0.05)
        return super().begin(payload, state, ctx)


def test_it_says_whom_a_round_waits_for(monkeypatch, tmp_path):
    toy, told = on_ray(Slow(tmp_path / "told")), []
    rounds(toy, 1)  # whose workers have started
    monkeypatch.setattr(engine, "PATIENCE", 0.5)

    def note(text):
        told.append(text)
        (tmp_path / "told").touch()

    toy.federation.engine = OnRay(toy.worker, toy.federation.tasks, note=note)
    rounds(toy, 1)
    assert set(told) == {"round 2 has waited 0 s for clients 1; `ray status` shows what the cluster does"}


def test_a_run_that_tests_personal_models_has_the_same_bits(tmp_path):
    values = {
        "method": "apfl",
        "model": {"name": "mlp", "hidden": [8]},
        "rounds": 2,
        "local_epochs": 1,
        "scenario": {"source": "digits", "partition": "dirichlet", "alpha": 0.3, "clients": 4, "val": 0.1},
        "evaluation": {"protocols": ["global/local", "personal/local", "personal/global", "personal/others"]},
    }
    serial, ray = (run(parse(values | {"engine": name}), out=tmp_path / name) for name in ("serial", "ray"))
    assert ray.numbers["checkpoint_sha256"] == serial.numbers["checkpoint_sha256"]
    assert ray.curve() == serial.curve()
    assert ray.numbers["protocols"] == serial.numbers["protocols"]
    assert (serial.numbers["engine"], ray.numbers["engine"]) == ("serial", "ray")
