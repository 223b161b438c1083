"""Functions as CUDA graphs. Without a GPU, a stand-in runs the captured function again, on the captured memory."""

import pytest
import torch

from fedloom.engine.captured import Captured
from fedloom.engine.client import Worker
from fedloom.engine.recorded import Recorder
from support import Replays, TinyBN, configured, furthest, world

LABELS = [[0, 1, 2, 0, 1, 1, 0], [1, 1, 2, 3, 3, 0, 1], [2, 3, 2, 1, 0, 2, 2, 2, 1], [0, 0]]


def moved(weight, x):
    """A step: writes into the weight, returns the loss."""
    weight = weight.detach()
    loss = (weight * x).sum()
    weight.sub_(x)
    return [loss]


def test_inputs_are_read_anew_and_writes_come_back():
    program = Captured(moved, [torch.ones(3), torch.ones(3)], Replays())
    weight = torch.full((3,), 5.0)
    (first,) = program(weight, torch.full((3,), 2.0))
    assert weight.tolist() == [3.0] * 3
    (second,) = program(weight, torch.ones(3))
    assert weight.tolist() == [2.0] * 3
    assert (float(first), float(second)) == (30.0, 9.0)


def test_what_is_only_read_is_left_alone():
    x = torch.ones(3)
    Captured(moved, [torch.ones(3), torch.ones(3)], Replays())(torch.ones(3), x)
    assert x._version == 0


def test_capturing_changes_no_input():
    weight, x = torch.ones(3), torch.ones(3)
    Captured(moved, [weight, x], Replays())
    assert weight.tolist() == x.tolist() == [1.0] * 3


def test_results_do_not_change_with_the_next_call():
    program = Captured(lambda a: [a * 2], [torch.ones(2)], Replays())
    (first,) = program(torch.ones(2))
    program(torch.zeros(2))
    assert first.tolist() == [2.0, 2.0]


def test_a_failing_capture_says_so():
    def refuses(run):
        raise RuntimeError("operation not permitted when stream is capturing")

    with pytest.raises(RuntimeError, match="capturing"):
        Captured(moved, [torch.ones(3), torch.ones(3)], refuses)


@pytest.mark.parametrize("name", ["fedavg", "fedsc", "fedskc", "fedco2"])
def test_steps_of_methods_through_captured_memory(name, monkeypatch):
    """The whole path of a recording on a GPU, with the stand-in."""
    replays = Replays()
    monkeypatch.setattr(
        "fedloom.engine.recorded.compiled", lambda function, inputs: Captured(function, inputs, replays)
    )
    toys = [world(configured(name), LABELS, net=TinyBN, batch_size=4, rounds=3) for _ in range(2)]
    for toy, after in zip(toys, (1e9, 0.0), strict=True):
        toy.worker.recorder = Recorder(after, longest_seconds=1e9, after=1)
        for _ in range(3):
            toy.federation.step()
    assert replays.count > 0
    one, other = (toy.federation.server for toy in toys)
    assert furthest(one["model"], other["model"]) == 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", ["fedavg", "fedsc", "fedskc", "fedco2"])
def test_steps_of_methods_on_a_gpu(name):
    servers = []
    for after in (1e9, 0.0):
        toy = world(configured(name), LABELS, net=TinyBN, batch_size=4, rounds=3)
        worker = Worker(toy.method, [toy.net], toy.data, toy.worker.local, torch.device("cuda"))
        worker.recorder = Recorder(after, longest_seconds=1e9, after=1)
        toy.federation.engine = type(toy.federation.engine)(worker)
        for _ in range(3):
            toy.federation.step()
        servers.append(toy.federation.server)
    assert worker.recorder.programs > 0
    assert furthest(servers[0]["model"], servers[1]["model"]) < 1e-4
