"""Training in bfloat16: every method, every engine, float32 weights throughout."""

import pytest
import torch

from fedloom.core.errors import ConfigError
from fedloom.core.records import map_tensors
from fedloom.runs.config.run_config import parse
from fedloom.runs.run import run
from support import ROW_METHODS, STEEP, TinyBN, after, configured, furthest, same_on, sampled, world

LABELS = [[0, 1, 2, 0, 1, 1, 0], [1, 1, 2, 3, 3, 0, 1], [2, 3, 2, 1, 0, 2, 2, 2, 1], [0, 0]]
NAMES = [*ROW_METHODS, "fedprox+dw", "fedsc+dw"]
SETTINGS = {"net": TinyBN, "epochs": 2, "rounds": 3}


def trained(name, engine="serial", *, bfloat16=True):
    return after(world(configured(name), LABELS, **SETTINGS, bfloat16=bfloat16), 2, engine).federation


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


@pytest.mark.parametrize("engine", ["processes", "threads", "replayed"])
@pytest.mark.parametrize("name", ["fedavg", "fedsc", "fedskc", "fedco2"])
def test_engines_have_the_bits_of_plain_steps(name, engine):
    same_on(engine, configured(name), LABELS, **SETTINGS, bfloat16=True)


@pytest.mark.parametrize("name", ["fedavg", "fedsc", "fedskc", "fedssa"])
def test_stacks_are_close(name):
    """bfloat16 has 8 bits: one rounding the other way is 0.4 % of a value."""
    one, stacked = trained(name), trained(name, "stacked")
    if "model" in one.server:
        assert furthest(one.server["model"], stacked.server["model"]) < 0.02


def test_a_config_asks_for_it():
    scenario = {"source": "digits", "clients": 5, "partition": "iid"}
    config = {"method": "fedavg", "model": "mlp", "scenario": scenario, "rounds": 2, "engine": "serial"}
    exact, rounded = (run(parse(config | {"precision": precision})) for precision in ("float32", "bfloat16"))
    assert exact.numbers["test_loss"] != rounded.numbers["test_loss"]
    assert abs(exact.numbers["accuracy"] - rounded.numbers["accuracy"]) < 0.1
    with pytest.raises(ConfigError, match="precision"):
        parse(config | {"precision": "float16"})
