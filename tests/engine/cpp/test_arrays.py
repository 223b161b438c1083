"""Where numbers lie: the same as torch says of its views."""

import pytest
import torch

from fedloom.engine.cpp.arrays import Array, UntranslatableError, indices, loops, merged

TENSOR = torch.arange(120.0).view(2, 3, 4, 5)


def lies_as(array, tensor):
    strides = [s for s, n in zip(array.strides, array.shape, strict=True) if n > 1]
    wanted = [s for s, n in zip(tensor.stride(), tensor.shape, strict=True) if n > 1]
    return (array.shape, strides, array.offset) == (tuple(tensor.shape), wanted, tensor.storage_offset())


@pytest.mark.parametrize(
    ("ours", "torchs"),
    [
        (lambda a: a.part(1, 1, 3), lambda t: t[:, 1:3]),
        (lambda a: a.turned([3, 0, 2, 1]), lambda t: t.permute(3, 0, 2, 1)),
        (lambda a: a.turned([-1, 0, 2, 1]), lambda t: t.permute(3, 0, 2, 1)),
        (lambda a: a.widened(2), lambda t: t.unsqueeze(2)),
        (lambda a: a.widened(4), lambda t: t.unsqueeze(4)),
        (lambda a: a.part(0, 1, 2).stretched((6, 7, 3, 4, 5)), lambda t: t[1:2].expand(6, 7, 3, 4, 5)),
        (lambda a: a.reshaped((6, -1)), lambda t: t.view(6, -1)),
        (lambda a: a.part(0, 1, 2).reshaped((3, 20)), lambda t: t[1:2].view(3, 20)),
        (lambda a: a.part(1, 1, 3).turned([2, 1, 0, 3]), lambda t: t[:, 1:3].permute(2, 1, 0, 3)),
    ],
)
def test_looks_at_the_same_numbers(ours, torchs):
    assert lies_as(ours(Array.plain("x", TENSOR.shape)), torchs(TENSOR))


@pytest.mark.parametrize(
    "look",
    [
        lambda a: a.turned([1, 0, 2, 3]).reshaped((6, 20)),
        lambda a: a.stretched((2, 3, 4, 6)),
        lambda a: a.stretched((4, 5)),
    ],
    ids=["a view of what is turned", "another size", "fewer sides"],
)
def test_looks_that_there_are_not(look):
    with pytest.raises(UntranslatableError):
        look(Array.plain("x", TENSOR.shape))


def test_a_number():
    array = Array.plain("x", (2, 3, 4)).part(1, 1, 2)
    assert array.at("i0", "i1", "i2") == "x[i0 * 12 + i1 * 4 + i2 + 4]"
    assert Array.plain("x", ()).at() == "x[0]"
    assert Array.plain("x", (3,)).stretched((2, 3)).at("i0", "i1") == "x[i1]"
    assert array.pointer == "x + 4"


def test_sides_that_lie_alike_are_one():
    whole, row = Array.plain("x", (2, 3, 4)), Array.plain("y", (4,)).stretched((2, 3, 4))
    assert [array.shape for array in merged(whole, whole)] == [(24,), (24,)]
    assert [(array.shape, array.strides) for array in merged(whole, row)] == [((6, 4), (4, 1)), ((6, 4), (0, 1))]
    assert [array.shape for array in merged(whole.turned([0, 2, 1]), whole.part(0, 0, 2).turned([0, 2, 1]))] == [
        (2, 4, 3)
    ] * 2
    assert merged(Array.plain("x", (1, 5, 1)))[0].shape == (5,)


def test_loops():
    assert loops((), "body;") == "body;"
    assert loops((2, 3), "body;", pragma=None) == (
        "for (int i0 = 0; i0 < 2; i0++) for (int i1 = 0; i1 < 3; i1++) body;"
    )
    assert loops((3,), "body;", first=4) == '\n_Pragma("omp simd") for (int i4 = 0; i4 < 3; i4++) body;'
    assert indices(Array.plain("x", (2, 3))) == ["i0", "i1"]
