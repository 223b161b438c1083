"""Which steps are recorded and replayed, and what is said of those that cannot be. Their bits: `test_engines.py`."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedloom.engine.batch_sampler import EpochBatches
from fedloom.engine.client import Worker
from fedloom.engine.client_phases import NetMemory
from fedloom.engine.fast import replayer as module
from fedloom.engine.fast.kernels.compiling import compiler
from fedloom.engine.fast.replayer import Replayer
from fedloom.engine.fast.torch_library import TorchLibrary
from fedloom.engine.jobs import Draws
from fedloom.engine.optimizer import Optimizer
from fedloom.engine.speedups import Speedups
from fedloom.engine.stacked import Batched
from fedloom.engine.steps import EpochSteps
from fedloom.methods.contract.phases import Train, cross_entropy
from fedloom.methods.fedavg import FedAvg
from support import PLAIN_SGD, Tiny, TinyBN, after, alike, configured, same_bits, same_on, world

LABELS = [[0, 1, 2, 0, 1, 1, 0], [1, 1, 2, 3, 3, 0, 1], [0], [2, 3, 2, 1, 0, 2, 2, 2, 1], [0, 0]]
# For every method: a piece of two steps, a smaller batch, a batch of one; each comes twice.
FEW = [[0, 1, 2, 0, 1, 1, 0, 2, 3, 1, 0], [1, 1, 2, 3, 3, 0, 1, 0, 2, 2, 1], [0]]
pytestmark = pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")


@pytest.mark.parametrize("layout", ["strided samples", "strided labels", "float64"])
def test_samples_are_read_in_every_memory_layout(layout):
    plain, toy = (world(configured("fedavg"), FEW) for _ in range(2))
    data = toy.data
    odd = {
        "strided samples": {"x": data.x.movedim(0, -1).contiguous().movedim(-1, 0)},
        "strided labels": {"y": torch.stack([data.y, data.y + 1], 1)[:, 0]},
        "float64": {"x": data.x.double()},
    }[layout]
    toy.worker.stepper = Replayer(replace(data, **odd), eager=True)
    assert alike(after(plain, 2, "plain"), after(toy, 2, "replayed"), "replayed")
    assert toy.worker.stepper.programs > 0


class NoiseOfNumPy(Tiny):
    """A recording would keep the number that it was made with."""

    def features(self, x):
        return super().features(x) * (1 + float(np.random.random()))  # noqa: NPY002


class Attentive(Tiny):
    """Three tokens of two features attend to each other; with dropout, weights of attention are drawn."""

    dropout = 0.0

    def features(self, x):
        tokens = super().features(x).reshape(len(x), 1, 3, 2)
        mixed = torch.nn.functional.scaled_dot_product_attention(tokens, tokens, tokens, dropout_p=self.dropout)
        return mixed.flatten(1)


class Dropping(Attentive):
    dropout = 0.3


@pytest.mark.parametrize("net", [Attentive, Dropping])
def test_attention_is_replayed_with_and_without_dropout(net):
    plain, toy = (world(configured("fedavg"), FEW, net=net) for _ in range(2))
    toy.worker.stepper = Replayer(toy.data, eager=True)
    assert alike(after(plain, 3, "plain"), after(toy, 3, "replayed"), "replayed")
    assert toy.worker.stepper.programs > 0


def reason_of(toy):
    """The only reason why steps were taken one by one."""
    diagnostics = [diagnostic for report in toy.reports for diagnostic in report.diagnostics]
    (message,) = [diagnostic.message for diagnostic in diagnostics if diagnostic.code == "engine.plain_steps"]
    assert message.startswith("steps are taken one by one, slower and with the same numbers: ")
    assert "\n" not in message
    return message


class Decides(FedAvg):
    """A loss that looks at a value: a recording would keep the first decision."""

    def loss(self, net, batch, consts):
        loss = super().loss(net, batch, consts)
        return loss if float(loss.detach()) > 1.3 else 2 * loss


class Masks(FedAvg):
    """A loss whose shapes depend on labels."""

    def loss(self, net, batch, consts):
        return cross_entropy(net(batch.x), batch.y)[batch.y > 0].sum()


class Counts(FedAvg):
    """A loss that keeps a tensor of its own and changes it."""

    calls = torch.zeros(())

    def loss(self, net, batch, consts):
        self.calls += 1
        return super().loss(net, batch, consts) * (1 + self.calls / 1000)


@pytest.mark.parametrize(
    ("method", "net", "reason"),
    [
        (Decides(), Tiny, "depends on values"),
        (Masks(), Tiny, "depends on values"),
        (Counts(), Tiny, "keeps a tensor"),
        (FedAvg(), NoiseOfNumPy, "random numbers of Python or NumPy"),
    ],
)
def test_what_cannot_be_replayed_is_said_once(method, net, reason):
    plain, toy = (world(method, LABELS, net=net) for _ in range(2))
    Counts.calls.zero_()
    after(toy, 3, "replayed")
    Counts.calls.zero_()
    assert alike(after(plain, 3, "plain"), toy, "replayed")
    assert reason in reason_of(toy)
    assert toy.worker.stepper.programs == 0


def test_one_tensor_in_two_places_is_not_taken_for_two_tensors():
    """In round 1 all clients of copa get the same heads, later each its own."""
    same_on("replayed", configured("copa"), FEW, 3, net=TinyBN)


@pytest.mark.parametrize(("name", "ramp"), [("fedsc", "rpcl_ramp"), ("fedskc", "lcl_ramp")])
def test_a_weight_that_grows_needs_no_recording_of_its_own_in_every_round(name, ramp):
    made = []
    for length in (0, 100):
        toy = world(configured(name, **{ramp: length}), LABELS, batch_size=4, rounds=9)
        toy.worker.stepper = Replayer(toy.data, eager=True)
        toy.federation.round = 5  # past the rounds in which single steps are measured
        for _ in range(4):
            toy.federation.step()
        made.append(toy.worker.stepper.programs)
    assert made[0] == made[1] > 0


# -- which steps are recorded ------------------------------------------------------------------------------------------
def test_a_worker_that_must_not_replay_does_not():
    toy = world(configured("fedavg"), LABELS, batch_size=4)
    plain = Speedups(steps=False)
    worker = Worker(toy.method, [toy.net], toy.data, toy.worker.local_training, speedups=plain)
    for slow in (worker, worker.copy(), Batched(worker, 2).worker):
        assert not isinstance(slow.stepper, Replayer)
        assert slow.stepper.notes() == ()
    for fast in (toy.worker, toy.worker.copy(), worker.copy(Speedups())):
        assert isinstance(fast.stepper, Replayer)
    assert same_bits(worker.run(toy.job(0)).upload, toy.worker.run(toy.job(0)).upload)


class Collected:
    """Results that keep the objectives of steps in Python, and tables of the others."""

    def __init__(self):
        self.objectives, self.tables = [], []

    def wants(self, epoch):
        return True

    def add(self, epoch, objective, batch):
        self.objectives.append(objective)

    def add_replayed(self, epoch, first, batches, table):
        self.tables.append(table)


def taken(toy, stepper, rows, *, phase=None, consts=None, remaining_ratio=1.0):
    """The results of one epoch over the first samples, in batches of four."""
    client, live = toy.worker.begin(toy.job(0)), toy.worker.loaded_nets[0]
    parameters, results = dict(live.parameters), Collected()
    memory = NetMemory(live, client.start.tree, toy.task.streams.resumable("dropout"))
    optimizer = Optimizer(PLAIN_SGD, list(parameters.values()))
    consts = client.consts if consts is None else consts
    steps = EpochSteps(live, phase or client.phases[0], consts, parameters, optimizer, remaining_ratio)
    epoch = EpochBatches(toy.worker.sampler, Draws(np.random.default_rng(0), None), torch.arange(rows), 0)
    for replay in stepper(steps, memory, [epoch], results):
        replay.run()
    return results


@pytest.fixture
def toy():
    return world(configured("fedprox"), [[0, 1, 2, 3] * 20])


def test_the_first_step_of_a_size_is_recorded_and_the_others_replayed(toy):
    replayer = Replayer(toy.data, eager=True)
    for rows, plain, replayed in [(16, 1, 3), (16, 0, 4), (18, 1, 4), (18, 0, 5), (2, 0, 1)]:
        before = replayer.plain_steps, replayer.replayed_steps
        taken(toy, replayer, rows)
        assert (replayer.plain_steps - before[0], replayer.replayed_steps - before[1]) == (plain, replayed)
    assert replayer.programs == 2


def test_steps_are_recorded_where_the_rest_of_the_run_pays_for_it(toy):
    """A step saves about 0.25 ms, and recording one takes 8 ms: 32 steps in this and in later rounds."""
    replayer = Replayer(toy.data)
    assert module.replay_library().wait()
    taken(toy, replayer, 16, remaining_ratio=1.0)
    assert replayer.programs == 0
    taken(toy, replayer, 16, remaining_ratio=100.0)
    assert replayer.programs == 1


def test_kinds_of_steps_that_are_no_longer_met_are_forgotten(toy, monkeypatch):
    monkeypatch.setattr(module, "MAX_COUNTED", 3)
    replayer = Replayer(toy.data)
    for rows in (1, 2, 3, 4, 5):
        taken(toy, replayer, rows, phase=Train(FedAvg().loss), remaining_ratio=0.0)
    assert 0 < len(replayer._kinds) <= 3


def test_a_phase_with_many_layouts_of_constants_is_not_expected_to_come_again(toy, monkeypatch):
    """32 steps in this round pay for a recording; steps of later rounds count as long as layouts are few."""
    monkeypatch.setattr(module, "_FEW_LAYOUTS", 4)
    replayer = Replayer(toy.data)
    assert module.replay_library().wait()
    phase = Train(FedAvg().loss)
    programs = []
    for size in range(1, 8):
        taken(toy, replayer, 4, phase=phase, consts={"table": torch.zeros(size)}, remaining_ratio=100.0)
        programs.append(replayer.programs)
    assert programs == [1, 2, 3, 4, 4, 4, 4]


def test_programs_that_were_not_used_for_longest_make_room_first(toy, monkeypatch):
    """A phase that comes in every round stays, while numbers that change every round bring others."""
    monkeypatch.setattr(module, "MAX_PROGRAMS", 4)
    replayer, phase = Replayer(toy.data, eager=True), Train(FedAvg().loss)
    for size in range(1, 9):
        taken(toy, replayer, 4, phase=phase, consts={"table": torch.zeros(size)})
        before = replayer.plain_steps
        taken(toy, replayer, 4, phase=phase)
        assert replayer.plain_steps - before == (size == 1)
        assert replayer.programs <= 4


def test_steps_are_plain_until_the_library_is_there(toy, monkeypatch, tmp_path):
    library = TorchLibrary(tmp_path / "never.cpp")
    monkeypatch.setattr(library, "start", lambda: None)
    monkeypatch.setattr(module, "replay_library", lambda: library)
    replayer = Replayer(toy.data)
    assert len(taken(toy, replayer, 16, remaining_ratio=100.0).objectives) == 4
    assert replayer.programs == 0


def test_an_error_in_cpp_is_an_error_of_the_client(toy, monkeypatch):
    """Indices outside the data would be read from elsewhere; torch checks what it is called with."""
    replayer = Replayer(toy.data, eager=True)
    taken(toy, replayer, 16)
    monkeypatch.setattr(NetMemory, "tensors", property(lambda self: [torch.zeros(1)] * 4))
    with pytest.raises(RuntimeError, match="must be a matrix"):
        taken(toy, replayer, 16)
