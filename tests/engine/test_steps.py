"""Blocks of batches, and what is kept of their steps."""

import pytest
import torch

from fedloom.engine.steps import Block, Tally, detached
from fedloom.methods.contract.phases import Objective
from fedloom.methods.contract.sample_statistics import ClassMeans


def block(samples, size):
    return Block(torch.arange(samples * 2.0).view(samples, 2), torch.arange(samples), size)


@pytest.mark.parametrize(("samples", "sizes"), [(6, [3, 3]), (7, [3, 3, 1]), (2, [2])])
def test_a_block_is_its_batches_in_order_without_copies(samples, sizes):
    whole = block(samples, 3)
    batches = whole.batches()
    assert len(whole) == len(sizes)
    assert [len(batch.y) for batch in batches] == sizes
    assert torch.equal(torch.cat([batch.y for batch in batches]), whole.y)
    assert batches[0].x.data_ptr() == whole.x.data_ptr()


def test_pieces_lie_where_the_block_lies():
    """Bits of a product may depend on where its operands start."""
    whole = block(7, 3)
    singles = whole.split([1, 1, 1])
    assert [single.x.data_ptr() for single in singles] == [batch.x.data_ptr() for batch in whole.batches()]
    assert [len(single) for single in singles] == [1, 1, 1]
    two, one = whole.split([2, 1])
    assert (len(two), len(one), len(two.y), len(one.y)) == (2, 1, 6, 1)


def test_a_second_view_is_cut_like_the_first():
    first = block(7, 3)
    whole = Block(first.x, first.y, 3, first.x + 100)
    for batch in whole.batches():
        assert torch.equal(batch.second, batch.x + 100)
    assert torch.equal(whole.split([2, 1])[1].second_view, whole.second_view[6:])
    assert first.batches()[0].second is None


def test_a_tally_means_terms_over_steps_and_sums_taps():
    tally = Tally({"means": ClassMeans("z")}, 2)
    for value in (1.0, 3.0):
        block = Block(torch.zeros(2, 1), torch.tensor([0, 0]), 2)
        term = torch.tensor(value, requires_grad=True)
        tally.add([Objective(term, {"loss": term}, {"z": torch.full((2, 3), value)})], block.batches())
    assert tally.mean_terms() == {"loss": 2.0}
    assert tally.statistics()["means"].values[0].tolist() == [2.0] * 3


def test_a_detached_objective_has_no_graph():
    value = torch.ones(2, requires_grad=True) * 2
    out = detached(Objective(value.sum(), {"a": value.sum()}, {"b": value}))
    assert not any(t.requires_grad for t in (out.total, *out.terms.values(), *out.taps.values()))
