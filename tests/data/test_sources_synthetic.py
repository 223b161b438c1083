"""FCUBE and synthetic(alpha, beta): the rules of the papers, checked on the drawn numbers."""

import numpy as np
import pytest
import torch

from fedloom.data import SOURCES
from fedloom.runs.config.run_config import parse


def load(name, **keys):
    return SOURCES.get(name)(**keys).load()


def test_fcube_gives_each_client_two_opposite_parts_and_both_classes():
    splits = load("fcube")
    data = splits.train
    assert torch.bincount(data.domain).tolist() == [1000] * 4
    assert torch.equal(data.y, (data.x[:, 0] < 0).long())
    for client, (second, third) in enumerate([(1, 1), (1, -1), (-1, 1), (-1, -1)]):  # signs beside a positive first one
        x, y = data.x[data.domain == client], data.y[data.domain == client]
        assert torch.bincount(y).tolist() == [500, 500]
        signs = torch.sign(x) * torch.sign(x[:, :1])
        assert torch.equal(signs, torch.tensor([1.0, second, third]).expand(len(x), 3))
        tests = splits.test.x[splits.test.domain == client]
        assert torch.equal((torch.sign(tests) * torch.sign(tests[:, :1])).unique(dim=0), signs[:1])
    assert data.x.abs().max() <= 1
    assert data.x.abs().mean(0).tolist() == pytest.approx([0.5] * 3, abs=0.02)  # uniform: std of the mean 0.005
    assert torch.equal(splits.test.y, (splits.test.x[:, 0] <= 0).long())
    assert len(splits.test) == 1000


def test_fcube_deals_its_four_clients_by_itself():
    scenario = parse({"scenario": {"source": "fcube", "partition": "natural", "val": 0.0}}).scenario.build(0)
    assert scenario.train.sizes.tolist() == [1000] * 4
    assert scenario.test.sizes.sum() == 1000


def test_synthetic_has_the_sizes_and_the_inputs_of_the_paper():
    """Inputs of a device have variances j^-1.2; sizes are 50 + floor(exp(g)), a tenth of them test samples."""
    splits = load("synthetic", devices=60)
    train, test = (torch.bincount(part.domain, minlength=60) for part in (splits.train, splits.test))
    assert (train + test).min() >= 50
    assert torch.equal(train, (0.9 * (train + test).double()).long())
    assert torch.log((train + test - 49).double()).mean().item() == pytest.approx(4, abs=0.8)  # 60 draws of std 2
    largest = int(train.argmax())
    x = splits.train.x[splits.train.domain == largest]
    assert x.var(0)[:5].tolist() == pytest.approx((np.arange(1, 6) ** -1.2).tolist(), rel=0.2)
    assert splits.train.input_shape == (60,)
    assert splits.train.num_classes == 10


def test_spreads_move_models_and_inputs_apart():
    def centres(**keys):
        data = load("synthetic", devices=40, **keys).train
        return torch.stack([data.x[data.domain == device].mean() for device in range(40)])  # near B_k

    assert centres(input_spread=0).std() < 0.3  # of 60 entries N(0, 1): 1 / sqrt(60)
    assert centres(input_spread=3).std().item() == pytest.approx(3, rel=0.35)  # of 40 draws
    assert centres(same_model=True).abs().max() < 0.1


def test_one_model_for_all_labels_every_device_alike():
    """What 30 devices teach is true on 10 others if all share a model, and near chance if each has its own."""

    def reached(**keys):
        data = load("synthetic", devices=40, **keys).train
        rows = np.stack([np.flatnonzero(data.domain.numpy() == device)[:45] for device in range(40)])
        x, y = np.c_[data.x.numpy(), np.ones(len(data))], data.y.numpy()
        known, unknown = rows[:30].ravel(), rows[30:].ravel()
        solution = np.linalg.lstsq(x[known], np.eye(10)[y[known]], rcond=None)[0]
        return ((x[unknown] @ solution).argmax(1) == y[unknown]).mean()

    assert reached(same_model=True) > 0.6
    assert reached(model_spread=0, input_spread=0) < 0.3


@pytest.mark.parametrize("name", ["fcube", "synthetic"])
def test_the_seed_decides_the_samples(name):
    first, second, other = load(name), load(name), load(name, source_seed=1)
    assert torch.equal(first.train.x, second.train.x)
    assert len(first.train) != len(other.train) or not torch.equal(first.train.x, other.train.x)
