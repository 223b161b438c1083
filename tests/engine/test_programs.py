"""Functions as the operators they call: the same values and the same writes, without what cancels out."""

import pytest
import torch

from fedloom.engine.programs import compiled


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


def test_convolutions_run_too():
    """TorchScript takes no lists of truth values; such programs are replayed from Python."""
    x, weight = torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3)

    def function(x, weight):
        weight = weight.detach().requires_grad_()
        return list(torch.autograd.grad(torch.conv2d(x, weight).square().sum(), [weight]))

    program = compiled(function, [x.clone(), weight.clone()])
    assert torch.equal(program(x, weight)[0], function(x, weight)[0])
