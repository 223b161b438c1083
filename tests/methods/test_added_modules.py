"""What a method adds to a client's net: modules beside it (`Method.extra`), further nets, frozen teachers."""

import pytest
import torch
from torch import nn

import fedloom
from fedloom.core.errors import ConfigError
from fedloom.core.records import wire_size
from fedloom.core.streams import Streams
from fedloom.engine.fast.replayer import Replayer
from fedloom.methods import register
from fedloom.methods.contract.contexts import Start
from fedloom.methods.contract.method import Method
from fedloom.methods.contract.phases import Objective, OptimizerSpec, Train, cross_entropy, kl_divergence
from fedloom.methods.contract.spec import Spec
from fedloom.nets import MODELS
from fedloom.nets.blueprint import Blueprint, prepare_net
from fedloom.nets.net import EXTRA, Role, tree_of
from fedloom.runs.config.run_config import parse
from fedloom.runs.run import run
from support import CLASSES, ENGINES, Stop, Tiny, TinyBN, TinyDropout, after, alike, furthest, same_tree, world

# -- extra -------------------------------------------------------------------------------------------------------------
LABELS = [[0, 1, 2, 3, 0, 1, 2], [1, 1, 0, 2], [3, 2, 1, 0, 0]]
NAMES = ["extra.mix.weight", "extra.mix.bias"]
HEAD, BESIDE = frozenset({Role.HEAD}), frozenset({Role.EXTRA})


class Second(nn.Module):
    """A second head, its weights drawn."""

    def __init__(self, width: int, classes: int = CLASSES) -> None:
        super().__init__()
        self.mix = nn.Linear(width, classes)
        self.drop = nn.Dropout(0.0)


class Shared(Method):
    """Two heads on the same features; the second is what the method adds."""

    phase: dict = {}  # noqa: RUF012

    def extra(self, net):
        return Second(net.head.in_features)

    def loss(self, net, batch, consts):
        z = net.features(batch.x)
        return batch.mean(cross_entropy(net.head(z) + net.extra.drop(net.extra.mix(z)), batch.y))

    def phases(self, start, ctx):
        return [Train(self.loss, ctx.task.local_epochs, **self.phase)]


class Private(Shared):
    spec = Spec(private=BESIDE)


class Apart(Shared):
    """In a bundle of two."""

    spec = Spec(nets={"one": None, "two": None}, private_nets=frozenset({"two"}))

    def loss(self, net, batch, consts):
        z = net["one"].features(batch.x)
        return batch.mean(cross_entropy(net["two"](batch.x) + net.extra.mix(z), batch.y))


@pytest.mark.parametrize("method", [Shared, Private, Apart])
def test_its_entries_have_a_role_of_their_own_and_come_last(method):
    toy = world(method(), LABELS)
    assert list(toy.task.init)[-2:] == NAMES
    assert {name for name, role in toy.task.roles.items() if role is Role.EXTRA} == set(NAMES)
    assert toy.task.names(BESIDE) == set(NAMES)
    assert EXTRA == "extra"


def test_shared_it_travels_is_averaged_and_counted():
    toy = after(world(Shared(), LABELS), 2)
    plain = after(world(Method(), LABELS), 2)
    model = toy.federation.server["model"]
    assert furthest({n: model[n] for n in NAMES}, {n: toy.task.init[n] for n in NAMES}) > 1e-3
    assert toy.federation.states == {}
    for ours, theirs in zip(toy.reports, plain.reports, strict=True):
        values = 4 * sum(model[name].numel() for name in NAMES) * len(LABELS)
        assert values < ours.bytes_up - theirs.bytes_up < values + 400 * len(LABELS)
        assert values < ours.bytes_down - theirs.bytes_down < values + 400 * len(LABELS)
    done = [toy.worker.run(toy.job(client, round_=3)).upload for client in range(3)]
    after(toy, 1)
    total = sum(upload["samples"] for upload in done)
    for name in NAMES:
        mean = sum(upload["samples"] / total * upload["model"][name].double() for upload in done)
        assert torch.allclose(toy.federation.server["model"][name].double(), mean, rtol=0, atol=1e-6)


def test_private_it_stays_with_the_client():
    toy = after(world(Private(), LABELS), 2)
    assert not set(NAMES) & set(toy.federation.server["model"])
    trees = [toy.federation.states[client]["model"] for client in range(3)]
    assert all(list(tree) == NAMES for tree in trees)
    assert furthest(trees[0], trees[1]) > 1e-3
    shared = after(world(Shared(), LABELS), 2)
    assert toy.reports[0].bytes_up < shared.reports[0].bytes_up
    payload = toy.job(0, round_=3).payload
    assert toy.reports[1].bytes_down == sum(wire_size(payload) for _ in range(3))
    ctx = toy.federation.server_context()
    assert toy.method.predictors(toy.federation.server, None, ctx) == {}
    personal = toy.method.predictors(toy.federation.server, toy.federation.states[0], ctx)["personal"]
    assert list(personal.tree) == list(toy.task.init)
    assert torch.equal(personal.tree[NAMES[0]], trees[0][NAMES[0]])


@pytest.mark.parametrize(
    ("phase", "moved"),
    [
        ({}, {*NAMES, "fc.weight", "fc.bias", "head.weight", "head.bias"}),
        ({"trains": BESIDE}, {*NAMES}),
        ({"trains": HEAD}, {"head.weight", "head.bias"}),
        ({"optimizer": {"extra": OptimizerSpec(lr=0.0)}}, {"fc.weight", "fc.bias", "head.weight", "head.bias"}),
    ],
)
def test_a_phase_may_train_it_alone_or_leave_it(phase, moved):
    method = type("Shared", (Shared,), {"phase": phase})()
    toy = after(world(method, LABELS), 1)
    model = toy.federation.server["model"]
    assert {name for name in model if not torch.equal(model[name], toy.task.init[name])} == moved


@pytest.mark.parametrize("method", [Shared, Private])
def test_it_is_kept_in_checkpoints(method, registry, tmp_path):
    @register
    class Beside(method):
        """Two heads."""

        def extra(self, net):
            return Second(net.head.in_features, net.head.out_features)

    config = parse(
        {
            "method": "beside",
            "model": "mlp",
            "scenario": {"source": "digits", "partition": "iid", "clients": 3},
            "rounds": 4,
            "checkpoint": {"seconds": 0},
            "evaluation": {"protocol": "personal/local" if method is Private else "global/global"},
            "engine": "serial",
        }
    )
    whole = run(config, out=tmp_path / "whole")
    with pytest.raises(ConnectionError):
        run(config, out=tmp_path / "cut", callbacks=[Stop(2)])
    resumed = run(config, out=tmp_path / "cut", existing="resume")
    assert resumed.numbers["checkpoint_sha256"] == whole.numbers["checkpoint_sha256"]
    plain = fedloom.run(method="fedavg", model="mlp", scenario=config.scenario.build(0), rounds=4, engine="serial")
    assert (whole.numbers["bytes_up"] > plain.numbers["bytes_up"]) == (method is Shared)
    assert whole.numbers["flops"] > plain.numbers["flops"]


# -- several_models ----------------------------------------------------------------------------------------------------
SHAPE = (1, 8, 8)
SPECS = {
    "large": OptimizerSpec(lr=0.05, momentum=0.9),
    "small": OptimizerSpec(name="adam", lr=0.01, eps=1e-3),  # a smaller one makes roundings of small gradients large
}
RUNS = OptimizerSpec(lr=0.1)


class Both(Method):
    """A large and a small net: each on cross-entropy, the small one also on what the large one says."""

    spec = Spec(nets={"large": None, "small": "mlp-128"})
    optimizer = SPECS

    def phases(self, start, ctx):
        return [Train(self.loss, ctx.task.local_epochs, optimizer=self.optimizer)]

    def loss(self, net, batch, consts):
        said = {name: net[name](batch.x) for name in self.spec.nets}
        terms = {f"ce_{name}": batch.mean(cross_entropy(logits, batch.y)) for name, logits in said.items()}
        taught = batch.mean(kl_divergence(said["large"].detach(), said["small"]))
        return Objective.sum(terms | {"taught": taught})


class Kept(Both):
    """The large net stays with the client."""

    spec = Spec(nets={"large": None, "small": "mlp-128"}, private_nets=frozenset({"large"}))


def made(method=None, labels=LABELS, **keys):
    return world(method or Both(), labels, net="digits-cnn", shape=SHAPE, optimizer=RUNS, **keys)


def torchs(spec, parameters):
    if spec.name == "adam":
        return torch.optim.Adam(parameters, lr=spec.lr, eps=spec.eps)
    return torch.optim.SGD(parameters, lr=spec.lr, momentum=spec.momentum)


@pytest.mark.parametrize(
    "optimizers", [SPECS, {"small": SPECS["small"]}, {}], ids=lambda given: "+".join(given) or "run's"
)
def test_a_round_is_that_of_a_loop_with_torchs_optimisers(optimizers):
    method = type("Both", (Both,), {"optimizer": optimizers})()
    toy = after(made(method, LABELS[:1], epochs=2), 1)
    nets = {
        "large": MODELS.get("digits-cnn")(input_shape=SHAPE, num_classes=CLASSES),
        "small": MODELS.get("mlp-128")(input_shape=SHAPE, num_classes=CLASSES),
    }
    for name, net in nets.items():
        net.load_state_dict(
            {n.removeprefix(f"{name}."): v for n, v in toy.task.init.items() if n.startswith(f"{name}.")}
        )
    each = [torchs(optimizers.get(name, RUNS), list(net.parameters())) for name, net in nets.items()]
    (x, y), order = toy.samples(0), Streams(3).numpy("shuffle", 1, 0)
    for _ in range(2):
        for rows in torch.split(torch.from_numpy(order.permutation(7)), 4):
            large, small = (net(x[rows]) for net in nets.values())
            said, target = torch.log_softmax(small, 1), torch.softmax(large.detach(), 1)
            loss = torch.nn.functional.cross_entropy(large, y[rows]) + torch.nn.functional.cross_entropy(small, y[rows])
            loss = loss + torch.nn.functional.kl_div(said, target, reduction="batchmean")
            for optimizer in each:
                optimizer.zero_grad()
            loss.backward()
            for optimizer in each:
                optimizer.step()
    expected = {f"{name}.{n}": value for name, net in nets.items() for n, value in tree_of(net).items()}
    assert furthest(toy.federation.server["model"], expected) < 1e-5
    assert furthest(toy.federation.server["model"], toy.task.init) > 1e-2


def test_a_blueprint_draws_each_from_its_model():
    nets = {"large": None, "small": "mlp-128", "again": None}
    plan = Blueprint("digits-cnn", SHAPE, CLASSES, nets=nets)
    bundle, again = plan.build(Streams(3)), plan.build(Streams(3))
    assert same_tree(tree_of(bundle), tree_of(again))
    assert same_tree(tree_of(bundle["large"]), tree_of(bundle["again"]))
    assert tree_of(bundle["small"]).keys() != tree_of(bundle["large"]).keys()
    with pytest.raises(ConfigError, match="unknown model"):
        Blueprint("digits-cnn", SHAPE, CLASSES, nets={"small": "no-such-net"}).build(Streams(3))


def test_another_model_beside_a_net_as_it_is_needs_a_registered_one():
    with pytest.raises(ConfigError, match="'mlp-128' beside the run's own needs a registered model"):
        prepare_net(Tiny(), nets={"one": None, "other": "mlp-128"})


# -- frozen_nets -------------------------------------------------------------------------------------------------------
class Taught(Method):
    """Cross-entropy, and the distance to logits and features of the weights received, as a constant tree."""

    pull = 0.5

    def begin(self, payload, state, ctx):
        start = super().begin(payload, state, ctx)
        return Start(start.tree, {"teacher": dict(start.tree)})

    def one(self, net):
        return net

    def teacher(self, consts):
        return consts["teacher"]

    def loss(self, net, batch, consts):
        net = self.one(net)
        teacher = self.teacher(consts)
        logits, features = net.functional.logits(teacher, batch.x), net.functional.features(teacher, batch.x)
        self.note(logits, features, batch)
        ce = batch.mean(cross_entropy(net(batch.x), batch.y))
        apart = (net(batch.x) - logits).square().sum(1) + (net.features(batch.x) - features).square().sum(1)
        return Objective.sum({"ce": ce, "apart": self.pull * batch.mean(apart)})

    def note(self, logits, features, batch):
        pass


class TaughtInPairs(Taught):
    """The second of two nets is taught by itself."""

    spec = Spec(nets={"first": None, "second": None}, private_nets=frozenset({"first"}))

    def one(self, net):
        return net["second"]

    def teacher(self, consts):
        return {n.removeprefix("second."): v for n, v in consts["teacher"].items() if n.startswith("second.")}


@pytest.mark.parametrize("net", [Tiny, TinyBN, TinyDropout])
@pytest.mark.parametrize("method", [Taught, TaughtInPairs])
def test_they_are_those_of_the_net_in_evaluation_mode_and_constants(method, net):
    seen = []

    class Noting(method):
        def note(self, logits, features, batch):
            seen.append((logits, features, batch.x.clone()))

    toy = after(world(Noting(), LABELS, net=net, epochs=2), 1)  # so that batch norm's statistics are no longer 0 and 1
    seen.clear()
    job = toy.job(0, round_=2)
    start = toy.method.begin(job.payload, job.state, job.ctx)
    toy.worker.run(job)
    given = toy.method.teacher(start.consts)
    fresh = net().eval()
    fresh.load_state_dict(given)
    assert len(seen) == 4
    for logits, features, x in seen:
        assert not logits.requires_grad
        assert not features.requires_grad
        assert torch.allclose(logits, fresh(x), rtol=0, atol=1e-6)
        assert torch.allclose(features, fresh.features(x), rtol=0, atol=1e-6)


def test_a_teachers_passes_leave_no_trace():
    """Neither in batch norm's statistics, nor in its own weights."""
    taught, plain = (
        after(world(method, LABELS, net=TinyBN), 1) for method in (type("T", (Taught,), {"pull": 0.0})(), Method())
    )
    ours, theirs = (toy.federation.server["model"] for toy in (taught, plain))
    # the net itself runs three times in each step, not once
    assert int(ours["norm.num_batches_tracked"]) == 3 * int(theirs["norm.num_batches_tracked"])
    job = taught.job(0, round_=2)
    before = {name: value.clone() for name, value in job.payload["model"].items()}
    taught.worker.run(job)
    assert all(torch.equal(value, before[name]) for name, value in job.payload["model"].items())


def federations(method, net=TinyBN):
    toys = [
        made(method(), epochs=2) if issubclass(method, Both) else world(method(), LABELS, net=net, epochs=2)
        for _ in "12"
    ]
    return toys[0], toys[1]


METHODS = [Shared, Private, Apart, Both, Kept, Taught, TaughtInPairs]
CASES = [(method, engine, TinyBN) for method in METHODS for engine in ENGINES[1:]]
CASES += [(method, "processes", TinyDropout) for method in (Taught, TaughtInPairs)]


@pytest.mark.parametrize(("method", "engine", "net"), CASES)
def test_every_engine_trains_them_alike(method, engine, net):
    serial, other = federations(method, net)
    assert alike(after(serial, 3), after(other, 3, engine), engine)
    names = other.federation.server["model"]
    assert method is not Kept or all(name.startswith("small.") for name in names)


@pytest.mark.parametrize("method", [Both, Taught, TaughtInPairs])
def test_their_steps_are_recorded(method):
    plain, recorded = federations(method)
    recorded.worker.stepper = Replayer(recorded.data, eager=True)
    assert alike(after(plain, 3), after(recorded, 3), "serial")
    assert recorded.worker.stepper.programs > 0
