"""What the compiled function computes: torch's numbers, for every operator and every client, and no other memory."""

import pytest
import torch
from torch.nn import functional as F

from fedloom.core.native import compiler
from fedloom.engine.cpp import Program, UntranslatableError, program
from fedloom.engine.cpp.operators import OPERATORS
from fedloom.engine.programs import functional

pytestmark = pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")
CLIENTS, GUARD = 3, 1024
aten = torch.ops.aten


def elementwise(a, b, row, one):
    return [
        *(a + b, torch.add(a, row, alpha=-0.3), a + 1.5, a - b, torch.sub(a, b, alpha=2.0), a * one, a * 0.25),
        *(a / (b.square() + 1), a / 3, -a, a.pow(2), a.pow(1), torch.exp(a), torch.relu(a - row)),
        *(aten.threshold_backward(a, b, 0.2), aten.mul.Scalar(a, 0.9), a.t() * b.t(), one * one),
    ]


def sums(a, three):
    return [
        *(a.sum(), a.mean(), a.sum(0), a.sum(1, keepdim=True), a.sum([0], keepdim=True), a.mean([0]), a.mean(-1)),
        *(three.sum((0, 2)), three.sum(1), three.mean(1), three.permute(2, 0, 1).sum((0, 2), keepdim=True)),
        *(three.transpose(0, 1).mean((1, 2)), three.permute(2, 1, 0).sum(2)),
    ]


def softmaxes(a, b):
    p, q = torch.softmax(a, 1), torch.log_softmax(a, 0)
    backward = aten._softmax_backward_data(b, p, 1, a.dtype), aten._log_softmax_backward_data(b, q, 0, a.dtype)
    return [p, q, torch.softmax(a * 30, 0), torch.log_softmax(a * 30, -1), *backward]


def parts(a, b):
    first, second, rest = torch.split(a, 4)
    return [
        aten.alias(b) + 1.0,
        *(torch.cat([first, rest, second]), torch.cat([a[:, :2], b[:, 1:]], 1), torch.stack([a, b])),
        *(torch.stack([a, b], -1), a[2:5].clone(), a.reshape(-1)[3:].expand(2, -1), a.t().reshape(-1)),
        *(a.transpose(0, 1)[1:] * 2.0, (a * 2).permute(1, 0), torch.split(b, 3, 1)[2] + 1.0, a),
        aten._unsafe_view(b, [7, 9]),
    ]


def products(a, b, a_turned, b_turned, row, start):
    return [
        *(a @ b, a @ b_turned.t(), a_turned.t() @ b, torch.addmm(row, a, b)),
        torch.addmm(row, a, b_turned.t(), alpha=0.5),
        torch.addmm(start, a_turned.t(), b, beta=0.3, alpha=-0.2),
        torch.addmm(start[:, :1], a, b_turned.t()),
    ]


def cross_entropy(logits, labels):
    logits = logits.detach().requires_grad_()
    losses = F.cross_entropy(logits, labels, reduction="none")
    return [losses.detach(), *torch.autograd.grad(losses.mean(), logits)]


def drawn(*shapes):
    draw = torch.Generator().manual_seed(0)
    return [torch.randn(CLIENTS, *shape, generator=draw) for shape in shapes]


def labelled():
    (logits,) = drawn((6, 5))
    return [logits, torch.tensor([[0, 4, 2, -100, 1, 1], [3] * 6, [-100, 0, 1, 2, 3, 4]])]


CASES = [
    (elementwise, drawn((9, 7), (9, 7), (7,), ())),
    (sums, drawn((9, 37), (3, 4, 5))),
    (softmaxes, drawn((6, 11), (6, 11))),
    (parts, drawn((9, 7), (9, 7))),
    (cross_entropy, labelled()),
]
WEIGHT = torch.full((5,), 0.5)
SIZES = [(60, 784, 128), (128, 60, 784), (10, 10, 10), (1, 1, 1), (13, 5, 17), (7, 33, 50), (25, 16, 3), (2, 100, 31)]


def of_one(inputs, common, client=0):
    return [tensor if shared else tensor[client] for tensor, shared in zip(inputs, common, strict=True)]


def compiled(function, inputs, common=None):
    common = common or [False] * len(inputs)
    one = of_one(inputs, common)
    graph = functional(lambda *tensors: list(function(*tensors)), [tensor.clone() for tensor in one], [])
    return Program(graph, one, common)


def ran(made, inputs, clients=CLIENTS):
    """Its results. Inputs, and what lies around the results, must stay as they are."""
    sizes = [clients * torch.Size(shape).numel() for shape in made.shapes]
    wholes = [torch.full((GUARD + size + GUARD,), 77.0) for size in sizes]
    results = [w[GUARD : len(w) - GUARD].view(clients, *s) for w, s in zip(wholes, made.shapes, strict=True)]
    before = [tensor.clone() for tensor in inputs]
    made(clients, inputs, results)
    assert all(torch.equal(t.nan_to_num(), copy.nan_to_num()) for t, copy in zip(inputs, before, strict=True))
    assert all((whole[:GUARD] == 77).all() and (whole[len(whole) - GUARD :] == 77).all() for whole in wholes)
    return results


def assert_torchs(function, inputs, common=None):
    """The numbers of float64, to float32's accuracy against the largest."""
    results, common = ran(compiled(function, inputs, common), inputs), common or [False] * len(inputs)
    exact = [tensor.double() if tensor.is_floating_point() else tensor for tensor in inputs]
    for client in range(CLIENTS):
        for got, wanted in zip(results, function(*of_one(exact, common, client)), strict=True):
            assert got[client].shape == wanted.shape
            assert float((got[client] - wanted).abs().max()) <= 3e-6 * max(1.0, float(wanted.abs().max()))


@pytest.mark.parametrize(("function", "inputs"), CASES, ids=[function.__name__ for function, _ in CASES])
def test_operators(function, inputs):
    assert_torchs(function, inputs)


@pytest.mark.parametrize(("m", "k", "n"), SIZES, ids=str)
def test_products_in_every_order(m, k, n):
    a, b, row, start = drawn((m, k), (k, n), (n,), (m, n))
    a *= k**-0.5
    assert_torchs(products, [a, b, *(t.transpose(1, 2).contiguous() for t in (a, b)), row, start])


def test_every_operator_is_among_these():
    cases = [*CASES, (products, drawn((3, 4), (4, 5), (4, 3), (5, 4), (5,), (3, 5)))]
    graphs = [functional(lambda *t, f=function: list(f(*t)), of_one(i, [False] * len(i)), []) for function, i in cases]
    used = {node.target for graph in graphs for node in graph.graph.nodes if node.op == "call_function"}
    assert OPERATORS.keys() - used == set()


def test_what_is_shared_is_read_by_all():
    weight, bias, x = torch.randn(4, 6), torch.randn(4), torch.randn(CLIENTS, 5, 6)
    assert_torchs(lambda w, b, x: [torch.addmm(b, x, w.t())], [weight, bias, x], [True, True, False])


def test_results_in_memory_that_is_not_aligned():
    """Large ones go past the cache only where vectors may be written there."""
    a, b = drawn((160, 8), (8, 160))
    made = compiled(lambda a, b: [a @ b], [a, b])
    whole = torch.zeros(CLIENTS * 160 * 160 + 16)
    aligned, moved = whole[:-16].view(CLIENTS, 160, 160), torch.zeros_like(whole)[1:-15].view(CLIENTS, 160, 160)
    for results in (aligned, moved):
        made(CLIENTS, [a, b], [results])
    assert torch.equal(aligned, moved)


def test_what_is_left_in_between_is_kept_while_it_is_read():
    """More of it than fits at once, read again at the end."""

    def steps(x):
        kept = [torch.relu(x * float(n)) for n in range(1, 9)]
        sums = [torch.relu(one - 1.0).sum(0) for one in kept]
        return [sum(kept), torch.stack(sums), kept[0] - kept[7]]

    assert_torchs(steps, drawn((5, 9)))
    made = compiled(lambda x: [torch.relu(torch.relu(torch.relu(torch.relu(x) - 0.1) - 0.1) - 0.1)], drawn((32, 32)))
    assert made._scratch.numel() == 2 * 32 * 32


def test_numbers_that_are_none_spread():
    (x,) = drawn((4, 6))
    x[1, 2, 3], x[2, 0, 0] = float("nan"), float("inf")
    made = compiled(lambda x: [torch.relu(x), torch.log_softmax(x, 1), x @ x.t()], [x])
    relu, logs, gram = ran(made, [x])
    assert torch.equal(relu.isnan(), x.isnan())
    assert torch.equal(logs.isnan().any(2), ~x.isfinite().all(2))
    assert torch.equal(gram.isnan(), (x @ x.transpose(1, 2)).isnan())


@pytest.mark.parametrize("label", [5, -1, 2**40])
def test_a_label_that_names_no_class(label):
    logits, labels = labelled()
    made = compiled(cross_entropy, [logits, labels])
    labels = labels.clone()
    labels[1, 3] = label
    with pytest.raises(IndexError, match="names no class"):
        ran(made, [logits, labels])


def nothing(x):
    return [x[:, :0] @ x[:, :0].t()]


@pytest.mark.parametrize(
    ("function", "inputs", "why"),
    [
        (lambda x: [torch.tanh(x)], drawn((2, 3)), "the operator aten.tanh"),
        (lambda x: [x.pow(3)], drawn((2, 3)), "the power 3"),
        (lambda x: [x[::2] * 1.0], drawn((4, 3)), "every 2th number"),
        (lambda x: [x.double() * 1.0], drawn((2, 3)), "the operator"),
        (lambda x, y: [x * y], [*drawn((2,)), torch.ones(CLIENTS, 2, dtype=torch.int64)], "whole numbers"),
        (lambda x: [x * 1.0], [torch.ones(CLIENTS, 2, dtype=torch.bfloat16)], "numbers of torch.bfloat16"),
        (lambda x: [x * float("inf")], drawn((2,)), "a constant inf"),
        (nothing, drawn((2, 3)), "a product of nothing"),
        (lambda x, y: [F.cross_entropy(x, y)], labelled(), "weighs or sums"),
        (lambda x, y: [F.cross_entropy(x, y, WEIGHT, reduction="none")], labelled(), "weighs or sums"),
    ],
)
def test_what_is_not_known_is_told(function, inputs, why):
    with pytest.raises(UntranslatableError, match=why):
        compiled(function, inputs)


def test_constants_are_part_of_it():
    numbers, alike = torch.linspace(-1, 1, 7), torch.full((2, 7), 0.3)
    assert_torchs(lambda x: [x * numbers.to(x), x + alike.to(x)], drawn((2, 7)))


def test_the_same_text_is_compiled_once(monkeypatch):
    inputs = drawn((3, 3))
    texts = []
    monkeypatch.setattr(
        program, "library_of", lambda text, folder, of=program.library_of: texts.append(text) or of(text, folder)
    )
    for _ in range(2):
        compiled(lambda x: [x @ x, x.sum(0)], inputs)
    assert texts[0] == texts[1]
