"""The run key `scenario.public`: a share of the training samples, or another source."""

import numpy as np
import pytest
import torch

import fedloom
from fedloom.core.errors import ConfigError
from fedloom.runs.config.run_config import parse

DIGITS = {"source": "digits", "partition": "iid", "clients": 3}


def described(public, **more):
    return parse({"method": "fedavg", "scenario": {**DIGITS, "public": public, **more}})


@pytest.fixture
def pictures(tmp_path):
    """An .npz of 40 pictures of three classes, of the digits' shape."""
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 255, (40, 8, 8), dtype=np.uint8), np.arange(40) % 3
    path = tmp_path / "others.npz"
    np.savez(path, x_train=x, y_train=y, x_test=x[:6], y_test=y[:6])
    return path


def test_another_source(pictures):
    config = described({"source": "npz", "path": str(pictures), "samples": 10})
    scenario, again = (config.scenario.build(config.seed) for _ in range(2))
    assert len(scenario.public) == 10
    assert scenario.public.num_classes == 3
    assert torch.equal(scenario.public.x, again.public.x)
    without = described(0).scenario.build(config.seed)
    assert torch.equal(torch.from_numpy(scenario.train.order), torch.from_numpy(without.train.order))
    assert scenario.digest() == again.digest() != without.digest()
    other = config.scenario.build(config.seed + 1)
    assert not torch.equal(scenario.public.x, other.public.x)
    assert len(described({"source": "npz", "path": str(pictures)}).scenario.build(0).public) == 40


def test_its_keys_are_part_of_the_config_and_of_the_fingerprint(pictures):
    config = described({"source": "npz", "path": str(pictures), "samples": 10})
    said = config.resolved()["scenario"]["public"]
    assert (said["source"], said["samples"], said["path"]) == ("npz", 10, str(pictures))
    assert parse({**config.resolved(), "engine": "serial"}).fingerprint() == config.fingerprint()
    prints = {described(public).fingerprint() for public in (0, 0.1, {"source": "npz", "path": str(pictures)})}
    assert len(prints | {config.fingerprint()}) == 4


def test_a_run_with_it(pictures):
    public = {"source": "npz", "path": str(pictures)}
    scenario = fedloom.scenario(**DIGITS, public=public)
    result = fedloom.run("feddf", scenario=scenario, model="mlp", rounds=1, engine="serial", feddf={"steps": 3})
    assert result.numbers["accuracy"] > 0


@pytest.mark.parametrize(
    ("public", "said"),
    [
        (1.0, r"scenario\.public = 1\.0: need a share in \[0, 1\), or \{source: name, its keys\}"),
        (True, r"scenario\.public = True: need a share"),
        ("mnist", r"scenario\.public = 'mnist': need a share"),
        ({}, r"scenario\.public\.source is missing"),
        ({"source": "nmist"}, r"unknown source 'nmist'"),
        ({"source": "digits", "sample": 3}, r"'scenario\.public\.sample'.*did you mean 'samples'\?"),
        ({"source": "digits", "samples": 0}, r"scenario\.public\.samples = 0"),
    ],
)
def test_what_is_neither_is_one_line(public, said):
    with pytest.raises(ConfigError, match=said) as error:
        described(public)
    assert "\n" not in str(error.value)


def test_more_samples_than_there_are(pictures):
    config = described({"source": "npz", "path": str(pictures), "samples": 41})
    with pytest.raises(ConfigError, match=r"scenario\.public\.samples = 41: npz has 40 training samples"):
        config.scenario.build(0)


def test_another_shape_is_one_line(tmp_path):
    x, y = np.zeros((6, 28, 28), dtype=np.uint8), np.arange(6) % 2
    np.savez(tmp_path / "large.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    config = described({"source": "npz", "path": str(tmp_path / "large.npz")})
    said = r"scenario\.public: samples are values of shape \(1, 28, 28\), the clients' are values of shape \(1, 8, 8\)"
    with pytest.raises(ConfigError, match=said) as error:
        config.scenario.build(0)
    assert "\n" not in str(error.value)


def test_a_run_of_two_models(pictures):
    """Each client is tested with, and gives, the model of its own architecture."""
    scenario = fedloom.scenario(**DIGITS, public={"source": "npz", "path": str(pictures)})
    result = fedloom.run(
        "feddf",
        scenario=scenario,
        model=["mlp", "digits-cnn"],
        rounds=1,
        engine="serial",
        evaluation={"protocol": "personal/local"},
        feddf={"steps": 3},
    )
    assert len({type(result.model(client=client)) for client in range(2)}) == 2
