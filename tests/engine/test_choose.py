"""Engines with native kernels: asked for, or found faster in a trial."""

import pytest
import torch

from fedloom.core import native
from fedloom.core.errors import ConfigError
from fedloom.engine import choose
from fedloom.engine.choose import EngineChoice, choose
from fedloom.engine.client import Worker
from fedloom.engine.fast.kernels.compiling import compiler
from fedloom.engine.fast.recorder import Recorder
from fedloom.engine.serial import Serial
from fedloom.engine.stacked import Batched
from fedloom.methods import METHODS
from fedloom.study.config import parse
from fedloom.study.run import run
from support import configured, furthest, same_bits, world

needs_compiler = pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")
LABELS = [[0, 1, 2, 0, 1, 1, 0], [1, 1, 2, 3, 3, 0, 1], [2, 3, 2, 1, 0, 2, 2, 2, 1], [0, 0, 3]]
NAMES = [*METHODS.names(), "fedprox+dw", "fedsc+dw"]


def images(name="fedavg", *, net="lenet5-bn"):
    return world(configured(name), LABELS, net=net, shape=(1, 28, 28), epochs=2, rounds=4)


def trained(toy, choice, *, count=2):
    equip(toy.federation, toy.worker, choice)
    try:
        for _ in range(count):
            toy.federation.step()
    finally:
        toy.federation.engine.close()
    return toy.federation


NATIVE, TORCH = EngineChoice("serial", kernels="own"), EngineChoice("serial")


@needs_compiler
@pytest.mark.parametrize("name", NAMES)
def test_every_method_is_close_to_torchs_kernels(name):
    """Close as a run with batch norm can be after a few steps: it divides by the spread of small batches."""
    native, plain = trained(images(name), NATIVE), trained(images(name), TORCH)
    records = [(native.server, plain.server), *((state, plain.states[k]) for k, state in native.states.items())]
    apart = [furthest(a["model"], b["model"]) for a, b in records if "model" in a]
    assert 0 < max(apart) < 1e-5


@needs_compiler
@pytest.mark.parametrize("name", ["fedavg", "fedsc", "fedco2"])
def test_processes_have_the_bits_of_one(name):
    two = EngineChoice("processes", workers=2, kernels="own")
    assert same_bits(trained(images(name), two).server, trained(images(name), NATIVE).server)


@needs_compiler
@pytest.mark.parametrize("name", ["fedavg", "fedsc", "fedskc"])
def test_recordings_have_the_bits_of_steps(name):
    toy = images(name)
    equip(toy.federation, toy.worker, NATIVE)
    assert isinstance(toy.federation.engine, Serial)
    recorder = toy.federation.engine.worker.recorder = Recorder(0.0, longest_seconds=1e9, after=1)
    for _ in range(2):
        toy.federation.step()
    assert recorder.programs > 0
    assert same_bits(toy.federation.server, trained(images(name), NATIVE).server)


@needs_compiler
def test_the_workers_own_nets_stay_torchs():
    """They evaluate, and count floating-point operations."""
    toy = images()
    equip(toy.federation, toy.worker, NATIVE)
    engine = toy.federation.engine
    assert isinstance(engine, Serial)
    assert engine.native
    assert not toy.worker.native
    weights = [p for p in engine.worker.lives[0].net.parameters() if p.dim() == 4]
    assert all(p.is_contiguous() for p in weights)


@pytest.mark.parametrize(
    ("change", "choice", "why"),
    [
        ({}, EngineChoice("batched", kernels="own"), "stacks are computed by torch"),
        ({"net": "mlp-128"}, NATIVE, "no net has a convolution"),
        ({"bfloat16": True}, NATIVE, "precision is bfloat16"),
        ({"device": torch.device("meta")}, NATIVE, "run on the CPU, and the device is meta"),
    ],
)
def test_what_stands_in_their_way_is_told(change, choice, why):
    toy = images(net=change.pop("net", "lenet5"))
    if change:
        device = change.pop("device", torch.device("cpu"))
        toy.worker = Worker(toy.method, [toy.net], toy.data, toy.worker.local, device, **change)
    with pytest.raises(ConfigError, match=f"engine.kernels: own cannot be used: .*{why}"):
        equip(toy.federation, toy.worker, choice)


def test_no_compiler_is_told(monkeypatch):
    monkeypatch.setattr(native, "compiler", lambda: None)
    toy = images()
    with pytest.raises(ConfigError, match="there is no C\\+\\+ compiler"):
        equip(toy.federation, toy.worker, NATIVE)
    equipped = equip(toy.federation, toy.worker, EngineChoice("auto", workers=1, same_bits=False))
    toy.federation.engine.close()
    assert "native" not in equipped.reason


@needs_compiler
@pytest.mark.parametrize("faster", ["serial", "processes"])
def test_auto_takes_them_where_it_may_and_they_are_faster(faster, monkeypatch):
    def seconds(_, engine, *, hurried):
        return 1.0 if engine.name == faster and engine.native else 2.0

    monkeypatch.setattr(choose._Trial, "seconds", seconds)
    toy = images()
    equipped = equip(toy.federation, toy.worker, EngineChoice("auto", workers=2, same_bits=False))
    engine = toy.federation.engine
    try:
        assert (engine.name, engine.native) == (faster, True)
        split = "in one process" if faster == "serial" else "in 2"
        assert f"1.000 s {split} with native kernels" in equipped.reason
        assert all(words in equipped.reason for words in ("in one process,", "in 2,", "stacked in 2"))
    finally:
        engine.close()


@needs_compiler
def test_stacks_of_linear_nets_take_them_where_auto_may(monkeypatch):
    monkeypatch.setattr(choose._Trial, "seconds", lambda _, engine, *, hurried: 2.0 - engine.native)
    toy = images(net="mlp-128")
    equipped = equip(toy.federation, toy.worker, EngineChoice("auto", workers=1, same_bits=False))
    assert (toy.federation.engine.name, toy.federation.engine.native) == ("batched", True)
    assert equipped.reason.endswith("took 2.000 s in one process, 1.000 s stacked in one process with native kernels")


@needs_compiler
def test_stacks_of_convolutions_beside_linear_nets_are_torchs():
    stacked = images(net="lenet5")
    stacked.federation.engine = Batched(stacked.worker.twin(native=True))
    stacked.federation.step()
    plain = trained(images(net="lenet5"), TORCH, count=1)
    assert furthest(stacked.federation.server["model"], plain.server["model"]) < 1e-5


@needs_compiler
@pytest.mark.parametrize("name", ["batched", "auto"])
def test_stacks_of_linear_nets_take_them_where_they_are_named(name):
    toy = images(net="mlp-128")
    equip(toy.federation, toy.worker, EngineChoice(name, workers=1, same_bits=False, kernels="own"))
    assert toy.federation.engine.native
    with pytest.raises(ConfigError, match="no net has a convolution"):
        equip(toy.federation, toy.worker, EngineChoice("auto", workers=1, kernels="own"))


@needs_compiler
@pytest.mark.parametrize("choice", [EngineChoice("auto", workers=1), EngineChoice("auto", workers=2)])
def test_auto_keeps_to_torchs_bits_unless_told(choice):
    toy = images()
    equipped = equip(toy.federation, toy.worker, choice)
    toy.federation.engine.close()
    assert "native" not in (equipped.reason or "")


@needs_compiler
@pytest.mark.parametrize("kernels_", ["torch", "native"])
def test_kernels_that_are_named_are_the_only_ones_tried(kernels_):
    toy = images()
    choice = EngineChoice("auto", workers=2, same_bits=False, kernels=kernels_)
    equipped = equip(toy.federation, toy.worker, choice)
    toy.federation.engine.close()
    assert equipped.reason.count("native") == (2 if kernels_ == "native" else 0)


def test_a_config_asks_for_them():
    scenario = {"source": "digits", "clients": 5, "partition": "iid"}
    config = {"method": "fedavg", "model": "lenet5", "rounds": 1, "scenario": scenario}
    assert parse(config | {"engine": {"kernels": "native"}}).engine.choice().kernels == "native"
    with pytest.raises(ConfigError, match="kernels"):
        parse(config | {"engine": {"kernels": "mine"}})


@needs_compiler
def test_a_result_names_them():
    scenario = {"source": "digits", "clients": 5, "partition": "iid"}
    config = {"method": "fedavg", "model": "digits-cnn", "rounds": 1, "scenario": scenario}
    engine = {"name": "serial", "kernels": "native"}
    assert run(parse(config | {"engine": engine})).numbers["engine"] == "serial, native kernels"
    assert run(parse(config | {"engine": "serial"})).numbers["engine"] == "serial"
