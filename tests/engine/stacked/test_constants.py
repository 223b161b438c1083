"""Constants of several clients as one."""

import torch

from fedloom.core.tables import ClassTable
from fedloom.engine.keys import structure_of
from fedloom.engine.stacked.members import Stacked

COMMON = torch.arange(3.0)


def consts(value, number=0.5):
    """A client's constants: every kind of thing that methods put there."""
    return {
        "common": COMMON,
        "own": torch.full((2,), float(value)),
        "equal": torch.ones(2),
        "table": ClassTable(torch.full((2, 1), float(value)), torch.ones(2, dtype=torch.bool)),
        "heads": [{"w": torch.full((1,), float(value))}],
        "number": number,
        "nothing": None,
        "word": "l2",
    }


def test_what_clients_have_in_common_stays_single():
    stacked = Stacked.of([consts(1), consts(2)])
    assert stacked.shared[0] is COMMON
    assert len(stacked.stacked) == 3  # own, the table's values, the head
    assert all(leaf.shape[0] == 2 for leaf in stacked.stacked)
    assert [leaf is None for leaf in stacked.shared] == [False, True, False, True, False, True, False]
    assert stacked.shared[-1] == 0.5


def test_one_client_gets_its_own_back():
    stacked = Stacked.of([consts(1), consts(2)])
    second = stacked.of_one([leaf[1] for leaf in stacked.stacked])
    assert structure_of(second) == structure_of(consts(2))
    assert torch.equal(second["own"], torch.full((2,), 2.0))
    assert torch.equal(second["table"].values, torch.full((2, 1), 2.0))
    assert second["heads"][0]["w"] == 2
    assert (second["number"], second["nothing"], second["word"]) == (0.5, None, "l2")


def test_numbers_that_differ_become_a_tensor():
    stacked = Stacked.of([consts(1, 0.1), consts(1, 0.2)])
    assert len(stacked.stacked) == 1
    assert torch.allclose(stacked.stacked[0], torch.tensor([0.1, 0.2]))


def test_the_first_clients_share_memory_with_all():
    stacked = Stacked.of([consts(1), consts(2), consts(3)])
    first = stacked.first(2)
    assert [len(leaf) for leaf in first] == [2] * 3
    assert all(a.data_ptr() == b.data_ptr() for a, b in zip(first, stacked.stacked, strict=True))


def test_all_tensors_go_to_a_device():
    moved = Stacked.of([consts(1), consts(2)]).on(torch.device("meta"))
    tensors = [*moved.stacked, *(leaf for leaf in moved.shared if isinstance(leaf, torch.Tensor))]
    assert {tensor.device.type for tensor in tensors} == {"meta"}
    assert moved.shared[-1] == 0.5


def test_clients_that_cannot_share_a_stack_differ_in_shape():
    other_word, other_size = consts(1) | {"word": "l1"}, consts(1) | {"own": torch.ones(3)}
    assert len({structure_of(c) for c in (consts(1), consts(2), other_word, other_size)}) == 3
