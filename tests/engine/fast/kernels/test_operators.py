"""Kernels beside torch's in float64, and beside torch's pooling bit for bit."""

import ctypes
import math
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.nn.functional import conv2d, max_pool2d

from fedloom.engine.fast.kernels import operators
from fedloom.engine.fast.kernels.compiling import compiler
from fedloom.engine.fast.kernels.operators import convolution, max_pool2

pytestmark = pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")

# c_in, c_out, height, width, kernel, padding: nets of the zoo, then odd ones. Samples: more and fewer than are summed
# together.
GEOMETRIES = [
    (3, 6, 32, 32, (5, 5), (0, 0)),
    (6, 16, 14, 14, (5, 5), (0, 0)),
    (1, 6, 28, 28, (5, 5), (2, 2)),
    (10, 20, 12, 12, (5, 5), (0, 0)),
    (3, 64, 8, 8, (3, 3), (1, 1)),
    (1, 1, 1, 1, (1, 1), (0, 0)),
    (2, 7, 5, 9, (3, 2), (0, 1)),
    (7, 13, 9, 4, (2, 4), (1, 3)),
    (4, 5, 3, 40, (3, 1), (2, 0)),
    (9, 11, 6, 6, (6, 6), (5, 5)),
]


def given(geometry, n):
    c_in, c_out, height, width, kernel, padding = geometry
    draw = torch.Generator().manual_seed(n)
    x = torch.randn(n, c_in, height, width, generator=draw)
    weight, bias = torch.randn(c_out, c_in, *kernel, generator=draw), torch.randn(c_out, generator=draw)
    g = torch.randn(conv2d(x, weight, bias, padding=padding).shape, generator=draw)
    return x, weight, bias, g, padding


def with_gradients(function, inputs, g):
    leaves = [leaf.clone().requires_grad_() for leaf in inputs]
    y = function(*leaves)
    return [y.detach(), *torch.autograd.grad(y, leaves, g)]


def assert_close(got, wanted):
    """To float32's accuracy, against the size of what was summed."""
    for one, other in zip(got, wanted, strict=True):
        assert one.shape == other.shape
        assert float((one.double() - other).abs().max()) <= 3e-6 * max(1.0, float(other.abs().max()))


@pytest.mark.parametrize("n", [1, 3, 16])
@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
def test_a_convolution_and_its_gradients_are_torchs(geometry, n):
    *inputs, g, padding = given(geometry, n)
    got = with_gradients(lambda *leaves: convolution(*leaves, padding), inputs, g)
    exact = with_gradients(lambda *leaves: conv2d(*leaves, padding=padding), [t.double() for t in inputs], g.double())
    assert_close(got, exact)


def test_without_a_bias_and_without_a_gradient_of_the_images():
    x, weight, _, g, padding = given(GEOMETRIES[0], 4)
    leaf = weight.clone().requires_grad_()
    y = convolution(x, leaf, None, padding)
    (gradient,) = torch.autograd.grad(y, leaf, g)
    exact = with_gradients(lambda w: conv2d(x.double(), w, None, padding=padding), [weight.double()], g.double())
    assert_close([y.detach(), gradient], exact)


@pytest.mark.parametrize("name", ["x", "weight", "g"])
def test_any_memory_order_will_do(name):
    x, weight, bias, g, padding = given(GEOMETRIES[1], 5)
    plain = with_gradients(lambda *leaves: convolution(*leaves, padding), (x, weight, bias), g)
    turned = {"x": x, "weight": weight, "g": g}
    turned[name] = turned[name].contiguous(memory_format=torch.channels_last)
    inputs = (turned["x"], turned["weight"], bias)
    other = with_gradients(lambda *leaves: convolution(*leaves, padding), inputs, turned["g"])
    assert all(torch.equal(a, b) for a, b in zip(plain, other, strict=True))


def test_a_sample_depends_on_no_other():
    """Not even on one with infinities that was there before."""
    x, weight, bias, g, padding = given(GEOMETRIES[2], 6)
    alone = [
        with_gradients(lambda a: convolution(a, weight, bias, padding), [x[k : k + 1]], g[k : k + 1]) for k in (0, 5)
    ]
    convolution(torch.full_like(x, math.inf), weight, bias, padding)
    y, gx = with_gradients(lambda a: convolution(a, weight, bias, padding), [x], g)
    for k, (one, gradient) in zip((0, 5), alone, strict=True):
        assert torch.equal(y[k : k + 1], one)
        assert torch.equal(gx[k : k + 1], gradient)


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
def test_a_batch_depends_on_none_before(geometry):
    """Not even on one of infinities, after which a client has diverged, and the next one has not."""
    x, weight, bias, g, padding = given(geometry, 1)
    before = with_gradients(lambda *leaves: convolution(*leaves, padding), (x, weight, bias), g)
    many, inputs = 40, [torch.full((40, *x.shape[1:]), math.inf), weight, bias]
    with_gradients(lambda *leaves: convolution(*leaves, padding), inputs, g.expand(many, -1, -1, -1))
    after = with_gradients(lambda *leaves: convolution(*leaves, padding), (x, weight, bias), g)
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_an_empty_batch():
    _, weight, bias, _, padding = given(GEOMETRIES[0], 1)
    leaf = weight.clone().requires_grad_()
    y = convolution(torch.empty(0, 3, 32, 32), leaf, bias, padding)
    assert y.shape == (0, 6, 28, 28)
    assert not torch.autograd.grad(y.sum(), leaf)[0].any()


def test_a_second_gradient_is_refused():
    x, weight, bias, _, padding = given(GEOMETRIES[0], 1)
    x.requires_grad_()
    (gx,) = torch.autograd.grad(convolution(x, weight, bias, padding).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gx.sum().backward()


SIDES = [(28, 28), (10, 10), (2, 2), (7, 5), (3, 40), (33, 33), (16, 64), (2, 3), (5, 2)]


@pytest.mark.parametrize("values", ["spread", "ties", "not numbers"])
@pytest.mark.parametrize("sides", SIDES, ids=str)
def test_maxima_and_their_gradients_are_torchs_bit_for_bit(sides, values):
    draw = torch.Generator().manual_seed(sides[0])
    x = torch.randn(3, 5, *sides, generator=draw)
    if values == "ties":
        x = x.relu()
    if values == "not numbers":
        x[torch.rand(x.shape, generator=draw) < 0.1] = math.nan
    g = torch.randn(3, 5, sides[0] // 2, sides[1] // 2, generator=draw)
    got, wanted = with_gradients(max_pool2, [x], g), with_gradients(lambda a: max_pool2d(a, 2), [x], g)
    for one, other in zip(got, wanted, strict=True):
        assert torch.equal(one.nan_to_num(7.0), other.nan_to_num(7.0))
        assert torch.equal(one.isnan(), other.isnan())


def guarded(size, dtype=torch.float32):
    """A tensor amid others' memory, and that memory."""
    whole = torch.full((size + 4096,), 77, dtype=dtype)
    return whole[2048 : 2048 + size], torch.cat([torch.arange(2048), torch.arange(2048 + size, size + 4096)]), whole


@pytest.mark.parametrize("sides", SIDES, ids=str)
def test_poolings_write_nothing_beyond_their_results(sides):
    planes, (height, width) = 3, sides
    inner = planes * (height // 2) * (width // 2)
    x, (y, *y_guard), (places, *p_guard) = (
        torch.randn(planes, height, width),
        guarded(inner),
        guarded(inner, torch.int32),
    )
    gx, *x_guard = guarded(x.numel())
    kernel = operators._prepared_pooling(height, width)
    for function in (kernel.forward, kernel.backward):
        function.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_ssize_t]
    kernel.forward(x.data_ptr(), y.data_ptr(), places.data_ptr(), planes)
    kernel.backward(y.data_ptr(), places.data_ptr(), gx.data_ptr(), planes)
    for outside, whole in (y_guard, p_guard, x_guard):
        assert (whole[outside] == 77).all()
    assert torch.equal(y.view(planes, height // 2, width // 2), max_pool2d(x, 2))


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
def test_convolutions_write_nothing_beyond_their_results(geometry):
    x, weight, bias, g, padding = given(geometry, 2)
    c_out, c_in, *kernel_sides = weight.shape
    kernel = operators._prepared_convolution(c_in, c_out, *x.shape[2:], *kernel_sides, *padding)
    for function, pointers in ((kernel.forward, 4), (kernel.input_gradient, 3), (kernel.weight_gradient, 4)):
        function.argtypes = [ctypes.c_void_p] * pointers + [ctypes.c_int]
    results = [guarded(size) for size in (g.numel(), x.numel(), weight.numel(), c_out)]
    y, gx, gw, gb = (inside for inside, *_ in results)
    kernel.forward(x.data_ptr(), weight.data_ptr(), bias.data_ptr(), y.data_ptr(), 2)
    kernel.input_gradient(g.data_ptr(), weight.data_ptr(), gx.data_ptr(), 2)
    kernel.weight_gradient(g.data_ptr(), x.data_ptr(), gw.data_ptr(), gb.data_ptr(), 2)
    assert all((whole[outside] == 77).all() for _, outside, whole in results)
    assert torch.equal(y.view(g.shape), convolution(x, weight, bias, padding))


def test_threads_run_kernels_side_by_side():
    """Their memory for planes and sums is each thread's own."""
    *inputs, g, padding = given(GEOMETRIES[1], 64)
    expected = with_gradients(lambda *leaves: convolution(*leaves, padding), inputs, g)

    def repeated(_):
        return [with_gradients(lambda *leaves: convolution(*leaves, padding), inputs, g) for _ in range(5)]

    with ThreadPoolExecutor(3) as pool:
        for results in pool.map(repeated, range(3)):
            for result in results:
                assert all(map(torch.equal, result, expected))


def test_an_operator_without_a_compiled_kernel_says_so():
    operators.load_operators()
    with pytest.raises(RuntimeError, match=r"no kernel was compiled for the geometry \[1, 2, 63, 61, 3, 3, 0, 0\]"):
        torch.ops.fedloom.convolution(torch.zeros(1, 1, 63, 61), torch.zeros(2, 1, 3, 3), None, 0, 0)
