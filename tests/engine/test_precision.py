"""Training in bfloat16: every method, every engine, float32 weights throughout."""

import pytest
import torch

from fedloom.core.errors import ConfigError
from fedloom.core.records import map_tensors
from fedloom.engine.client import Worker
from fedloom.engine.fast.replayer import Replayer
from fedloom.engine.processes import Processes
from fedloom.engine.stacked import Batched
from fedloom.runs.config.run_config import parse
from fedloom.runs.run import run
from support import ROW_METHODS, STEEP, TinyBN, configured, furthest, same_bits, sampled, world

LABELS = [[0, 1, 2, 0, 1, 1, 0], [1, 1, 2, 3, 3, 0, 1], [2, 3, 2, 1, 0, 2, 2, 2, 1], [0, 0]]
NAMES = [*ROW_METHODS, "fedprox+dw", "fedsc+dw"]


def trained(name, engine=None, *, bfloat16=True, replayed=False):
    """Two rounds."""
    toy = world(configured(name), LABELS, net=TinyBN, epochs=2, rounds=3)
    worker = Worker(toy.method, [toy.net], toy.data, toy.worker.local_training, bfloat16=bfloat16)
    worker.stepper = Replayer(toy.data, eager=True) if replayed else worker.stepper
    toy.federation.engine = engine(worker, toy) if engine else toy.federation.engine.__class__(worker)
    try:
        for _ in range(2):
            toy.federation.step()
    finally:
        toy.federation.engine.close()
    return toy.federation


def dtypes(*records):
    found = set()
    for record in records:
        map_tensors(record, lambda tensor: found.add(tensor.dtype) or tensor)
    return {dtype for dtype in found if dtype.is_floating_point}


@pytest.mark.parametrize("name", sampled([name for name in NAMES if name not in STEEP], "ditto", "fedkd", "scaffold"))
def test_every_method_trains_in_it_and_keeps_float32(name):
    rounded, exact = trained(name), trained(name, bfloat16=False)
    assert dtypes(rounded.server, *(state for _, state in rounded.states.items())) <= {torch.float32}
    records = [(rounded.server, exact.server), *((state, exact.states[k]) for k, state in rounded.states.items())]
    apart = [furthest(a["model"], b["model"]) for a, b in records if "model" in a]
    assert 0 < max(apart) < 0.1


@pytest.mark.parametrize("name", ["fedavg", "fedsc", "fedco2"])
def test_processes_have_the_bits_of_one(name):
    def processes(worker, toy):
        return Processes(worker, toy.federation.tasks, workers=2)

    assert same_bits(trained(name, processes).server, trained(name).server)


@pytest.mark.parametrize("name", ["fedavg", "fedsc", "fedskc"])
def test_replayed_steps_have_the_bits_of_steps(name):
    replayed = trained(name, replayed=True)
    assert same_bits(replayed.server, trained(name).server)
    assert replayed.engine.worker.stepper.programs > 0


@pytest.mark.parametrize("name", ["fedavg", "fedsc", "fedskc", "fedssa"])
def test_stacks_are_close(name):
    """bfloat16 has 8 bits: one rounding the other way is 0.4 % of a value."""
    one, stacked = trained(name), trained(name, lambda worker, toy: Batched(worker, 32))
    if "model" in one.server:
        assert furthest(one.server["model"], stacked.server["model"]) < 0.02


def test_a_config_asks_for_it():
    config = {
        "method": "fedavg",
        "model": "mlp",
        "scenario": {"source": "digits", "clients": 5, "partition": "iid"},
        "rounds": 2,
    }
    exact, rounded = (
        run(parse(config | {"engine": "serial", "precision": precision})) for precision in ("float32", "bfloat16")
    )
    assert exact.numbers["test_loss"] != rounded.numbers["test_loss"]
    assert abs(exact.numbers["accuracy"] - rounded.numbers["accuracy"]) < 0.1
    with pytest.raises(ConfigError, match="precision"):
        parse(config | {"precision": "float16"})
