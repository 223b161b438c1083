"""Small worlds for tests: toy nets, hand-made data, one method, one federation. Nothing here is checked itself."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from fedloom.core.records import Record, to_bytes
from fedloom.core.streams import Streams
from fedloom.core.tables import ClassTable
from fedloom.core.trees import Tree
from fedloom.data.augment import Augmentation
from fedloom.data.dataset import Dataset
from fedloom.data.scenario import Scenario
from fedloom.data.views import Views
from fedloom.engine import Federation, LocalTraining, RoundReport, Serial, Worker
from fedloom.engine.client_phases import Stepper
from fedloom.engine.clock import Devices
from fedloom.engine.jobs import Job, JobResult
from fedloom.engine.processes import Processes
from fedloom.engine.stacked import Batched
from fedloom.engine.threads import Threads
from fedloom.methods import METHODS
from fedloom.methods.contract.contexts import ServerContext, Task
from fedloom.methods.contract.method import PRESETS, Method
from fedloom.methods.contract.phases import OptimizerSpec
from fedloom.nets import MODELS
from fedloom.nets.blueprint import prepare_net
from fedloom.nets.net import Net
from fedloom.runs.callbacks import Callback

WIDTH, CLASSES = 5, 4
# These multiply differences, by a scale of 30 or 50, a temperature of 0.05, one over a small root, or the sign of a
# small number: in single precision roundings grow past the bounds of tests that compare two ways to compute. Double
# precision covers them.
STEEP = {
    "fedadagrad", "feddbe", "feddecorr", "feddf", "fedem", "fedl2g", "fedmd", "fednh", "fedorgp", "fedpcl", "fedplvm",
    "fedrcl", "fedtgp", "fpl", "pfedfda", "pfedme", "protonorm",
}  # fmt: skip
# Rows of numbers cannot be augmented: methods of two views have tests of their own.
ROW_METHODS = [name for name, kind in METHODS if kind.spec.views == 1]
FEDERATED = [name for name, kind in METHODS if not kind.spec.pooled]  # those whose clients keep their data
IN_ROUNDS = [name for name in FEDERATED if METHODS.get(name).spec.arrivals is None]  # others need virtual time
SAMPLE = ("fedavg", "fedco2", "feddw", "fedsc", "fedskc", "fedssa")  # methods that each sample has
PLAIN_SGD = OptimizerSpec(name="sgd", lr=0.1, momentum=0.0, weight_decay=0.0)


class Tiny(Net):
    """5 inputs -> 6 ReLU features -> C logits."""

    def __init__(self, num_classes: int = CLASSES) -> None:
        super().__init__()
        self.fc = nn.Linear(WIDTH, 6)
        self.head = nn.Linear(6, num_classes)

    def features(self, x: Tensor) -> Tensor:
        return self.fc(x).relu()


class TinyBN(Net):
    """As `Tiny`, with batch norm in front of the ReLU."""

    def __init__(self, num_classes: int = CLASSES) -> None:
        super().__init__()
        self.fc = nn.Linear(WIDTH, 6)
        self.norm = nn.BatchNorm1d(6)
        self.head = nn.Linear(6, num_classes)

    def features(self, x: Tensor) -> Tensor:
        return self.norm(self.fc(x)).relu()


class TinyInstance(Net):
    """As `Tiny`, with an instance norm whose running statistics are buffers."""

    def __init__(self, num_classes: int = CLASSES) -> None:
        super().__init__()
        self.fc = nn.Linear(WIDTH, 6)
        self.norm = nn.InstanceNorm1d(1, affine=True, track_running_stats=True)
        self.head = nn.Linear(6, num_classes)

    def features(self, x: Tensor) -> Tensor:
        z: Tensor = self.norm(self.fc(x).unsqueeze(1))
        return z.squeeze(1).relu()


class TinyDropout(Net):
    """As `Tiny`, with dropout behind the ReLU."""

    def __init__(self, num_classes: int = CLASSES) -> None:
        super().__init__()
        self.fc = nn.Linear(WIDTH, 6)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(6, num_classes)

    def features(self, x: Tensor) -> Tensor:
        return self.drop(self.fc(x).relu())


class TinyAdapter(Net):
    """As `TinyBN`, the first layer frozen, with a low-rank adapter beside it."""

    def __init__(self, num_classes: int = CLASSES) -> None:
        super().__init__()
        self.fc = nn.Linear(WIDTH, 6).requires_grad_(False)
        self.down = nn.Linear(WIDTH, 2, bias=False)
        self.up = nn.Linear(2, 6, bias=False)
        self.norm = nn.BatchNorm1d(6)
        self.head = nn.Linear(6, num_classes)

    def features(self, x: Tensor) -> Tensor:
        return self.norm(self.fc(x) + self.up(self.down(x))).relu()


class Through(Net):
    """Features are the inputs; the head is linear, without bias, and starts from `weight` [C, d]."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.head = nn.Linear(weight.shape[1], weight.shape[0], bias=False, dtype=weight.dtype)
        with torch.no_grad():
            self.head.weight.copy_(weight)

    def features(self, x: Tensor) -> Tensor:
        return x


@dataclass
class World:
    """The pieces of a federation over hand-made clients."""

    method: Method
    net: Net
    data: Dataset
    scenario: Scenario
    task: Task
    worker: Worker
    federation: Federation
    reports: Sequence[RoundReport] = ()

    def job(self, client: int, *, round_: int = 1, state: Record | None = None) -> Job:
        """One client's work against the server's present state."""
        federation = self.federation
        ctx = federation.client_context(client, round_)
        context = ServerContext(self.task, round_, public=self.scenario.public, client=client)
        from_server = self.method.down(federation.server, client, context)
        own = federation.state_of(ctx) if state is None else state
        return Job(ctx, from_server, own, self.scenario.train.tensor(client))

    def samples(self, client: int) -> tuple[Tensor, Tensor]:
        """x and y of one client, in stored order."""
        indices = self.scenario.train.tensor(client)
        return self.data.gather(indices), self.data.y[indices]


class Precision(NamedTuple):
    """A dtype, and how near its results must come to golden values."""

    dtype: torch.dtype
    atol: float

    def tensor(self, values: Any) -> Tensor:
        return torch.tensor(values, dtype=self.dtype)

    def matches(self, ours: Tensor, golden: Any) -> bool:
        assert ours.dtype == self.dtype
        expected = self.tensor(golden)
        return ours.shape == expected.shape and torch.allclose(ours, expected, rtol=0, atol=self.atol)


# Golden files have 6 decimals.
DOUBLE, SINGLE = Precision(torch.float64, 2e-6), Precision(torch.float32, 1e-4)


def configured(name: str, preset: str = "sound", **options: Any) -> Method:
    """A registered method."""
    return METHODS.get(name).configured(preset, options)


class Uniform(METHODS.get("fedavg")):  # type: ignore[misc]
    """FedAvg with the plain mean, whatever the number of samples."""

    def aggregate(self, server: Record, uploads: Any, ctx: ServerContext) -> Record:
        return {"model": self.mean(uploads, weights="uniform")}


class Stop(Callback):
    """Ends a run after a round, as a crash would."""

    def __init__(self, after: int) -> None:
        self.after = after

    def on_round(self, config: Any, round_: int, rows: Any) -> None:
        if round_ == self.after:
            raise ConnectionError("power cut")


class Notes(Callback):
    """Collects what a run notes."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def on_note(self, config: Any, note: str) -> None:
        self.texts.append(note)


def sampled(names: Iterable[str], *special: str) -> list[Any]:
    """Parameters of a test that runs each method: `make test` runs `SAMPLE`, the methods with a wrapper and `special`,
    the marker `matrix` the others."""
    names = list(names)
    assert {*special} <= {*names}
    in_sample = {*SAMPLE, *special}
    return [pytest.param(n, marks=() if n in in_sample or "+" in n else pytest.mark.matrix) for n in names]


def sampled_cases(cases: Sequence[tuple[str, str]], *special: str) -> list[Any]:
    """Parameters of a test of pairs that begin with a method: as `sampled` has them, by the method."""
    in_sample = {*SAMPLE, *special}
    marks = [() if name in in_sample or "+" in name else pytest.mark.matrix for name, _ in cases]
    return [pytest.param(*case, marks=mark) for case, mark in zip(cases, marks, strict=True)]


def each_preset(names: Sequence[str], presets: Sequence[str] = PRESETS) -> list[tuple[str, str]]:
    """Name and preset of each, without presets that say what an earlier one of the method says."""
    cases: list[tuple[str, str]] = []
    for name in names:
        said: list[Any] = []
        for preset in presets:
            method = configured(name, preset)
            said.append((method.options, method.settings.get(preset)))
            cases += [(name, preset)] if said.index(said[-1]) == len(said) - 1 else []
    return cases


def handmade(name: str, preset: str = "sound", **options: Any) -> Method:
    """A registered method, for nets made by hand: their clients cannot draw first weights of their own. FedDF's server
    makes few steps."""
    same = {
        "fedco2": {"offline_init": "same"},
        "fml": {"start": "common"},
        "fedmd": {"start": "common"},
        "feddf": {"steps": 3},
    }.get(name, {})
    return configured(name, preset, **{**same, **options})


def dataset(labels: Sequence[int], *, shape: tuple[int, ...] = (WIDTH,), classes: int = CLASSES) -> Dataset:
    """Random inputs (always the same for the same labels), shifted by class so that there is something to learn."""
    y = torch.tensor(list(labels), dtype=torch.int64)
    rng = np.random.default_rng(7)
    x = torch.from_numpy(rng.normal(size=(len(y), *shape)).astype(np.float32))
    centres = torch.from_numpy(rng.normal(size=(classes, *shape)).astype(np.float32))
    return Dataset(x + centres[y], y, tuple(str(c) for c in range(classes)))


def world(
    method: Method,
    clients: Sequence[Sequence[int]],
    *,
    net: Callable[[], Net] | str = Tiny,
    shape: tuple[int, ...] = (WIDTH,),
    classes: int = CLASSES,
    epochs: int = 1,
    batch_size: int = 4,
    optimizer: OptimizerSpec = PLAIN_SGD,
    participation: float = 1.0,
    rounds: int = 5,
    seed: int = 3,
    engine: Callable[[Worker], Any] = Serial,
    augment: Augmentation | None = None,
    public: Dataset | None = None,
    bfloat16: bool = False,
    devices: Devices | None = None,
) -> World:
    """A federation; `clients` holds one list of labels per client. public: the server's data, if None some samples for
    methods that need any."""
    streams = Streams(seed)
    data = dataset([label for labels in clients for label in labels], shape=shape, classes=classes)
    starts = np.cumsum([0, *(len(labels) for labels in clients)])
    views = Views.from_lists([np.arange(a, b) for a, b in itertools.pairwise(starts)])
    if public is None and method.spec.public:
        public = dataset([0, 1, 2, 3, 0, 1], shape=shape, classes=classes)
    scenario = Scenario("toy", data, data, views, Views.from_lists([np.arange(0)] * len(clients)), views, public=public)

    def registered(name: str) -> Net:
        return MODELS.get(name)(input_shape=shape, num_classes=classes)

    spec = method.spec
    with streams.isolated("init"):
        made = registered(net) if isinstance(net, str) else net()
        made = prepare_net(made, head_bias=spec.head_bias, nets=spec.nets, extra=method.extra, build_model=registered)
    task = Task.of(
        made,
        clients=len(clients),
        num_classes=classes,
        rounds=rounds,
        local_epochs=epochs,
        streams=streams,
        optimizer=optimizer,
        batch_size=batch_size,
    )
    local_training = LocalTraining(batch_size, optimizer, augment or Augmentation())
    worker = Worker(method, [made], data, local_training, bfloat16=bfloat16)
    facts = {"participation": participation, "nets": [made.functional], "devices": devices}
    federation = Federation(method, engine(worker), [task], scenario, **facts)
    return World(method, made, data, scenario, task, worker, federation)


def mixed(
    method: Method,
    nets: Sequence[Net],
    labels: Sequence[Sequence[int]],
    *,
    shape: tuple[int, ...] = (WIDTH,),
    participation: float = 1.0,
    augment: Augmentation | None = None,
) -> Federation:
    """A federation over several architectures, put together as a run does it; its engine is a `Recording`."""
    data = dataset([label for part in labels for label in part], shape=shape)
    starts = np.cumsum([0, *(len(part) for part in labels)])
    views = Views.from_lists([np.arange(a, b) for a, b in itertools.pairwise(starts)])
    public = dataset([0, 1, 2, 3, 0, 1], shape=shape) if method.spec.public else None
    nobody = Views.from_lists([np.arange(0)] * len(labels))
    scenario = Scenario("toy", data, data, views, nobody, views, public=public)
    facts = {"clients": len(labels), "num_classes": CLASSES, "rounds": 5, "local_epochs": 1, "streams": Streams(3)}
    tasks = [Task.of(net, **facts, group=group) for group, net in enumerate(nets)]
    worker = Worker(method, nets, data, LocalTraining(4, PLAIN_SGD, augment or Augmentation()))
    frozen = [net.functional for net in nets]
    return Federation(method, Recording(worker), tasks, scenario, participation=participation, nets=frozen)


ENGINES = ("serial", "processes", "stacked")
EVERY_ENGINE = (*ENGINES, "threads", "replayed")


def after(toy: World, rounds: int, engine: str = "serial") -> World:
    """The federation after some rounds on one of `EVERY_ENGINE`, with their `reports`.

    "plain" is the serial engine without speed-ups; "replayed" and "threads" record every step when it first occurs.
    """
    put_on(toy, engine)
    try:
        toy.reports = [toy.federation.step() for _ in range(rounds)]
    finally:
        toy.federation.engine.close()
    return toy


def put_on(toy: World, engine: str) -> Federation:
    """Give the federation one of the engines that `after` knows; "given" leaves the one that it has."""
    federation, worker = toy.federation, toy.worker
    if engine == "plain":
        worker.stepper = Stepper()
    if engine in ("replayed", "threads"):
        from fedloom.engine.fast import Replayer, replay_library  # support also serves installations without it

        if not replay_library().wait():
            pytest.skip("needs a C++ compiler")
        if not getattr(worker.stepper, "eager", False):
            worker.stepper = Replayer(toy.data, eager=True)
    if engine == "processes":
        federation.engine = Processes(worker, federation.tasks, workers=2)
    if engine == "stacked":
        federation.engine = Batched(worker, 32)
    if engine == "threads":
        federation.engine = Threads(worker, 2)
    if engine == "backwards":
        federation.engine = Backwards(worker)
    return federation


def alike(one: World, other: World, engine: str) -> bool:
    """Whether the federation `other` has the bits of `one`, or, stacked, its numbers within 1e-5."""
    pairs = [(one.federation.server, other.federation.server)]
    if one.federation.states.keys() != other.federation.states.keys():
        return False
    pairs += [(state, other.federation.states[client]) for client, state in one.federation.states.items()]
    same = same_bits if engine != "stacked" else (lambda a, b: near(a, b, 1e-5))
    facts = [[_facts(report, exact=engine != "stacked") for report in toy.reports] for toy in (one, other)]
    terms = [[dict(report.terms) for report in toy.reports] for toy in (one, other)]
    are_near = all(near(a, b, 1e-5) for a, b in zip(*terms, strict=True))
    return facts[0] == facts[1] and are_near and all(same(a, b) for a, b in pairs)


def _facts(report: RoundReport, *, exact: bool) -> tuple[Any, ...]:
    """Counts and diagnostics of a report, apart from those of engines; terms to the bit if `exact`."""
    diagnostics = [note if exact else note.code for note in report.diagnostics if not note.code.startswith("engine.")]
    terms = report.terms if exact else report.terms.keys()
    return report.steps, report.samples, report.bytes_up, report.bytes_down, diagnostics, terms


def same_on(engine: str, method: Method, labels: Sequence[Sequence[int]], rounds: int = 2, **settings: Any) -> World:
    """The federation after some rounds on an engine, once it is `alike` to one that takes plain steps one by one."""
    plain, other = (world(method, labels, **settings) for _ in range(2))
    assert alike(after(plain, rounds, "plain"), after(other, rounds, engine), engine)
    if engine in ("replayed", "threads"):
        assert other.worker.stepper.programs > 0 or not any(report.steps for report in other.reports)
    return other


class Called(TorchDispatchMode):
    """Notes the names of the operators of torch that run in its block."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


class Backwards(Serial):
    """An engine that runs all jobs last to first and hands the results back in that order."""

    name = "backwards"

    def run(self, jobs: Iterable[Job]) -> Iterator[JobResult]:
        return iter([self.worker.run(job) for job in reversed(list(jobs))])


class Recording(Serial):
    """The serial engine, in the order of clients; keeps every job and result in `jobs` and `done`."""

    def __init__(self, worker: Worker) -> None:
        super().__init__(worker)
        self.jobs: list[Job] = []
        self.done: list[JobResult] = []

    def run(self, jobs: Iterable[Job]) -> Iterator[JobResult]:
        for job in sorted(jobs, key=lambda job: job.ctx.client):
            self.jobs.append(job)
            self.done.append(self.worker.run(job))
            yield self.done[-1]


def same_bits(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Whether two records are equal byte for byte."""
    return to_bytes(dict(a)) == to_bytes(dict(b))


def same_tree(a: Tree, b: Tree) -> bool:
    """Whether two trees have the same names in the same order, and the same bits."""
    return list(a) == list(b) and all(a[n].dtype == b[n].dtype and torch.equal(a[n], b[n]) for n in a)


def absent_clients_keep_their_models(toy: World, rounds: int) -> bool:
    """Whether the "model" in the state of every client stays to the bit in rounds in which it does not take part."""
    kept, models = True, dict[int, Any]()
    for _ in range(rounds):
        report = toy.federation.step()
        states = {client: state["model"] for client, state in toy.federation.states.items()}
        absent = models.keys() - set(report.participants)
        kept = kept and all(same_tree(models[client], states[client]) for client in absent)
        models = states
    return kept


def furthest(a: Tree, b: Tree) -> float:
    """Largest absolute difference over all entries."""
    assert a.keys() == b.keys()
    return max(float((a[n].double() - b[n].double()).abs().max()) for n in a)


def leaves(record):
    """All tensors of a record by path, numbers as tensors."""
    found = {}
    for name, value in record.items():
        if isinstance(value, ClassTable):
            found |= {f"{name}.values": value.values, f"{name}.held": value.held}
        elif isinstance(value, dict):
            found |= {f"{name}.{key}": tensor for key, tensor in value.items()}
        else:
            found[name] = torch.as_tensor(value)
    return found


def near(one, other, tolerance):
    """Whether two records differ by at most `tolerance`, of numbers above 1 relatively."""
    one, other = leaves(one), leaves(other)
    assert one.keys() == other.keys()
    return all(torch.allclose(one[n].double(), other[n].double(), rtol=tolerance, atol=tolerance) for n in one)


def two_domains(shift: float, n: int = 400) -> Dataset:
    """Standard normal inputs [n, 1, 2, 2]; the second domain's are moved by `shift` standard deviations."""
    domain = np.arange(n) % 2
    x = (
        np.random.default_rng(0).standard_normal((n // 2, 1, 2, 2)).repeat(2, axis=0)
        + shift * domain[:, None, None, None]
    )
    y = torch.from_numpy(np.arange(n) // 2 % 4)
    return Dataset(torch.from_numpy(x).float(), y, tuple("abcd"), domain=torch.from_numpy(domain), domains=("u", "v"))


def rows_of(consts):
    """The prototypes [Q, d] among a round's constants, whichever contrast they are for."""
    return getattr(consts["prototypes"], "rows", consts["prototypes"])


def scores_of(evaluator, predictors, net_of_client, split="test"):
    """The scores of predictors by client, -1 for the server's, as the engines' workers compute them."""
    tested = {}
    for client, offered in predictors:
        slices = range(-1, -1 - evaluator.slices(split), -1) or range(evaluator.scenario.clients)
        for test in slices if client < 0 else (client,):
            tested[test] = {}
            for name in evaluator.names:
                predictor, live = evaluator.pick(offered, name), net_of_client(client)
                live.load(predictor.tree)
                tested[test][name] = evaluator.states(live, predictor, test, split)
    return evaluator.scores(split, tested)
