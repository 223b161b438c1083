"""Membership from losses: an area under a curve by hand, and a model that knows its samples by heart."""

import pytest
import torch

from fedloom.core.errors import ConfigError
from fedloom.diagnosis.input_inference import losses_of, membership_auc
from fedloom.nets.net import tree_of
from support import Through


@pytest.mark.parametrize(
    ("members", "others", "area"),
    [
        ([0.1, 0.2], [0.3, 0.4], 1.0),
        ([0.3, 0.4], [0.1, 0.2], 0.0),
        ([0.1, 0.3], [0.2, 0.4], 3 / 4),
        ([1.0, 1.0], [1.0], 0.5),
        ([0.0, 1.0], [0.0, float("nan")], (1.5 + 1) / 4),
    ],
)
def test_the_area_by_hand(members, others, area):
    assert membership_auc(torch.tensor(members), torch.tensor(others)) == pytest.approx(area)


def test_losses_are_those_of_each_sample():
    net = Through(torch.zeros(2, 3))
    tree = {name: torch.tensor([[1.0, 0, 0], [0, 0, 0]]) for name in tree_of(net)}
    found = losses_of(net, tree, torch.tensor([[2.0, 0, 0], [2.0, 0, 0]]), torch.tensor([0, 1]))
    assert found.tolist() == pytest.approx([0.1269280, 2.1269280], abs=1e-6)  # log(1 + e^-2), and 2 more


def test_without_samples_there_is_no_area():
    with pytest.raises(ConfigError, match="0 members and 1 others"):
        membership_auc(torch.zeros(0), torch.zeros(1))
