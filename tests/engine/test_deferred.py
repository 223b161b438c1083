"""Updates that are kept as factors: the same numbers as steps one by one, with the weights left alone in between."""

import itertools

import pytest
import torch

from fedloom.engine.deferred import deferred, fused, products_merged
from fedloom.engine.programs import ATEN, functional, shape, simplified

LR, SIZE = 0.02, 4


def steps(weights, x, wanted, *, decay=0.0):
    """Plain SGD on a net of tanh layers without biases: batch after batch, in place."""
    for batch, target in zip(torch.split(x, SIZE), torch.split(wanted, SIZE), strict=True):
        leaves = [weight.detach().requires_grad_() for weight in weights]
        out = batch
        for leaf in leaves:
            out = torch.tanh(out @ leaf.t())
        loss = (out - target).square().sum()
        if decay:
            loss = loss + decay * sum(leaf.square().sum() for leaf in leaves)
        torch._foreach_add_(weights, list(torch.autograd.grad(loss, leaves)), alpha=-LR)


def graphs(sizes, batches, **settings):
    """The functional graph of some steps before and after it is deferred, and inputs."""
    rng = torch.Generator().manual_seed(0)

    def random(*size):
        return torch.randn(size, generator=rng, dtype=torch.float64)

    weights = [random(out, into) / into**0.5 for into, out in itertools.pairwise(sizes)]
    x, wanted, count = random(batches * SIZE, sizes[0]), random(batches * SIZE, sizes[-1]), len(weights)

    def function(*tensors):
        steps(list(tensors[:count]), *tensors[count:], **settings)
        return []

    inputs = [*weights, x, wanted]
    plain, changed = (functional(function, inputs, range(count)) for _ in range(2))
    deferred(changed)
    products_merged(changed)
    simplified(changed)
    return plain, changed, inputs


def made(graph, out, into):
    """How often a weight of this shape is made anew."""
    return sum(
        node.target in (ATEN.add.Tensor, ATEN.addmm.default) and shape(node) == (out, into)
        for node in graph.graph.nodes
    )


@pytest.mark.parametrize("sizes", [(40, 30), (40, 30, 20), (3, 30, 50, 40)], ids=str)
@pytest.mark.parametrize("batches", [1, 2, 7])
def test_the_numbers_are_those_of_the_steps(sizes, batches):
    plain, changed, inputs = graphs(sizes, batches)
    expected = [tensor.clone() for tensor in inputs]
    steps(expected[: len(sizes) - 1], *expected[len(sizes) - 1 :])
    for weight, before, after in zip(expected, plain(*inputs), changed(*inputs), strict=False):
        assert torch.equal(weight, before)
        assert torch.allclose(weight, after, rtol=0, atol=1e-12)


def test_a_weight_is_made_once_for_all_steps_of_small_rank():
    plain, changed, _ = graphs((100, 80), 5)
    assert (made(plain, 80, 100), made(changed, 80, 100)) == (5, 1)


def test_a_weight_is_made_as_soon_as_factors_would_cost_more():
    """Of rank 4 each: 64 x 64 / 128 = 32 are kept, the ninth makes the weight."""
    _, changed, _ = graphs((64, 64), 20)
    assert made(changed, 64, 64) == 3


def test_the_small_weight_between_large_ones_is_updated_in_every_step():
    _, changed, _ = graphs((100, 4, 90), 3)
    assert made(changed, 4, 100) == made(changed, 90, 4) == 3


def test_a_weight_that_the_loss_looks_at_is_not_deferred():
    """Weight decay adds to its gradient, which is then no product."""
    plain, changed, inputs = graphs((100, 80), 3, decay=0.1)
    assert made(changed, 80, 100) >= 3
    assert torch.allclose(plain(*inputs)[0], changed(*inputs)[0], rtol=0, atol=1e-12)


def test_a_weight_that_is_looked_at_between_steps_is_made_then():
    def function(weight, x):
        norms = []
        for batch in torch.split(x, SIZE):
            leaf = weight.detach().requires_grad_()
            (gradient,) = torch.autograd.grad((batch @ leaf.t()).square().sum(), [leaf])
            torch._foreach_add_([weight], [gradient], alpha=-1e-3)
            norms.append(weight.norm())
        return norms

    inputs = [torch.randn(80, 100), torch.randn(12, 100)]
    plain, changed = (functional(function, inputs, [0]) for _ in range(2))
    deferred(changed)
    products_merged(changed)
    simplified(changed)
    assert made(changed, 80, 100) == 3
    for before, after in zip(plain(*inputs), changed(*inputs), strict=True):
        assert torch.allclose(before, after, rtol=1e-5)


def test_products_of_all_batches_with_the_first_weight_are_one():
    _, changed, _ = graphs((100, 80), 5)
    weight = next(iter(changed.graph.nodes))
    (transposed,) = (user for user in weight.users if user.target is ATEN.t.default)
    assert [user.target for user in transposed.users] == [ATEN.mm.default]


def test_products_of_the_batches_with_one_another_are_one():
    """Of five batches of four: the last sixteen rows with the first sixteen."""
    _, changed, inputs = graphs((100, 80), 5)
    names, run = [], torch.fx.Interpreter(changed)
    run.call_function = lambda target, args, kwargs: (
        names.append((target, *(tuple(a.shape) for a in args if isinstance(a, torch.Tensor))))
        or torch.fx.Interpreter.call_function(run, target, args, kwargs)
    )
    run.run(*inputs)
    assert names.count((ATEN.mm.default, (16, 100), (100, 16))) == 1
    assert not any(name[0] is ATEN.mm.default and name[1] == (4, 100) for name in names)


def test_a_sum_with_a_product_of_stacks_is_one_operator():
    from torch.fx.experimental.proxy_tensor import make_fx

    def function(summand, left, right):
        return [torch.vmap(torch.addmm)(summand, left, right)]

    inputs = [torch.randn(3, 4, 6), torch.randn(3, 4, 5), torch.randn(3, 5, 6)]
    graph = make_fx(function)(*inputs)
    expected = graph(*inputs)[0]
    simplified(graph)
    fused(graph)
    simplified(graph)
    assert [node.target for node in graph.graph.nodes if node.op == "call_function"] == [ATEN.baddbmm.default]
    assert torch.allclose(graph(*inputs)[0], expected, atol=1e-6)
