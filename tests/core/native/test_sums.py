"""Sums in one pass: torch's bits, or none of it."""

import pytest
import torch

from fedloom.core.native import KernelError, add_scaled, compiler, sums
from fedloom.core.trees import weighted_mean

needs_compiler = pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")
SIZE = sums.LEAST_SIZE + 37


def drawn(count, size=SIZE):
    draw = torch.Generator().manual_seed(count)
    rows = [torch.randn(size, generator=draw) for _ in range(count)]
    weights = torch.rand(count, generator=draw, dtype=torch.float64).tolist()
    return torch.randn(size, generator=draw, dtype=torch.float64), rows, weights


@needs_compiler
@pytest.mark.parametrize("count", [4, 5, 11, 16])
def test_the_bits_are_those_of_row_after_row(count):
    total, rows, weights = drawn(count)
    rows[1][3], rows[2][-1] = float("inf"), float("nan")
    wanted = total.clone()
    for row, weight in zip(rows, weights, strict=True):
        wanted.add_(row, alpha=weight)
    assert add_scaled(total, rows, weights)
    assert torch.equal(total.nan_to_num(), wanted.nan_to_num())
    assert torch.equal(total.isnan(), wanted.isnan())


@pytest.mark.parametrize(
    ("rows", "size"),
    [
        ([torch.ones(SIZE)] * 3, SIZE),
        ([torch.ones(100)] * 8, 100),
        ([torch.ones(SIZE, dtype=torch.bfloat16)] * 8, SIZE),
        ([torch.ones(SIZE, 2)[:, 0]] * 8, SIZE),
    ],
    ids=["few rows", "few numbers", "another dtype", "rows in pieces"],
)
def test_what_it_is_not_for_is_left_alone(rows, size):
    total = torch.zeros(size, dtype=torch.float64)
    assert not add_scaled(total, rows, [1.0] * len(rows))
    assert not total.any()


@pytest.fixture
def fresh():
    sums._kernel.cache_clear()
    yield
    sums._kernel.cache_clear()


@pytest.mark.parametrize("obstacle", ["no compiler", "other bits"])
def test_torch_sums_where_it_cannot(obstacle, fresh, monkeypatch):
    def none(_):
        raise KernelError("no compiler")

    if obstacle == "no compiler":
        monkeypatch.setattr(sums, "library", none)
    else:
        monkeypatch.setattr(sums, "_run", lambda kernel, total, rows, weights: total.add_(1.0))
    total, rows, weights = drawn(8)
    assert not add_scaled(total, rows, weights)
    assert torch.equal(total, drawn(8)[0])


@needs_compiler
def test_a_mean_is_the_same_with_and_without(monkeypatch):
    _, rows, weights = drawn(40)
    trees = [{"w": row.view(-1, 1), "b": row[:7]} for row in rows]
    fast = weighted_mean(trees, weights)
    monkeypatch.setattr("fedloom.core.trees.add_scaled", lambda *_: False)
    plain = weighted_mean(trees, weights)
    assert all(torch.equal(fast[name], plain[name]) for name in ("w", "b"))
