"""A client that takes very long is named once, by the serial engine too."""

import threading
import time

from fedloom.engine import serial as slow_clients
from fedloom.engine.serial import Serial
from fedloom.methods.fedavg import FedAvg
from support import world

LABELS = [[0, 1], [1, 2, 3], [0, 3]]


class Slow(FedAvg):
    def begin(self, payload, state, ctx):
        if ctx.client == 1:
            time.sleep(0.4)
        return super().begin(payload, state, ctx)


def test_the_client_that_takes_long_is_named_once(monkeypatch):
    monkeypatch.setattr(slow_clients, "PATIENCE", 0.15)
    toy, told = world(Slow(), LABELS), []
    toy.federation.engine = Serial(toy.worker, told.append)
    before = threading.active_count()
    toy.federation.step()
    (note,) = told
    assert note.startswith("round 1 has waited 0 s for client 1; with engine: processes, engine.client_seconds")
    toy.federation.step()
    assert len(told) == 2
    assert "round 2" in told[1]
    toy.federation.engine.close()
    assert threading.active_count() == before
