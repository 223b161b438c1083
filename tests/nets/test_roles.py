"""Roles come from module types and the head's place, never from names."""

import pytest
import torch
from torch import nn

from fedloom.nets.loaded_net import freeze_as_buffers
from fedloom.nets.net import ALL_ROLES, Role, tag_roles


class Misnamed(nn.Module):
    """Names that lie: `bn` and `head_norm` are linear, `fc` is batch norm, `header` is not the head."""

    def __init__(self):
        super().__init__()
        self.bn = nn.Linear(4, 4)
        self.fc = nn.BatchNorm1d(4)
        self.header = nn.Linear(4, 4)
        self.head_norm = nn.Linear(4, 4)
        self.group = nn.GroupNorm(2, 4)
        self.head = nn.Linear(4, 2)


def test_types_decide_and_names_do_not():
    body, head = Role.BODY, Role.HEAD
    assert tag_roles(Misnamed(), "head") == {
        "bn.weight": body,
        "bn.bias": body,
        "fc.weight": Role.BN_AFFINE,
        "fc.bias": Role.BN_AFFINE,
        "fc.running_mean": Role.BN_STAT,
        "fc.running_var": Role.BN_STAT,
        "fc.num_batches_tracked": Role.COUNTER,
        "header.weight": body,
        "header.bias": body,
        "head_norm.weight": body,
        "head_norm.bias": body,
        "group.weight": body,
        "group.bias": body,
        "head.weight": head,
        "head.bias": head,
    }


@pytest.mark.parametrize("norm", [nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm])
def test_every_kind_of_batch_norm_is_one(norm):
    roles = tag_roles(nn.Sequential(norm(3)), "absent")
    affine, stat = Role.BN_AFFINE, Role.BN_STAT
    assert list(roles.values()) == [affine, affine, stat, stat, Role.COUNTER]


def test_batch_norm_inside_the_head_keeps_its_roles():
    net = nn.ModuleDict({"head": nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), "body": nn.Linear(2, 2)})
    roles = tag_roles(net, "head")
    assert roles["head.0.weight"] == roles["head.0.bias"] == Role.HEAD
    assert roles["head.1.weight"] == Role.BN_AFFINE
    assert roles["head.1.running_mean"] == Role.BN_STAT
    assert roles["head.1.num_batches_tracked"] == Role.COUNTER
    assert roles["body.weight"] == Role.BODY


def test_a_nested_head_is_found_by_its_dotted_name():
    net = nn.ModuleDict({"top": nn.ModuleDict({"fc": nn.Linear(2, 2), "fc2": nn.Linear(2, 2)})})
    roles = tag_roles(net, "top.fc")
    assert roles["top.fc.weight"] == Role.HEAD
    assert roles["top.fc2.weight"] == Role.BODY  # its name only starts like the head's


def test_batch_norm_without_affine_or_statistics_has_what_it_has():
    assert set(tag_roles(nn.Sequential(nn.BatchNorm1d(2, affine=False)), "").values()) == {Role.BN_STAT, Role.COUNTER}
    plain = nn.Sequential(nn.BatchNorm1d(2, track_running_stats=False))
    assert tag_roles(plain, "absent") == {"0.weight": Role.BN_AFFINE, "0.bias": Role.BN_AFFINE}


def test_buffers_of_a_user_net_are_no_body_and_hidden_ones_have_no_role():
    net = nn.Module()
    net.scale = nn.Parameter(torch.ones(1))
    net.register_buffer("steps", torch.tensor(0))
    net.register_buffer("cache", torch.zeros(1), persistent=False)
    assert tag_roles(net, "head") == {"scale": Role.BODY, "steps": Role.BUFFER}


def test_a_module_used_under_two_names_has_a_role_under_both():
    net = nn.Module()
    net.encoder = nn.Linear(3, 3)
    net.twin = net.encoder
    net.head = nn.Linear(3, 2)
    net.head_again = net.head
    roles = tag_roles(net, "head")
    assert list(roles) == list(net.state_dict())
    assert roles["encoder.weight"] == roles["twin.weight"] == Role.BODY


def test_running_statistics_of_other_norms_are_buffers_and_frozen_parameters_are_not():
    norm = nn.InstanceNorm1d(2, affine=True, track_running_stats=True)
    norm.weight.requires_grad_(False)
    net = nn.ModuleDict(
        {"norm": norm, "head": nn.Sequential(nn.Linear(2, 2), nn.InstanceNorm1d(2, track_running_stats=True))}
    )
    freeze_as_buffers(net, persistent=True)
    roles = tag_roles(net, "head")
    assert roles["norm.weight"] == roles["norm.bias"] == Role.BODY
    statistics = ("running_mean", "running_var", "num_batches_tracked")
    assert {roles[f"{norm}.{name}"] for norm in ("norm", "head.1") for name in statistics} == {Role.BUFFER}
    assert roles["head.0.weight"] == Role.HEAD


def test_the_words_are_seven():
    assert {str(role) for role in ALL_ROLES} == {"body", "head", "bn_affine", "bn_stat", "counter", "buffer", "extra"}
