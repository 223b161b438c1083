"""FedAsync, FedBuff and FedCompass: their equations with numbers by hand, uploads of several ages, and refusals."""

import pytest
import torch

from fedloom.core.errors import ConfigError
from fedloom.engine.clock import Devices
from fedloom.methods.contract.contexts import ServerContext
from support import TinyBN, after, configured, world

LABELS = [[0, 1, 2, 3], [1, 1, 0, 2], [3, 2, 1, 0]]


def context(method, staleness, clients=4):
    toy = world(method, [[0, 1, 2, 3]] * clients)
    (name, *_) = toy.task.init
    return ServerContext(toy.task, 5, staleness=staleness), name


def server_of(ctx, value):
    """All weights are `value`."""
    return {"model": {name: torch.full_like(tensor, value) for name, tensor in ctx.task.init.items()}}


def changes_of(ctx, values, samples):
    trees = [{name: torch.full_like(tensor, value) for name, tensor in ctx.task.init.items()} for value in values]
    return {
        client: {"model": tree, "buffers": {}, "samples": count}
        for client, (tree, count) in enumerate(zip(trees, samples, strict=True))
    }


@pytest.mark.parametrize(
    ("options", "staleness", "share"),
    [
        ({}, 0, 0.6),
        ({}, 3, 0.3),  # 0.6 (3 + 1)^-0.5
        ({"a": 1.0}, 4, 0.12),  # 0.6 / 5
        ({"staleness": "hinge"}, 4, 0.6),  # not beyond b = 4
        ({"staleness": "hinge"}, 5, 0.6 / 11),  # 1 / (10 (5 - 4) + 1)
        ({"staleness": "hinge", "a": 0.5, "b": 1}, 5, 0.2),  # 1 / (0.5 * 4 + 1)
        ({"staleness": "constant", "alpha": 0.9}, 99, 0.9),
    ],
)
def test_fedasync_mixes_by_staleness(options, staleness, share):
    method = configured("fedasync", **options)
    ctx, name = context(method, {2: staleness})
    uploads = {2: {**server_of(ctx, 3.0), "samples": 7}}
    new = method.aggregate(server_of(ctx, 1.0), uploads, ctx)["model"][name]
    assert torch.allclose(new, torch.full_like(new, 1 + 2 * share), atol=1e-6)


def test_fedbuff_steps_along_scaled_changes():
    """K = 2, eta = 0.5, changes 4 (age 0) and 6 (age 3): 1 + 0.5 / 2 (4 + 6 / 2) = 2.75; unscaled: 1 + 0.25 * 10."""
    for scaled, expected in ((True, 2.75), (False, 3.5)):
        method = configured("fedbuff", buffer=2, server_lr=0.5, scaled=scaled)
        ctx, name = context(method, {0: 0, 1: 3})
        new = method.aggregate(server_of(ctx, 1.0), changes_of(ctx, (4.0, 6.0), (5, 50)), ctx)["model"][name]
        assert torch.allclose(new, torch.full_like(new, expected), atol=1e-6)


def test_fedcompass_weighs_a_group_by_its_share_of_clients():
    """Two of four clients, 10 and 30 samples, ages 0 and 3: 1 + 1/2 (1/4 * 4 + 3/4 * 6 / 2) = 2.625."""
    method = configured("fedcompass")
    ctx, name = context(method, {0: 0, 1: 3})
    new = method.aggregate(server_of(ctx, 1.0), changes_of(ctx, (4.0, 6.0), (10, 30)), ctx)["model"][name]
    assert torch.allclose(new, torch.full_like(new, 2.625), atol=1e-6)


@pytest.mark.parametrize(("name", "options"), [("fedbuff", {"buffer": 3}), ("fedcompass", {})])
def test_with_equal_clients_it_is_fedavg(name, options):
    """All arrive at once, with one number of samples and no staleness."""
    one = after(world(configured(name, **options), LABELS, net=TinyBN), 2).federation.server["model"]
    other = after(world(configured("fedavg"), LABELS, net=TinyBN), 2).federation.server["model"]
    assert all(torch.allclose(one[entry], other[entry], atol=1e-5) for entry in other)


def test_a_large_buffer_is_reported():
    toy = world(configured("fedbuff"), LABELS)
    assert [note.code for note in toy.federation.initial_diagnostics] == ["fedbuff.large_buffer"]
    assert not world(configured("fedbuff", buffer=2), LABELS).federation.initial_diagnostics


@pytest.mark.parametrize("name", ["fedasync", "fedbuff", "fedcompass"])
def test_a_missing_class_a_single_sample_and_a_client_without_data(name):
    devices = Devices(spread=1.0, available=0.7)
    toy = after(world(configured(name), [[0, 0, 1], [], [2]], devices=devices, participation=0.7), 5)
    assert all(set(report.participants) <= {0, 2} for report in toy.reports)
    assert all(tensor.isfinite().all() for tensor in toy.federation.server["model"].values())


@pytest.mark.parametrize("name", ["fedasync", "fedbuff", "fedcompass"])
def test_wrappers_with_rounds_are_refused(name):
    pytest.importorskip("dp_accounting")
    with pytest.raises(ConfigError, match=rf"{name}\+dp"):
        world(configured(f"{name}+dp"), LABELS)
