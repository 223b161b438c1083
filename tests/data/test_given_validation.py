"""Validation samples that come with the data: dealt like test samples, and kept apart from training."""

import numpy as np
import pytest

import fedloom as fl
from fedloom.core.errors import ConfigError


@pytest.fixture
def file(tmp_path):
    rng, arrays = np.random.default_rng(0), {}
    for part, first, count in (("train", 0, 300), ("val", 100, 60), ("test", 200, 80)):
        arrays[f"{part}_images"] = np.full((count, 4, 4), first, np.uint8) + rng.integers(
            0, 50, (count, 1, 1), np.uint8
        )
        arrays[f"{part}_labels"] = np.arange(count)[:, None] % 3
    np.savez(tmp_path / "set.npz", **arrays)
    return tmp_path / "set.npz"


@pytest.mark.parametrize(
    "partition", [{"partition": "dirichlet", "alpha": 0.3, "clients": 4}, {"partition": "iid", "clients": 3}]
)
def test_each_part_holds_its_own_samples_once(file, partition):
    scenario = fl.scenario("npz", path=str(file), **partition).build(run_seed=0)
    pixels = scenario.train_set.x[:, 0, 0, 0].numpy()
    assert sorted(scenario.train.order) == list(range(300))
    assert sorted(scenario.val.order) == list(range(300, 360))
    assert sorted(scenario.test.order) == list(range(80))
    assert pixels[scenario.train.order].max() < 100 <= pixels[scenario.val.order].min()
    assert scenario.train_set.mean.item() == pytest.approx(pixels[:300].mean())  # validation samples do not count
    assert any("the 60 given ones; scenario.val is not used" in note for note in scenario.notes)
    if partition["partition"] == "dirichlet":  # validation and test samples together have each client's mix of classes
        labels = scenario.train_set.y.numpy(), scenario.test_set.y.numpy()
        train, val = (views.class_counts(labels[0], 3) for views in (scenario.train, scenario.val))
        assert np.abs(val + scenario.test.class_counts(labels[1], 3) - train * 140 / 300).max() <= 1.5


def test_what_would_part_them_is_refused(file):
    scenario = fl.scenario("npz", path=str(file), clients=3, partition="iid", split={"train": 0.8, "test": 0.2})
    with pytest.raises(ConfigError, match=r"scenario\.split: npz has validation samples of its own"):
        scenario.build(run_seed=0)
