"""How a run's nets are made: the same weights from the same seed, in every process and for every client."""

import pytest
import torch

from fedloom.core.errors import ConfigError
from fedloom.core.streams import Streams
from fedloom.methods.contract.contexts import Task
from fedloom.nets.blueprint import Blueprint, Bundle
from fedloom.nets.net import build, tree_of
from support import same_tree

SHAPE = (1, 8, 8)


@pytest.mark.parametrize(("model", "options"), [("digits-cnn", {}), ("mlp", {"hidden": [9, 5]})])
def test_a_blueprint_builds_what_build_builds(model, options):
    for seed in (0, 3):
        plan = Blueprint(model, SHAPE, 4, options)
        expected = build(model, input_shape=SHAPE, num_classes=4, streams=Streams(seed), **options)
        assert same_tree(tree_of(plan.build(Streams(seed))), tree_of(expected))
    other = tree_of(plan.build(Streams(4)))
    assert not torch.equal(other["head.weight"], tree_of(expected)["head.weight"])


def test_a_clients_own_weights_differ_and_can_be_drawn_again():
    plan, streams = Blueprint("digits-cnn", SHAPE, 4), Streams(3)
    common, first, second = (
        tree_of(plan.build(streams)),
        plan.initial_weights(streams, 0),
        plan.initial_weights(streams, 1),
    )
    torch.rand(5)
    assert same_tree(first, plan.initial_weights(Streams(3), 0))
    for a, b in ((common, first), (common, second), (first, second), (first, plan.initial_weights(Streams(4), 0))):
        assert list(a) == list(b)
        assert not any(torch.equal(a[name], b[name]) for name in a)


def test_the_global_generator_neither_matters_nor_moves():
    plan = Blueprint("digits-cnn", SHAPE, 4)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        first = plan.initial_weights(Streams(3), 2)
        torch.manual_seed(2)
        before = torch.get_rng_state()
        assert same_tree(plan.initial_weights(Streams(3), 2), first)
        assert torch.equal(torch.get_rng_state(), before)


def test_a_blueprint_builds_bundles_and_heads_without_bias():
    plan = Blueprint("mlp", SHAPE, 4, head_bias=False, nets={"online": None, "offline": None})
    bundle, alone = plan.build(Streams(3)), tree_of(Blueprint("mlp", SHAPE, 4, head_bias=False).build(Streams(3)))
    assert isinstance(bundle, Bundle)
    for name in plan.nets:
        assert same_tree(tree_of(bundle[name]), alone)
    assert "head.bias" not in alone
    assert list(plan.initial_weights(Streams(3), 1)) == list(tree_of(bundle))


def test_a_task_draws_a_clients_own_weights_from_its_blueprint():
    plan, streams = Blueprint("mlp", SHAPE, 4), Streams(3)
    facts = {"clients": 2, "num_classes": 4, "rounds": 1, "local_epochs": 1, "streams": streams}
    task = Task.of(plan.build(streams), **facts, blueprint=plan)
    assert same_tree(task.fresh(1), plan.initial_weights(streams, 1))
    with pytest.raises(ConfigError, match="need a registered model"):
        Task.of(plan.build(streams), **facts).fresh(1)


def test_unknown_models_and_inputs_that_do_not_fit_are_refused():
    with pytest.raises(ConfigError, match="unknown model 'lenet': did you mean 'lenet5"):
        Blueprint("lenet", SHAPE, 4).build(Streams(0))
    with pytest.raises(ConfigError, match="needs images"):
        Blueprint("lenet5", (64,), 4).build(Streams(0))
