"""A run with processes leaves nothing: no descriptor, no shared memory and no temporary folder, however it ends."""

import contextlib
import gc
import multiprocessing
import resource
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from torch import nn

import fedloom as fl
from fedloom.core.errors import ClientError, ConfigError
from fedloom.engine.processes import Processes
from fedloom.engine.processes import engine as workers
from fedloom.engine.processes.shared_memory import SharedMemory
from fedloom.methods.fedavg import FedAvg
from fedloom.runs.callbacks import Callback
from support import TinyBN, world

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
ENGINE = {"name": "processes", "workers": 2}


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def shared_mappings() -> int:
    """Shared memory of fedloom that this process has mapped: pages last as long as a descriptor or a mapping."""
    return sum("memfd:fedloom" in line for line in Path("/proc/self/maps").read_text().splitlines())


class Interrupt(Callback):
    """Ctrl-C after the first round."""

    def on_round(self, config, round_, rows):
        raise KeyboardInterrupt


class Fails(nn.Module):
    """Fails in the first training step of the second round, once its counter, a buffer, has arrived there."""

    def __init__(self, num_classes):
        super().__init__()
        self.flat, self.head = nn.Flatten(), nn.Linear(64, num_classes)
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x):
        if self.training and self.steps >= 3:
            raise ValueError("on purpose")
        if self.training:
            self.steps.add_(1)
        return self.head(self.flat(x))


def end_well(scenario):
    fl.run("fedavg", scenario=scenario, rounds=1, local_epochs=1, engine=ENGINE)


def compare(scenario):
    fl.compare(["fedavg", "fedsc"], scenario=scenario, seeds=1, rounds=1, local_epochs=1, engine=ENGINE)


def fail(scenario):
    with pytest.raises(ClientError):
        fl.run("fedavg", scenario=scenario, model=Fails, rounds=4, local_epochs=1, engine=ENGINE)


def interrupt(scenario):
    with pytest.raises(KeyboardInterrupt):
        fl.run("fedavg", scenario=scenario, rounds=2, local_epochs=1, engine=ENGINE, callbacks=[Interrupt()])


def test_thirty_runs_that_end_in_any_way_leave_descriptors_and_memory_as_they_were():
    scenario = fl.scenario("digits", partition="dirichlet", alpha=0.5, clients=3, seed=0)
    end_well(scenario)
    gc.collect()  # what earlier tests left open
    before = descriptors()
    for _ in range(6):  # a comparison is two runs
        for way in (end_well, compare, fail, interrupt):
            way(scenario)
    gc.collect()  # exceptions of tests hold frames
    assert descriptors() <= before
    assert shared_mappings() == 0


def test_workers_leave_no_temporary_folder(tmp_path, monkeypatch):
    """The tensors of metrics took a socket each, in a folder of the worker that nobody deleted."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setitem(multiprocessing.current_process()._config, "tempdir", None)
    end_well(fl.scenario("digits", partition="dirichlet", alpha=0.5, clients=3, seed=0))
    assert not [*tmp_path.iterdir()]


def test_memory_that_is_closed_gives_back_its_descriptor_and_keeps_its_views():
    before, memory = descriptors(), SharedMemory()
    view = memory.view(*memory.put(torch.arange(5)))
    memory.close()
    assert descriptors() == before + 1  # that of the mapping, which a view still needs
    assert view.tolist() == [0, 1, 2, 3, 4]
    del view
    assert descriptors() == before
    assert shared_mappings() == 0
    memory.close()


def test_memory_that_nobody_closed_goes_with_its_last_reference():
    before, memory = descriptors(), SharedMemory()
    assert descriptors() == before + 2
    del memory
    assert descriptors() == before


def test_an_engine_that_cannot_start_all_its_workers_ends_those_that_it_started(monkeypatch):
    start, started = workers.start_worker, []

    def interrupted(*arguments):
        if started:
            raise KeyboardInterrupt
        started.append(start(*arguments))
        return started[0]

    monkeypatch.setattr("fedloom.engine.processes.engine.start_worker", interrupted)
    toy, before = world(FedAvg(), [[0, 1], [1, 0]], net=TinyBN), descriptors()
    with pytest.raises(KeyboardInterrupt):
        Processes(toy.worker, toy.federation.tasks, workers=2)
    assert not started.pop().process.is_alive()
    assert descriptors() == before


@contextlib.contextmanager
def few_descriptors(spare: int):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors() + spare, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_too_few_descriptors_are_one_line():
    toy = world(FedAvg(), [[0, 1], [1, 0]], net=TinyBN)
    with few_descriptors(12), pytest.raises(ConfigError, match=r"engine.workers = 8: .*ulimit -n") as caught:
        Processes(toy.worker, toy.federation.tasks, workers=8)
    assert "\n" not in str(caught.value)
