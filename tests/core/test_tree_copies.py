"""Copies to a device bring every entry as it was, one copy for each dtype."""

import torch

from fedloom.core import trees as device_copies
from fedloom.core.trees import sent_to, tree_on

CPU = torch.device("cpu")


def test_a_tree_arrives_as_it_was_in_the_plain_order():
    weights = torch.randn(3, 2, 4, 4).to(memory_format=torch.channels_last)
    tree = {"w": weights, "steps": torch.tensor(7), "b": torch.randn(5).double(), "empty": torch.zeros(0, 2)}
    copied = tree_on(tree, CPU)
    assert list(copied) == list(tree)
    assert all(torch.equal(copied[name], tree[name]) and copied[name].dtype == tree[name].dtype for name in tree)
    assert copied["w"].is_contiguous()
    assert copied["w"].data_ptr() != weights.data_ptr()


def test_one_copy_for_each_dtype(monkeypatch):
    copies = []
    monkeypatch.setattr(device_copies, "sent_to", lambda tensor, device: copies.append(tensor.numel()) or tensor)
    tree_on({"a": torch.ones(2), "n": torch.tensor(1), "b": torch.ones(3)}, torch.device("meta"))
    assert copies == [5, 1]


def test_a_tensor_that_is_there_is_not_copied():
    tensor = torch.ones(2)
    assert sent_to(tensor, CPU) is tensor
