"""The engine that is asked for, with own kernels or without, and what stands in the way of one."""

import resource
from pathlib import Path

import pytest
import torch

from fedloom.core.errors import ConfigError
from fedloom.engine.choose import Auto, EngineChoice, choose_engine, engine_name
from fedloom.engine.client import Worker
from fedloom.engine.fast.kernels import operators
from fedloom.engine.fast.kernels.compiling import compiler
from fedloom.engine.fast.replayer import Replayer
from fedloom.engine.processes import Processes
from fedloom.engine.serial import Serial
from fedloom.engine.speedups import Speedups
from fedloom.engine.stacked import Batched
from fedloom.engine.threads import Threads
from fedloom.runs.config.run_config import parse
from fedloom.runs.run import run
from support import ROW_METHODS, STEEP, configured, furthest, same_bits, sampled, world

needs_compiler = pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")
LABELS = [[0, 1, 2, 0, 1, 1, 0], [1, 1, 2, 3, 3, 0, 1], [2, 3, 2, 1, 0, 2, 2, 2, 1], [0, 0, 3]]
NAMES = [*ROW_METHODS, "fedprox+dw", "fedsc+dw"]
OWN, TORCH = EngineChoice(name="serial", kernels="own"), EngineChoice(name="serial")


def images(name="fedavg", *, net="lenet5-bn", rounds=4):
    return world(configured(name), LABELS, net=net, shape=(1, 28, 28), epochs=2, rounds=rounds)


def chosen(toy, choice):
    """The toy federation on the engine that is chosen for it."""
    toy.federation.engine = choose_engine(toy.federation, toy.worker, choice).engine
    return toy.federation.engine


def trained(toy, choice, *, count=2):
    chosen(toy, choice)
    try:
        for _ in range(count):
            toy.federation.step()
    finally:
        toy.federation.engine.close()
    return toy.federation


def words(engine):
    """How each candidate of an automatic choice works."""
    return [candidate.description for candidate in engine._candidates]


# -- engines -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "workers", "kind", "said"),
    [
        ("serial", 2, Serial, "serial"),
        ("processes", 2, Processes, "processes"),
        ("processes", 1, Processes, "processes"),
        ("batched", 1, Batched, "batched"),
        ("batched", 2, Processes, "batched"),
        ("threads", 2, Threads, "threads"),
        ("auto", 2, Auto, "processes"),
        ("auto", 1, Auto, "serial"),
    ],
)
def test_the_engine_is_the_one_asked_for(name, workers, kind, said, monkeypatch):
    monkeypatch.setattr(Speedups, "threads_ready", lambda self: False)
    toy = world(configured("fedavg"), LABELS)
    engine = chosen(toy, EngineChoice(name=name, workers=workers))
    try:
        assert (type(engine), engine.name, engine.reason) == (kind, said, None)
        assert engine_name(engine, EngineChoice(name=name)) == said
    finally:
        engine.close()


def test_no_more_processes_than_clients_of_a_round():
    toy = world(configured("fedavg"), LABELS, participation=0.5)
    engine = chosen(toy, EngineChoice(name="processes", workers=4))
    try:
        assert len(engine._workers) == 2
    finally:
        engine.close()


def test_more_workers_than_cores_are_warned_of(monkeypatch):
    monkeypatch.setattr("fedloom.engine.choose.available_cores", lambda: 2)
    warnings = {}
    for name, workers in (("processes", 3), ("processes", 2), ("serial", 3)):
        toy = world(configured("fedavg"), LABELS)
        found = choose_engine(toy.federation, toy.worker, EngineChoice(name=name, workers=workers))
        found.engine.close()
        warnings[name, workers] = found.warning
    assert (
        warnings.pop(("processes", 3))
        == "engine.workers = 3: they share 2 cores; more workers than cores are no faster"
    )
    assert set(warnings.values()) == {None}


def test_ray_knows_no_longest_time_for_a_client():
    with pytest.raises(ConfigError, match=r"engine\.client_seconds = 5: on Ray a client may wait"):
        EngineChoice(name="ray", client_seconds=5)


def test_stacks_have_the_size_asked_for():
    toy = world(configured("fedavg"), LABELS)
    assert chosen(toy, EngineChoice(name="batched", workers=1, stack=3)).stack == 3
    assert chosen(toy, EngineChoice(name="batched", workers=1)).stack == 32


@pytest.mark.parametrize("workers", [1, 2])
def test_auto_keeps_to_the_serial_engines_bits_unless_told(workers):
    toy = images()
    engine = chosen(toy, EngineChoice(workers=workers))
    assert words(engine) == (["in 2 processes", "in one"] if workers == 2 else ["in one process"])
    assert all(candidate.is_reference for candidate in engine._candidates)
    engine.close()


@needs_compiler
def test_auto_compares_all_that_it_may():
    toy = images()
    engine = chosen(toy, EngineChoice(workers=2, same_bits=False))
    split = ["in 2 processes", "in one"]
    assert words(engine) == [*split, *(f"{where} with own kernels" for where in split), "stacked in 2 processes"]
    assert [candidate.is_reference for candidate in engine._candidates] == [True, True, False, False, False]
    made = [candidate.start() for candidate in engine._candidates]
    try:
        assert [one.name for one in made] == ["processes", "serial", "processes", "serial", "batched"]
        assert [one._worker.speedups.kernels for one in made if isinstance(one, Processes)] == [False, True, False]
        assert [one.worker.speedups.kernels for one in made if isinstance(one, Serial)] == [False, True]
    finally:
        for one in made:
            one.close()


@needs_compiler
@pytest.mark.parametrize(("named", "count"), [("torch", 0), ("auto", 2)])
def test_kernels_that_are_named_are_the_only_ones_compared(named, count):
    engine = chosen(images(), EngineChoice(workers=2, same_bits=False, kernels=named))
    assert sum("own kernels" in each for each in words(engine)) == count


@needs_compiler
def test_own_kernels_that_are_named_are_those_of_all_candidates():
    engine = chosen(images(), EngineChoice(workers=2, same_bits=False, kernels="own"))
    assert words(engine) == ["in 2 processes", "in one"]
    made = [candidate.start() for candidate in engine._candidates]
    workers = [made[0]._worker, made[1].worker]
    for one in made:
        one.close()
    assert all(worker.speedups.kernels for worker in workers)
    assert all(live.net.kernel_context is not None for worker in workers for live in worker.loaded_nets)


# -- own kernels -------------------------------------------------------------------------------------------------------
@needs_compiler
@pytest.mark.parametrize(
    "name",  # in this world of fedcompass, a rounding decides which pixel is the largest of a pool
    sampled([name for name in NAMES if name not in {*STEEP, "fedcompass"}], "ditto", "fedkd", "fedrep", "scaffold"),
)
def test_every_method_is_close_to_torchs_kernels(name):
    """Close as a run with batch norm can be after a few steps: it divides by the spread of small batches."""
    own, plain = trained(images(name), OWN), trained(images(name), TORCH)
    records = [(own.server, plain.server), *((state, plain.states[k]) for k, state in own.states.items())]
    apart = [furthest(a["model"], b["model"]) for a, b in records if "model" in a]
    assert 0 < max(apart) < 1e-5


@needs_compiler
@pytest.mark.parametrize("name", ["fedavg", "fedsc", "fedco2"])
def test_processes_have_the_bits_of_one(name):
    two = EngineChoice(name="processes", workers=2, kernels="own")
    assert same_bits(trained(images(name), two).server, trained(images(name), OWN).server)


@needs_compiler
@pytest.mark.parametrize("name", ["fedavg", "fedsc", "fedskc"])
def test_recorded_steps_have_the_bits_of_steps(name):
    toy = images(name)
    engine = chosen(toy, OWN)
    assert isinstance(engine, Serial)
    replayer = engine.worker.stepper = Replayer(engine.worker.data, eager=True)
    for _ in range(2):
        toy.federation.step()
    assert replayer.programs > 0
    assert same_bits(toy.federation.server, trained(images(name), OWN).server)


@needs_compiler
def test_the_workers_own_nets_stay_torchs():
    """They count floating-point operations."""
    toy = images()
    engine = chosen(toy, OWN)
    assert isinstance(engine, Serial)
    assert engine.worker.speedups.kernels
    assert not toy.worker.speedups.kernels
    assert engine.worker.loaded_nets[0].net.kernel_context is not None
    assert toy.worker.loaded_nets[0].net.kernel_context is None
    weights = [p for p in engine.worker.loaded_nets[0].net.parameters() if p.dim() == 4]
    assert all(p.is_contiguous() for p in weights)


@pytest.mark.parametrize(
    ("change", "choice", "why"),
    [
        ({}, EngineChoice(name="batched", kernels="own"), "stacks are computed by torch"),
        ({"net": "mlp-128"}, OWN, "no net has a convolution"),
        ({"net": "mlp-128"}, EngineChoice(name="auto", workers=1, kernels="own"), "no net has a convolution"),
        ({"bfloat16": True}, OWN, "precision is bfloat16"),
        ({"device": torch.device("meta")}, OWN, "run on the CPU, and the device is meta"),
    ],
)
def test_what_stands_in_their_way_is_told(change, choice, why):
    change = dict(change)
    toy = images(net=change.pop("net", "lenet5"))
    if change:
        device = change.pop("device", torch.device("cpu"))
        toy.worker = Worker(toy.method, [toy.net], toy.data, toy.worker.local_training, device, **change)
    with pytest.raises(ConfigError, match=f"engine.kernels: own cannot be used: .*{why}"):
        chosen(toy, choice)


def test_no_compiler_is_told(monkeypatch):
    monkeypatch.setattr(operators, "compiler", lambda: None)
    toy = images()
    with pytest.raises(ConfigError, match="there is no C\\+\\+ compiler"):
        chosen(toy, OWN)
    engine = chosen(toy, EngineChoice(workers=1, same_bits=False))
    assert words(engine) == ["in one process", "stacked in one process"]


@pytest.mark.parametrize("missing", [True, False])
def test_an_installation_without_them_is_told(missing, monkeypatch):
    if missing:
        monkeypatch.setattr("fedloom.engine.speedups._fast_folder", lambda: None)
    elif compiler() is None:
        pytest.skip("needs a C++ compiler")
    toy = images()
    if missing:
        with pytest.raises(ConfigError, match="own cannot be used: this installation has none"):
            chosen(toy, OWN)
    else:
        assert chosen(toy, OWN).worker.speedups.kernels
    assert trained(images(), TORCH, count=1).round == 1


@needs_compiler
@pytest.mark.parametrize("faster", ["serial", "processes"])
def test_auto_takes_them_where_it_may_and_they_are_faster(faster, monkeypatch):
    toy = images(rounds=20)
    engine = chosen(toy, EngineChoice(workers=2, same_bits=False))
    for candidate in engine._candidates:
        candidate.rounds, candidate.seconds = 2, [2.0]
    place = "in one with own kernels" if faster == "serial" else "in 2 processes with own kernels"
    (best,) = (candidate for candidate in engine._candidates if candidate.description == place)
    best.seconds = [1e-9]
    try:
        toy.federation.step()
        assert engine.name == faster
        worker = best.engine.worker if faster == "serial" else best.engine._worker
        assert worker.speedups.kernels
        assert f"us a sample {place} (3 rounds)" in engine.reason
        assert all(f"us a sample {each} (" in engine.reason for each in words(engine))
    finally:
        engine.close()


@needs_compiler
def test_a_result_names_them():
    scenario = {"source": "digits", "clients": 5, "partition": "iid"}
    config = {"method": "fedavg", "model": "digits-cnn", "rounds": 1, "scenario": scenario}
    engine = {"name": "serial", "kernels": "own"}
    assert run(parse(config | {"engine": engine})).numbers["engine"] == "serial, own kernels"
    assert run(parse(config | {"engine": "serial"})).numbers["engine"] == "serial"


def test_a_config_may_take_every_step_in_plain_python():
    scenario = {"source": "digits", "clients": 5, "partition": "iid"}
    config = {"method": "fedavg", "model": "mlp", "rounds": 2, "scenario": scenario}
    fast, plain = (run(parse(config | {"engine": {"name": "serial", "fast": fast}})) for fast in (True, False))
    same = ("test_loss", "accuracy", "fingerprint", "flops")
    assert all(fast.numbers[name] == plain.numbers[name] for name in same)


@pytest.mark.parametrize("limit", ["RLIMIT_AS", "RLIMIT_FSIZE"])
@pytest.mark.parametrize("name", ["processes", "auto"])
def test_where_no_memory_can_be_shared_it_is_said_and_rounds_run(limit, name):
    """As under ulimit -v and ulimit -f. What earlier tests left mapped comes on top of the first: without room for its
    stack a worker's thread would never start."""
    kind = getattr(resource, limit)
    before, toy = resource.getrlimit(kind), world(configured("fedsc"), LABELS)
    pages = int(Path("/proc/self/statm").read_text().split()[0]) if limit == "RLIMIT_AS" else 0
    resource.setrlimit(kind, (pages * resource.getpagesize() + (1 << 38), before[1]))
    try:
        found = choose_engine(toy.federation, toy.worker, EngineChoice(name=name, workers=2))
        toy.federation.engine = found.engine
        toy.federation.step()
    finally:
        resource.setrlimit(kind, before)
        found.engine.close()
    assert "no memory can be shared between processes here (ulimit -v or ulimit -f)" in found.warning
    assert same_bits(toy.federation.server, trained(world(configured("fedsc"), LABELS), TORCH, count=1).server)
