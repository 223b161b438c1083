"""Several nets as one module, and nets that compute with weights handed to them."""

import pytest
import torch

from fedloom.core.streams import Streams
from fedloom.core.trees import clone
from fedloom.methods.contract.contexts import Task
from fedloom.nets.blueprint import prepare_net
from fedloom.nets.net import FunctionalNet, Role, build, tree_of
from support import WIDTH, Tiny, TinyBN, TinyDropout, same_tree

NAMES = ("online", "offline")


def digits(**options):
    """The paper's net whose classifier is more than its head, at the smallest size."""
    return build("fedbn-digits-cnn", input_shape=(3, 8, 8), num_classes=4, streams=Streams(0), **options)


def side_by_side(net):
    """Copies of a net under both names."""
    return prepare_net(net, nets=dict.fromkeys(NAMES))


def inputs(*shape, seed=0):
    return torch.randn(6, *shape, generator=torch.Generator().manual_seed(seed))


def moved(net, seed=1):
    """Weights of `net`'s names and shapes, none of them what the net holds; variances stay positive."""
    rng = torch.Generator().manual_seed(seed)
    return {
        name: v + 1 if v.dtype == torch.int64 else v + 0.3 * torch.rand(v.shape, generator=rng)
        for name, v in tree_of(net).items()
    }


def test_a_tree_is_flat_and_names_its_nets():
    bundle, alone = side_by_side(TinyBN()), list(tree_of(TinyBN()))
    assert list(tree_of(bundle)) == [f"{net}.{name}" for net in NAMES for name in alone]
    assert [name for name, _ in bundle.named_children()] == list(NAMES)


def test_children_start_alike_and_are_separate_tensors():
    bundle = side_by_side(TinyBN())
    first, second = (tree_of(bundle[name]) for name in NAMES)
    assert same_tree(first, second)
    before = clone(second)
    for value in first.values():
        value.add_(1)
    assert same_tree(second, before)
    assert len({value.data_ptr() for value in tree_of(bundle).values()}) == 2 * len(first)


def test_roles_are_those_of_each_net():
    roles, alone = side_by_side(TinyBN()).roles(), TinyBN().roles()
    assert roles == {f"{net}.{name}": role for net in NAMES for name, role in alone.items()}
    assert roles["offline.head.weight"] is Role.HEAD
    assert list(roles) == list(tree_of(side_by_side(TinyBN())))


@pytest.mark.parametrize(("make", "shape"), [(TinyBN, (WIDTH,)), (digits, (3, 8, 8))])
def test_where_one_net_is_expected_the_first_answers(make, shape):
    bundle = side_by_side(make()).eval()
    first, x = bundle["online"], inputs(*shape)
    with torch.no_grad():
        for value in tree_of(bundle["offline"]).values():
            value.zero_()
        assert torch.equal(bundle(x), first(x))
        assert torch.equal(bundle.features(x), first.features(x))
        assert torch.equal(bundle.maps(x), first.maps(x))
        assert torch.equal(bundle.classify(bundle.maps(x)), first(x))
    assert bundle.head is first.head
    assert bundle.classifier_block == first.classifier_block
    task = Task.of(bundle, clients=2, num_classes=4, rounds=1, local_epochs=1, streams=Streams(0))
    assert task.classifier == first.classifier_block
    assert task.feature_dim == first.head.in_features


@pytest.mark.parametrize("make", [Tiny, TinyBN, TinyDropout])
def test_frozen_logits_are_those_of_the_net_in_evaluation_mode_with_the_weights_given(make):
    net, x = make(), inputs(WIDTH)
    bundle, tree = side_by_side(net).train(), moved(net)
    given, held = clone(tree), clone(tree_of(bundle))
    ours = bundle.functional.logits(tree, x)
    assert same_tree(tree, given)  # batch-norm buffers included
    assert same_tree(tree_of(bundle), held)
    net.load_state_dict(tree)
    assert torch.equal(ours, net.eval()(x))
    assert bundle["offline"].training


def test_gradients_of_frozen_nets_reach_their_arguments_and_nothing_else():
    net, x = TinyBN(), inputs(WIDTH).requires_grad_()
    bundle, tree = side_by_side(net), moved(net)
    bundle.functional.logits(tree, x).square().sum().backward()
    assert float(x.grad.abs().max()) > 1e-3
    maps = bundle["online"].maps(inputs(WIDTH))
    bundle.functional.classify({n: v for n, v in tree.items() if n.startswith("head.")}, maps).square().sum().backward()
    touched = {name for name, p in bundle.named_parameters() if p.grad is not None}
    assert touched == {"online.fc.weight", "online.fc.bias", "online.norm.weight", "online.norm.bias"}
    skeleton = list(bundle.functional._net.parameters())
    assert all(p.is_meta and p.grad is None for p in skeleton)
    weight = tree["head.weight"].requires_grad_()
    bundle.functional.logits(tree, x.detach()).sum().backward()
    assert weight.grad is not None


@pytest.mark.parametrize(("make", "shape"), [(TinyBN, (WIDTH,)), (digits, (3, 8, 8))])
def test_a_frozen_classifier_is_the_nets_classifier_with_the_weights_given(make, shape):
    net, x = make(), inputs(*shape)
    frozen, tree = FunctionalNet(net), moved(net)
    block = {name: v for name, v in tree.items() if name.split(".")[0] in net.classifier_block}
    assert {name.split(".")[0] for name in block} == set(net.classifier_block)
    given = clone(block)
    net.load_state_dict(tree)
    with torch.no_grad():
        maps = net.eval().maps(x)
        assert torch.equal(frozen.classify(block, maps), net(x))
    assert same_tree(block, given)


def test_a_frozen_net_does_not_follow_the_net_it_was_made_from():
    net, x = TinyBN().eval(), inputs(WIDTH)
    frozen, tree = FunctionalNet(net), clone(tree_of(net))
    expected = net(x)
    for value in tree_of(net).values():
        value.zero_()
    assert torch.equal(frozen.logits(tree, x), expected)


def test_a_head_without_bias_is_without_in_all_nets():
    bundle = prepare_net(TinyBN(), head_bias=False, nets=dict.fromkeys(NAMES))
    assert not [name for name in tree_of(bundle) if name.endswith("head.bias")]
    assert bundle["offline"].head.bias is None
    tree, x = moved(bundle["online"]), inputs(WIDTH)
    bundle["online"].load_state_dict(tree)
    assert torch.equal(bundle.functional.logits(tree, x), bundle.eval()(x))
    assert "head.bias" in tree_of(prepare_net(Tiny(), head_bias=True))
