"""Nets of different architectures side by side, each with an optimiser of its own."""

import pytest
import torch

from fedloom.core.errors import ConfigError
from fedloom.core.streams import Streams
from fedloom.engine.fast.replayer import Replayer
from fedloom.methods.contract.method import Method
from fedloom.methods.contract.phases import Objective, OptimizerSpec, Train, cross_entropy, kl_divergence
from fedloom.methods.contract.spec import Spec
from fedloom.nets import MODELS
from fedloom.nets.blueprint import Blueprint, prepare_net
from fedloom.nets.net import tree_of
from support import CLASSES, ENGINES, Tiny, after, alike, furthest, same_tree, world

SHAPE = (1, 8, 8)
LABELS = [[0, 1, 2, 3, 0, 1, 2], [1, 1, 0, 2], [3, 2, 1, 0, 0]]
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


@pytest.mark.parametrize("method", [Both, Kept])
@pytest.mark.parametrize("engine", ENGINES[1:])
def test_every_engine_trains_them_alike(method, engine):
    toys = [made(method(), epochs=2) for _ in range(2)]
    assert alike(after(toys[0], 2), after(toys[1], 2, engine), engine)
    prefix = "small." if method is Kept else ("large.", "small.")
    assert all(name.startswith(prefix) for name in toys[1].federation.server["model"])


def test_their_steps_are_recorded():
    toys = [made() for _ in range(2)]
    toys[1].worker.stepper = Replayer(toys[1].data, eager=True)
    assert alike(after(toys[0], 3), after(toys[1], 3), "serial")
    assert toys[1].worker.stepper.programs > 0


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
