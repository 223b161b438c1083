"""Work on another device than the CPU: what jobs bring goes there, and what clients leave comes back.

Without an accelerator, torch's "meta" device stands in: it computes no values, but refuses to mix devices as CUDA does.
"""

import pytest
import torch

import fedloom as fl
from fedloom.core.errors import ConfigError, RunFolderError
from fedloom.core.records import map_tensors
from fedloom.core.streams import Streams
from fedloom.data import Dataset
from fedloom.engine.choose import EngineChoice
from fedloom.engine.client import Worker
from fedloom.engine.device import check_precision, find_device, step_operations
from fedloom.engine.stacked import Batched
from fedloom.methods import METHODS
from fedloom.methods.fedavg import FedAvg
from fedloom.nets.blueprint import Blueprint
from fedloom.runs.config.run_config import parse
from fedloom.runs.run import run
from fedloom.runs.storage.data_record import on_kept_device
from fedloom.runs.storage.run_folder import RunFolder
from support import FEDERATED, ROW_METHODS, TinyBN, configured, furthest, sampled, world

META = torch.device("meta")
LABELS = [[0, 1, 2, 0, 1, 1, 0], [1, 1, 2, 3, 3, 0, 1], [2, 3, 2, 1, 0, 2, 2, 2, 1], [0, 0]]
NAMES = [*(name for name in ROW_METHODS if name in FEDERATED), "fedprox+dw", "fedsc+dw"]
KEEP_ROWS = ("fedplvm", "pfedfda")  # the rows that count depend on values, which "meta" has not
SPECIAL = ("ditto", "fedkd", "fedproto", "scaffold")  # states, several nets, no weights sent, updates of state


@pytest.fixture
def coming_back(monkeypatch):
    """Tensors without values arrive on the CPU as zeros."""
    to, tolist = torch.Tensor.to, torch.Tensor.tolist

    def back(self, *args, **kwargs):
        target = torch.device(args[0]) if args and isinstance(args[0], str | torch.device) else self.device
        if self.device == META and target.type == "cpu":
            return torch.zeros(self.shape, dtype=self.dtype)
        return to(self, *args, **kwargs)

    def zeros_like(self):
        return tolist(torch.zeros(self.shape) if self.device == META else self)

    monkeypatch.setattr(torch.Tensor, "to", back)
    monkeypatch.setattr(torch.Tensor, "tolist", zeros_like)
    monkeypatch.setattr(torch.Tensor, "__float__", lambda self: 0.0 if self.device == META else self.item())


def elsewhere(name, clients=(0, 1, 2, 3), **options):
    """Jobs of a round in which everything is exchanged, and a worker on the other device."""
    toy = world(configured(name, **options), LABELS, net=TinyBN, epochs=2, batch_size=4)
    toy.federation.step()
    jobs = [toy.federation.job(client, 2) for client in clients]
    return jobs, Worker(toy.method, [toy.net], toy.data, toy.worker.local_training, META)


def on_the_cpu(done):
    devices = set()
    for record in (done.upload, done.state):
        map_tensors(record, lambda tensor: devices.add(tensor.device.type) or tensor)
    return devices <= {"cpu"}


@pytest.mark.parametrize("name", sampled(NAMES, *SPECIAL))
def test_clients_one_by_one(name, coming_back):
    jobs, worker = elsewhere(name, clients=(2, 3))
    assert all(on_the_cpu(worker.run(job)) for job in jobs)


@pytest.mark.parametrize(
    "name",
    sampled([name for name in NAMES if METHODS.get(name).spec.unstackable is None and name not in KEEP_ROWS], *SPECIAL),
)
def test_clients_in_stacks(name, coming_back):
    jobs, worker = elsewhere(name)
    assert all(on_the_cpu(done) for done in Batched(worker, 3).run(jobs))


@pytest.mark.parametrize("name", ["fedskc", "fedsc"])
def test_statistics_before_an_epoch(name, coming_back):
    jobs, worker = elsewhere(name, scale="dataset")
    assert on_the_cpu(worker.run(jobs[0]))
    assert all(on_the_cpu(done) for done in Batched(worker, 3).run(jobs))


class Full(FedAvg):
    """The first steps do not fit into memory."""

    failures = 1

    def loss(self, net, batch, consts):
        if self.failures:
            self.failures -= 1
            raise torch.OutOfMemoryError("CUDA out of memory")
        return super().loss(net, batch, consts)


def test_stacks_that_do_not_fit_are_halved_and_it_is_said():
    full, toy = world(Full(), LABELS, batch_size=4), world(configured("fedavg"), LABELS, batch_size=4)
    full.method.failures = 2
    for one in (full, toy):
        one.federation.engine = Batched(one.worker, 32)
    report, _ = full.federation.step(), toy.federation.step()
    assert [f.message for f in report.diagnostics] == [
        "out of memory with 4 clients in a stack; it continues with 2",
        "out of memory with 2 clients in a stack; it continues with 1",
    ]
    assert furthest(full.federation.server["model"], toy.federation.server["model"]) < 1e-6
    assert full.federation.step().diagnostics == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there_is_one_line():
    config = parse({"scenario": {"source": "digits", "alpha": 1.0}, "engine": {"name": "batched", "device": "cuda"}})
    with pytest.raises(ConfigError, match=r"engine.device = 'cuda': torch .* finds 0 CUDA devices here.*; use cpu$"):
        run(config)


@pytest.fixture
def two_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.delenv("FEDLOOM_DEVICE", raising=False)


def samples_of(width):
    return Dataset(
        x=torch.zeros(2, 1, width, width),
        y=torch.tensor([0, 1]),
        classes=tuple("0123456789"),
        mean=torch.zeros(1),
        std=torch.ones(1),
    )


def device_of(asked="auto", engine="auto", net="lenet5", batch_size=32):
    data = samples_of(28)
    nets = [Blueprint(net, (1, 28, 28), 10).build(Streams(0))]
    return str(find_device(asked, engine, nets, data, batch_size))


def test_processes_do_not_share_a_device(two_gpus):
    with pytest.raises(ConfigError, match="engine = processes on 'cuda:1': processes do not help"):
        device_of("cuda:1", "processes")
    with pytest.raises(ConfigError, match=r"'cuda:2'.*use cpu, or cuda:0 to cuda:1"):
        device_of("cuda:2")
    assert device_of("cuda:1") == "cuda:1"


def test_auto_takes_the_gpu_where_a_step_is_worth_it(two_gpus):
    assert device_of(net="lenet5") == "cuda:0"
    assert device_of(net="logistic") == "cpu"
    assert device_of(net="lenet5", batch_size=1) == "cpu"
    assert device_of(net="lenet5", engine="threads") == "cpu"


def test_the_variable_decides_where_a_config_does_not(two_gpus, monkeypatch):
    monkeypatch.setenv("FEDLOOM_DEVICE", "cpu")
    assert (device_of(), device_of("cuda")) == ("cpu", "cuda")
    monkeypatch.setenv("FEDLOOM_DEVICE", "cuda:1")
    assert (device_of(net="logistic"), device_of("cpu")) == ("cuda:1", "cpu")
    monkeypatch.setenv("FEDLOOM_DEVICE", "gpu")
    with pytest.raises(ConfigError, match=r"\$FEDLOOM_DEVICE = 'gpu': need auto, cpu, cuda or cuda:1"):
        device_of()
    monkeypatch.setenv("FEDLOOM_DEVICE", "cuda:7")
    with pytest.raises(ConfigError, match=r"\$FEDLOOM_DEVICE = 'cuda:7': torch .* finds 2 CUDA devices here"):
        device_of()


def test_a_step_is_counted_and_leaves_the_net_as_it_was():
    data = samples_of(8)
    net = Blueprint("logistic", (1, 8, 8), 10).build(Streams(0))
    assert step_operations(net, data, batch_size=5) == 3 * 5 * 2 * 64 * 10
    assert net.training


def test_tf32_needs_a_gpu():
    check_precision("tf32", torch.device("cuda"))
    with pytest.raises(ConfigError, match="precision = tf32: a format of NVIDIA GPUs, and this run trains on cpu"):
        fl.run(
            "fedavg", scenario=fl.scenario("digits", clients=4), rounds=1, precision="tf32", engine={"device": "cpu"}
        )


def test_a_resumed_run_stays_on_its_kind_of_device(tmp_path, monkeypatch):
    folder = RunFolder(tmp_path)
    config = parse({"scenario": {"source": "digits", "alpha": 1.0}})
    assert on_kept_device(config, folder) is config
    folder.write_json("env.json", {"device": "cuda (NVIDIA H200)"})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RunFolderError, match=r"began on cuda \(NVIDIA H200\), and torch finds no GPU here"):
        on_kept_device(config, folder)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert on_kept_device(config, folder).engine.device == "cuda"
    on_cpu = config.model_copy(update={"engine": EngineChoice(device="cpu")})
    with pytest.raises(RunFolderError, match=r"began on cuda, .* continue with engine.device=cuda, or start again"):
        on_kept_device(on_cpu, folder)
    folder.write_json("env.json", {"device": "cpu"})
    assert on_kept_device(config, folder).engine.device == "cpu"
