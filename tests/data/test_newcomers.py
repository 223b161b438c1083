"""Clients held out of the training: who they are, and that nothing of theirs is among the training clients' data."""

import numpy as np
import pytest
import torch

import fedloom as fl
from fedloom.core.errors import ConfigError
from fedloom.data.newcomers import HeldOut, without_newcomers
from fedloom.runs.config.run_config import parse

DEALT = {"source": "digits", "partition": "dirichlet", "alpha": 0.5, "clients": 10}


def scenario(**keys):
    return fl.scenario(**DEALT, **keys).build(3)


@pytest.mark.parametrize(("share", "count"), [(0.01, 1), (0.14, 1), (0.15, 2), (0.2, 2), (0.25, 3), (0.5, 5), (0.8, 8)])
def test_a_share_is_rounded_to_whole_clients(share, count):
    made = scenario(held_out={"share": share})
    assert (made.clients, made.newcomers.clients, len(made.newcomer_ids)) == (10 - count, count, count)


def test_no_sample_is_lost_and_none_is_on_both_sides():
    whole, made = scenario(), scenario(held_out=[2, 7])
    assert made.newcomer_ids == (2, 7)
    for name in ("train", "val", "test"):
        dealt, left, right = getattr(whole, name), getattr(made, name), getattr(made.newcomers, name)
        assert [left[k].tolist() for k in range(8)] == [dealt[k].tolist() for k in range(10) if k not in (2, 7)]
        assert [right[k].tolist() for k in range(2)] == [dealt[2].tolist(), dealt[7].tolist()]


def test_the_share_is_drawn_by_the_seed_of_the_scenario_alone():
    draws = [scenario(held_out={"share": 0.3}).newcomer_ids for _ in range(2)]
    assert draws[0] == draws[1]
    others = {fl.scenario(**DEALT, held_out={"share": 0.3}).build(seed).newcomer_ids for seed in range(8)}
    assert len(others) > 1


def test_test_samples_that_are_the_clients_own_are_split_too():
    whole, made = (
        scenario(split={"train": 0.6, "test": 0.4}),
        scenario(split={"train": 0.6, "test": 0.4}, held_out=[0, 9]),
    )
    assert len(made.test_set) + len(made.newcomers.test_set) == len(whole.test_set)
    assert torch.equal(made.test_set.x, whole.train_set.x[torch.from_numpy(made.test_rows)])
    newcomers = made.newcomers
    assert torch.equal(newcomers.test_set.x, whole.train_set.x[torch.from_numpy(newcomers.test_rows)])
    assert not set(made.test_rows.tolist()) & set(newcomers.test_rows.tolist())


def test_features_are_standardised_by_training_clients_alone(tmp_path):
    rows = ["age,site,ill"] + [f"{30 + k % 7 + (1000 if k % 4 == 3 else 0)},{k % 4},{k % 2}" for k in range(80)]
    (tmp_path / "rows.csv").write_text("\n".join(rows))
    keys = {
        "source": "csv",
        "path": str(tmp_path / "rows.csv"),
        "label": "ill",
        "owner": "site",
        "partition": "natural",
    }
    made = fl.scenario(**keys, clients=4, held_out=[3]).build(0)
    assert float(made.train_set.mean[0]) < 40  # the site of the large numbers has no part in it
    assert made.newcomers.test_set.mean is made.train_set.mean


def test_the_digest_knows_who_is_held_out():
    digests = {scenario(held_out=ids).dealt_digest() for ids in ([0], [1], [0, 1])}
    assert len(digests | {scenario().dealt_digest()}) == 4


@pytest.mark.parametrize(
    ("held_out", "message"),
    [
        ([3, 3], "need different ids"),
        ([], "at least one"),
        ([12], "there is no client 12; ids go from 0 to 9"),
        ([-1], "there is no client -1"),
        (list(range(9)), "leave 1 with training data; 2 or more must train"),
        ({"share": 0.95}, "leave 0 with training data"),
        ({"share": 1.0}, "should be less than 1"),
        ({"share": 0}, "should be greater than 0"),
        ({"share": float("nan")}, "finite"),
        ({"share": 0.2, "clients": [1]}, "need one of share, e.g. 0.2, clients"),
        ({}, "need one of share"),
        (0.3, r"scenario.held_out = 0.3: need a share of the clients, as {share: 0.3}, a list of their ids"),
        ("all", r"scenario.held_out = 'all': need a share of the clients, as {share: 0.2}, a list"),
        (3, r"scenario.held_out = 3: need a share"),
        ({"shares": 0.2}, "unknown key 'scenario.held_out.shares': did you mean 'share'"),
    ],
)
def test_bad_input_is_refused_in_one_line(held_out, message):
    with pytest.raises(ConfigError, match=message) as error:
        scenario(held_out=held_out)
    assert "\n" not in str(error.value)


def test_a_client_without_data_cannot_be_held_out():
    made = scenario()
    train = made.train.of_clients(np.arange(9))
    empty = type(train)(train.order, np.append(train.offsets, train.offsets[-1]))
    lacking = type(made)(made.name, made.train_set, made.test_set, empty, made.val, made.test)
    with pytest.raises(ConfigError, match="client 9 has no training or no test data"):
        HeldOut(clients=(9,)).draw(lacking, np.random.default_rng(0))
    drawn = [HeldOut(share=0.5).draw(lacking, np.random.default_rng(seed)) for seed in range(20)]
    assert not any(9 in ids for ids in drawn)


def test_a_config_without_the_key_has_the_fingerprint_of_earlier_versions():

    config = parse({"scenario": DEALT})
    assert "held_out" not in config.resolved()["scenario"]
    assert "newcomers" not in config.resolved()["evaluation"]
    held = parse({"scenario": {**DEALT, "held_out": {"share": 0.2}}})
    assert held.resolved()["scenario"]["held_out"] == {"share": 0.2}
    assert held.fingerprint() != config.fingerprint()


def test_an_attack_draws_its_clients_among_those_that_train():
    made = scenario(held_out=[0, 5], attack={"name": "label-flip", "share": 0.25})
    assert len(made.bad) == 2
    assert max(made.bad) < 8
    assert torch.equal(
        made.newcomers.train_set.y[torch.from_numpy(made.newcomers.train.order)],
        scenario().train_set.y[torch.from_numpy(made.newcomers.train.order)],
    )


def test_newcomers_are_apart_from_the_others():
    made = without_newcomers(scenario(), [4])
    assert made.newcomers.newcomers is None
    assert made.class_counts().sum() + made.newcomers.class_counts().sum() == scenario().class_counts().sum()
