"""Functions as the operators they call: the same values and the same writes, without what cancels out."""

import pytest
import torch

from fedloom.engine.fast.programs import RandomNumbersError, compiled


def operators(function, *inputs):
    """Names of what runs when the program of `function` is called, and its result."""
    program = compiled(function, [tensor.clone() for tensor in inputs])
    with torch.no_grad(), torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiled:
        got = program(*inputs)
    return {event.key for event in profiled.key_averages()}, got


def test_a_program_computes_what_the_function_does():
    x, y = torch.randn(3, 4), torch.randn(4, 2)
    program = compiled(lambda a, b: [a @ b, (a * 2).sum()], [x.clone(), y.clone()])
    for got, expected in zip(program(x, y), [x @ y, (x * 2).sum()], strict=True):
        assert torch.equal(got, expected)


def test_what_a_function_writes_into_its_inputs_its_program_writes_too():
    def function(weight, gradient):
        torch._foreach_add_([weight], [gradient], alpha=-0.5)
        return [weight * 1]

    weight = torch.ones(3)
    program = compiled(function, [torch.ones(3), torch.ones(3)])
    for expected in (0.5, 0.0):
        (got,) = program(weight, torch.ones(3))
        assert got.tolist() == weight.tolist() == [expected] * 3


def test_transposes_that_cancel_out_do_not_run():
    names, (got,) = operators(lambda a: [a.t().t() * 2], torch.ones(2, 3))
    assert "aten::t" not in names
    assert got.shape == (2, 3)


def test_values_that_no_input_decides_are_computed_once():
    names, (got,) = operators(lambda a: [a * (torch.ones_like(a) / 4).exp()], torch.ones(2))
    assert not names & {"aten::ones_like", "aten::div", "aten::exp"}
    assert torch.equal(got, torch.full((2,), 0.25).exp())


def test_a_value_that_is_written_into_is_made_anew():
    def function(a):
        total = torch.zeros_like(a)
        total.add_(a)
        return [total]

    program = compiled(function, [torch.ones(2)])
    assert [program(torch.full((2,), value))[0].tolist() for value in (1.0, 2.0)] == [[1.0, 1.0], [2.0, 2.0]]


def test_a_function_that_looks_at_values_is_refused():
    with pytest.raises(RuntimeError):
        compiled(lambda a: [a if float(a.sum()) > 0 else -a], [torch.ones(2)])


@pytest.mark.parametrize("asked", [[True, True, True], [False, True, True], [False, True, False]])
def test_lists_of_truth_values_are_no_obstacle(asked):
    """Gradients of convolutions have one: which of them are asked for."""
    x, weight, bias = torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3), torch.randn(4)

    def function(*given):
        leaves = [t.detach().requires_grad_(wanted) for t, wanted in zip(given, asked, strict=True)]
        wanted = [leaf for leaf in leaves if leaf.requires_grad]
        return list(torch.autograd.grad(torch.conv2d(*leaves).square().sum(), wanted))

    names, got = operators(function, x, weight, bias)
    expected = function(x, weight, bias)
    assert len(got) == len(expected) == sum(asked)
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))
    assert "aten::convolution_backward" in names
    assert "replayed" in names  # the name that TorchScript gives the function it has compiled


def test_batch_norm_and_its_statistics():
    def function(x, weight, mean, variance):
        weight = weight.detach().requires_grad_()
        out = torch.nn.functional.batch_norm(x, mean, variance, weight, None, training=True)
        return list(torch.autograd.grad(out.square().sum(), [weight]))

    given = [torch.randn(4, 3, 5, 5), torch.ones(3), torch.zeros(3), torch.ones(3)]
    program, changed = compiled(function, [tensor.clone() for tensor in given]), [t.clone() for t in given]
    assert torch.equal(program(*changed)[0], function(*given)[0])
    assert all(torch.equal(a, b) for a, b in zip(changed, given, strict=True))
    assert float(given[2].abs().sum()) > 0


@pytest.mark.parametrize(
    "draw", [torch.rand_like, lambda a: torch.randn(2) * a, lambda a: torch.nn.functional.dropout(a, 0.5)]
)
def test_a_function_that_draws_is_refused(draw):
    with pytest.raises(RandomNumbersError):
        compiled(lambda a: [draw(a)], [torch.ones(2)])
