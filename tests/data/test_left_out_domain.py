"""A domain that is left out: nothing of it reaches the training, and all of it is tested."""

import numpy as np
import pytest
import torch

import fedloom as fl
from fedloom.core.errors import ConfigError
from fedloom.core.streams import Streams
from fedloom.data import PARTITIONS, make_scenario
from fedloom.data.assemble import OwnSplit
from fedloom.data.newcomers import HeldOut
from fedloom.data.sources.python import from_arrays
from support import same_bits

NAMES = ("ward", "clinic", "surgery")


def splits(change=0.0, seed=0, features=6, standardise=True):
    """Three domains of 60, 90 and 120 training samples; `change` is added to all samples of `clinic`."""
    rng = np.random.default_rng(seed)
    sizes, tests = (60, 90, 120), (20, 30, 40)
    domain, domain_test = np.repeat(range(3), sizes), np.repeat(range(3), tests)
    y, y_test = (rng.integers(0, 4, len(d)) for d in (domain, domain_test))
    x, x_test = (rng.normal(size=(len(d), features)).astype(np.float32) for d in (domain, domain_test))
    x[domain == 1] += change
    x_test[domain_test == 1] += change
    return from_arrays(
        x, y, x_test, y_test, domain=domain, domain_test=domain_test, domains=NAMES, standardise=standardise
    )


def scenario(partition="domains", clients=3, domain="clinic", data=None, split=None, **keys):
    return make_scenario(
        "toy",
        data or splits(),
        PARTITIONS.get(partition)(**keys),
        clients=clients,
        val=0.1,
        streams=Streams(0),
        split=split,
        held_out=HeldOut(domain=domain),
    )


@pytest.mark.parametrize(
    ("partition", "clients", "keys", "remaining"),
    [
        ("domains", 3, {}, 2),
        ("domains", 6, {"clients_per_domain": 2}, 4),
        ("natural", 3, {}, 2),
        ("dirichlet", 5, {"alpha": 1.0}, 5),
        ("iid", 4, {}, 4),
        ("dirichlet-domains", 3, {"alpha": 5.0, "domain_parts": 2, "domain_part": (0, 1, 0), "min_per_class": 1}, 2),
    ],
)
@pytest.mark.parametrize(
    "split", [None, OwnSplit(train=0.6, val=0.2, test=0.2), OwnSplit(train=0.6, val=0.2, test=0.2, pool="all")]
)
def test_the_clients_hold_the_other_domains(partition, clients, keys, remaining, split):
    dealt = scenario(partition, clients, split=split, **keys)
    assert dealt.clients == remaining
    for views, data in ((dealt.train, dealt.train_set), (dealt.val, dealt.train_set), (dealt.test, dealt.test_set)):
        assert 1 not in data.domain[views.order]
        assert len(views.order)
    assert 1 not in dealt.test_set.domain
    newcomer = dealt.newcomers
    assert newcomer.clients == 1
    assert set(newcomer.train_set.domain[newcomer.train.order].tolist()) == {1}
    assert set(newcomer.test_set.domain[newcomer.test.order].tolist()) == {1}
    if split is None:
        assert len(newcomer.test.order) == 30  # all test samples of it
        held = np.concatenate([newcomer.train.order, newcomer.val.order])
        assert sorted(held) == list(range(60, 150))
    assert dealt.newcomer_ids == (remaining,)
    assert "domain clinic never trains" in dealt.notes[-1]


def test_domains_keep_their_order_and_clients_their_domain():
    dealt = scenario(domain="ward")
    assert [set(dealt.train_set.domain[dealt.train[k]].tolist()) for k in range(2)] == [{1}, {2}]
    assert [set(dealt.test_set.domain[dealt.test[k]].tolist()) for k in range(2)] == [{1}, {2}]


@pytest.mark.parametrize("method", ["fedavg", "ditto", "fedsc"])
def test_other_data_of_the_domain_change_no_bit_of_the_training(method):
    keys = {"partition": "dirichlet", "alpha": 1.0, "clients": 3, "held_out": {"domain": "clinic"}, "val": 0.1}
    runs = [
        fl.run(method, scenario=fl.scenario(splits(change), **keys), model="mlp", rounds=2, local_epochs=1)
        for change in (0.0, 50.0)
    ]
    servers = [run.memory.weights[2].server for run in runs]
    assert same_bits(*servers)
    assert runs[0].numbers["accuracy"] == runs[1].numbers["accuracy"]
    accuracies = [run.numbers["newcomers"]["tests"]["zero-shot"] for run in runs]
    assert accuracies[0]["loss"] != accuracies[1]["loss"]


@pytest.mark.parametrize(
    ("held_out", "says"),
    [
        ({"domain": "clinik"}, "did you mean 'clinic'"),
        ({"domain": ""}, "held_out"),
        ({"domain": 3}, "held_out.domain"),
        ({"domain": "clinic", "share": 0.2}, "need one of share"),
        ({}, "need one of share"),
    ],
)
def test_wrong_domains_are_one_line(held_out, says):
    with pytest.raises(ConfigError) as refused:
        fl.run("fedavg", scenario=fl.scenario(splits(), partition="iid", clients=2, held_out=held_out), rounds=1)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_sources_without_another_domain_are_one_line():
    with pytest.raises(ConfigError, match="digits has no domains; hold out clients"):
        fl.run("fedavg", scenario=fl.scenario("digits", clients=2, held_out={"domain": "ward"}), rounds=1)
    x, y = np.zeros((40, 3), np.float32), np.arange(40) % 2
    one = from_arrays(x, y, domain=np.zeros(40, int), domains=["ward"])
    with pytest.raises(ConfigError, match="it is the only domain of"):
        fl.run("fedavg", scenario=fl.scenario(one, partition="iid", clients=2, held_out={"domain": "ward"}), rounds=1)


@pytest.mark.parametrize("held_out", [{"domain": "clinic"}, [1], {"share": 0.3}])
@pytest.mark.parametrize("normalise", ["own", "unit"])
def test_pixels_of_those_who_never_train_are_not_in_the_moments(held_out, normalise):
    """Each owner has pixels of one brightness and its neighbour, so that a sample too many would show."""
    domain = np.arange(150) % 3
    x = np.broadcast_to(40 * domain[:, None, None, None] + np.arange(2), (150, 1, 2, 2)).astype(np.uint8)
    data = from_arrays(x, np.arange(150) // 3 % 2, owners=np.array(NAMES)[domain], normalise=normalise)
    dealt = fl.scenario(data, partition="natural", held_out=held_out)
    pixels = dealt.train_set.x[torch.from_numpy(dealt.train.order)].double()
    wanted = (pixels.mean(), pixels.std(correction=0)) if normalise == "own" else (0.0, 255.0)
    for samples in (dealt.train_set, dealt.test_set, dealt.newcomers.train_set, dealt.newcomers.test_set):
        assert float(samples.mean) == pytest.approx(float(wanted[0]), rel=1e-6)
        assert float(samples.std) == pytest.approx(float(wanted[1]), rel=1e-6)
