"""The tensors and numbers inside constants, and constants rebuilt around others."""

import pytest
import torch

from fedloom.core.tables import ClassTable
from fedloom.engine.keys import from_leaves, leaves_of, structure_of, to_device


def consts(value, number=0.5):
    """Every kind of thing that methods put into a round's constants."""
    return {
        "own": torch.full((2,), float(value)),
        "table": ClassTable(torch.full((2, 1), float(value)), torch.ones(2, dtype=torch.bool)),
        "heads": [{"w": torch.full((1,), float(value))}],
        "pair": (torch.arange(2), 3),
        "number": number,
        "nothing": None,
        "yes": True,
        "word": "l2",
    }


def test_leaves_are_tensors_and_numbers_in_order():
    given = consts(1)
    found = leaves_of(given)
    expected = [
        given["own"],
        given["table"].values,
        given["table"].held,
        given["heads"][0]["w"],
        given["pair"][0],
        3,
        0.5,
    ]
    assert len(found) == len(expected)
    assert all(one is other or one == other for one, other in zip(found, expected, strict=True))


def test_constants_are_rebuilt_around_other_leaves():
    other = from_leaves(structure_of(consts(1)), iter(leaves_of(consts(2, 0.25))))
    assert structure_of(other) == structure_of(consts(2))
    assert torch.equal(other["own"], torch.full((2,), 2.0))
    assert torch.equal(other["table"].values, torch.full((2, 1), 2.0))
    assert other["heads"][0]["w"] == 2
    assert isinstance(other["pair"], tuple)
    assert (other["number"], other["nothing"], other["yes"], other["word"]) == (0.25, None, True, "l2")


def test_shapes_are_equal_whatever_the_values():
    assert structure_of(consts(1)) == structure_of(consts(2, 7))
    assert hash(structure_of(consts(1))) == hash(structure_of(consts(2, 7)))


@pytest.mark.parametrize(
    "change",
    [
        {"word": "l1"},
        {"own": torch.ones(3)},
        {"own": torch.ones(2, dtype=torch.float64)},
        {"yes": False},
        {"nothing": 1.0},
        {"heads": []},
        {"pair": [torch.arange(2), 3]},
        {"more": 1},
    ],
    ids=str,
)
def test_everything_else_is_part_of_the_shape(change):
    assert structure_of(consts(1)) != structure_of(consts(1) | change)


def test_constants_that_are_there_are_not_moved():
    given = consts(1)
    assert to_device(given, torch.device("cpu")) is given
    moved = to_device(given, torch.device("meta"))
    assert {leaf.device.type for leaf in leaves_of(moved) if isinstance(leaf, torch.Tensor)} == {"meta"}
    assert structure_of(moved) == structure_of(given)
    assert given["own"].device.type == "cpu"
