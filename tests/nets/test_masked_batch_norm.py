"""Batch norm over the rows that count: what it would be without the others."""

import pytest
import torch
from torch import nn

from fedloom.nets.masked_batch_norm import MaskedBatchNorm, RowMask, masked_copy
from support import Tiny, TinyBN

COUNTED = torch.tensor([True, False, True, True, False])


def norms(**options):
    """A batch norm of 3 channels with statistics and weights of its own, and a masked one like it."""
    torch.manual_seed(0)
    made = [nn.BatchNorm2d(3, **options) for _ in range(2)]
    for norm in made:
        torch.manual_seed(1)
        with torch.no_grad():
            for tensor in [*norm.parameters(), *norm.buffers()]:
                if tensor.is_floating_point():
                    tensor.uniform_(0.5, 1.5)
    rows = RowMask()
    return made[0], MaskedBatchNorm(made[1], rows), rows


@pytest.mark.parametrize(
    "options", [{}, {"momentum": None}, {"affine": False}, {"track_running_stats": False}, {"eps": 0.1}]
)
@pytest.mark.parametrize("training", [True, False])
def test_rows_that_do_not_count_leave_no_trace(options, training):
    plain, masked, rows = norms(**options)
    plain.train(training)
    masked.train(training)
    rows.mask = COUNTED
    for _ in range(3):
        x = torch.randn(5, 3, 4, 4)
        assert torch.allclose(masked(x)[COUNTED], plain(x[COUNTED]), atol=1e-6)
    for name, value in plain.state_dict().items():
        assert torch.allclose(masked.state_dict()[name], value, atol=1e-6)


def test_gradients_do_not_reach_rows_that_do_not_count():
    _, masked, rows = norms()
    rows.mask = COUNTED
    x = torch.randn(5, 3, 2, 2, requires_grad=True)
    masked(x)[COUNTED].square().sum().backward()
    assert torch.equal(x.grad.abs().sum((1, 2, 3)) > 0, COUNTED)


def test_without_a_mask_it_is_the_norm_itself():
    plain, masked, _ = norms()
    x = torch.randn(5, 3, 4, 4)
    assert torch.equal(masked(x), plain(x))


def test_a_masked_copy_has_the_same_entries_and_leaves_the_net_alone():
    net = TinyBN()
    copied, _ = masked_copy(net)
    assert list(copied.state_dict()) == list(net.state_dict())
    assert isinstance(net.norm, nn.BatchNorm1d)
    copied(torch.randn(4, 5))
    assert net.norm.num_batches_tracked == 0
    assert not any(isinstance(m, MaskedBatchNorm) for m in masked_copy(Tiny())[0].modules())
