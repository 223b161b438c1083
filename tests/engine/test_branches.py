"""Clients of a stack side by side, as branches of a graph: the same numbers, and taken only where that is faster."""

import pytest
import torch

from fedloom.engine import recorded
from fedloom.engine.batched import Batched
from fedloom.engine.branches import STREAMS, side_by_side
from fedloom.engine.captured import Captured
from fedloom.engine.client import Worker
from fedloom.methods import METHODS
from support import Replays, TinyBN, configured, near, world

LABELS = [[0, 1, 2, 0, 1, 1, 0], [1, 1, 2, 3, 3, 0, 1], [2, 3, 2, 1, 0, 2, 2, 2, 1], [0, 0]]


def trained(name, device=None, *, engine=Batched):
    """A federation after three rounds, its steps recorded when they come twice."""
    toy = world(configured(name), LABELS, net=TinyBN, batch_size=4, rounds=3)
    if device is not None:
        toy.worker = Worker(toy.method, [toy.net], toy.data, toy.worker.local, device)
    toy.federation.engine = engine(toy.worker) if engine else toy.federation.engine
    toy.federation.engine.hurry(True)
    if engine:
        toy.federation.engine.stacks.recorder.longest_seconds = 1e9
    toy.reports = [toy.federation.step() for _ in range(3)]
    return toy


@pytest.fixture
def faster(monkeypatch):
    """Graphs stood in for without a GPU, and a clock by which one way of writing steps is the faster."""

    def say(branches):
        monkeypatch.setattr(recorded, "_on_gpu", lambda _: True)
        monkeypatch.setattr(recorded, "Captured", lambda run, inputs: Captured(run, inputs, Replays()))
        monkeypatch.setattr(recorded, "_seconds", lambda recording, _: 1.0 + (recording.other != branches))

    return say


def notes(toy):
    return [finding for report in toy.reports for finding in report.findings if finding.code == "engine.branches"]


@pytest.mark.parametrize("name", METHODS.names())
def test_every_method_has_the_numbers_of_its_steps(name, faster):
    """With unequal clients, a batch that is padded, and batch norm's statistics."""
    faster(True)
    branched = trained(name)
    assert branched.federation.engine.stacks.recorder.others > 0
    serial = trained(name, engine=None)
    assert near(branched.federation.server, serial.federation.server, 1e-5)
    states = zip(branched.federation.states.values(), serial.federation.states.values(), strict=True)
    assert all(near(one, other, 1e-5) for one, other in states)
    assert "branches of a graph, faster here than stacked" in notes(branched)[0].message


def test_the_faster_way_is_taken(faster):
    faster(False)
    toy = trained("fedavg")
    recorder = toy.federation.engine.stacks.recorder
    assert recorder.programs > 0
    assert recorder.others == 0
    assert notes(toy) == []


def test_on_the_cpu_there_is_one_way(monkeypatch):
    monkeypatch.setattr(recorded, "_seconds", lambda *_: pytest.fail("nothing to choose from"))
    assert trained("fedavg").federation.engine.stacks.recorder.programs > 0


def test_without_a_gpu_one_after_another():
    order = []
    assert side_by_side(lambda place: order.append(place) or place, 20, torch.device("cpu")) == list(range(20))
    assert order == list(range(20))


class Stream:
    """A stand-in for CUDA's, which notes who waits for whom."""

    current, waits = None, []

    def __init__(self, device=None):
        self.device = device

    def wait_stream(self, other):
        Stream.waits.append((self, other))

    def __enter__(self):
        self.before, Stream.current = Stream.current, self

    def __exit__(self, *_):
        Stream.current = self.before


def test_on_a_gpu_every_branch_begins_after_what_was_before_and_ends_before_what_comes(monkeypatch):
    joint = Stream.current = Stream()
    Stream.waits = []
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _=None: Stream.current)
    count = STREAMS + 3
    ran = side_by_side(lambda place: (place, Stream.current), count, torch.device("cuda"))
    assert [place for place, _ in ran] == list(range(count))
    used = dict.fromkeys(stream for _, stream in ran)
    assert len(used) == STREAMS
    assert Stream.waits == [*((stream, joint) for stream in used), *((joint, stream) for stream in used)]
    assert Stream.current is joint


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", METHODS.names())
def test_branches_on_a_gpu(name, monkeypatch):
    monkeypatch.setattr(recorded, "_seconds", lambda recording, _: float(not recording.other))
    branched = trained(name, torch.device("cuda"))
    assert branched.federation.engine.stacks.recorder.others > 0
    assert near(branched.federation.server, trained(name, engine=None).federation.server, 1e-3)
