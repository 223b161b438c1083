"""Attacks: who is bad, what becomes of data and uploads; numbers by hand."""

import dataclasses

import numpy as np
import pytest
import torch

from fedloom.core.errors import ConfigError
from fedloom.core.streams import Streams
from fedloom.core.tables import ClassTable
from fedloom.data.attacks import ATTACKS, AttackRound, published_z
from fedloom.data.scenario import Scenario
from fedloom.data.views import Views
from support import dataset

LABELS = [0, 1, 2, 3, 0, 1, 2, 3, 3, 2, 1, 0]
UPLOADS = ["sign-flip", "gaussian", "scaled", "ipm", "alie"]


def scenario(clients=4):
    """Three samples a client, the last one for validation, and a test set of all classes."""
    parts = np.arange(12).reshape(4, 3)
    train, val = Views.from_lists(list(parts[:clients, :2])), Views.from_lists(list(parts[:clients, 2:]))
    return Scenario(
        "toy", dataset(LABELS), dataset([0, 1, 2, 3]), train, val, Views.from_lists([np.arange(4)] * clients)
    )


def made(name, **keys):
    return ATTACKS.get(name)(**keys)


def drawn(attack, seed=0, of=None):
    return attack.add_to(of or scenario(), Streams(seed).numpy("attack"))


def now(participants=4, bad=1, left=(), changes=(), seed=0):
    return AttackRound(participants, bad, left, changes, np.random.default_rng(seed))


# -- who ---------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ATTACKS.names())
def test_a_share_of_the_clients_is_bad_the_same_for_a_seed(name):
    ninth = dataclasses.replace(scenario(), train=Views.from_lists([np.array([k]) for k in range(9)]))
    ninth = dataclasses.replace(ninth, val=Views.from_lists([np.arange(0)] * 9))
    found = [drawn(made(name, share=0.34), seed, ninth).bad for seed in (0, 0, 1, 2, 3)]
    assert [len(bad) for bad in found] == [3] * 5  # floor(3.06)
    assert found[0] == found[1] == tuple(sorted(found[0]))
    assert len(set(found)) > 1


@pytest.mark.parametrize("name", ATTACKS.names())
def test_with_share_0_nobody_is_bad_and_nothing_changes(name):
    found, before = drawn(made(name, share=0)), scenario()
    assert found.bad == ()
    assert torch.equal(found.train_set.y, before.train_set.y)


@pytest.mark.parametrize("share", [0.5, 0.9, 1, -0.1])
def test_half_of_the_clients_or_more_are_refused(share):
    with pytest.raises(ConfigError, match=r"scenario\.attack\.share = .*need a number in \[0, 0\.5\).*majority"):
        made("sign-flip", share=share)


@pytest.mark.parametrize(
    ("name", "share", "says"),
    [
        ("sign-flip", 0.2, "that is 0 of 4 clients, and sign-flip needs 1 or more; raise it to 0.25"),
        ("alie", 0.25, "that is 1 of 4 clients, and alie needs 2 or more; raise it to 0.5"),
    ],
)
def test_too_few_bad_clients_are_refused(name, share, says):
    with pytest.raises(ConfigError) as caught:
        drawn(made(name, share=share))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


# -- label flip --------------------------------------------------------------------------------------------------------
def test_labels_of_bad_clients_alone_are_mirrored():
    found, before = drawn(made("label-flip", share=0.3)), scenario()
    (bad,) = found.bad
    rows = before.train[bad]
    assert found.train_set.y[rows].tolist() == [3 - label for label in before.train_set.y[rows].tolist()]
    others = np.setdiff1d(np.arange(12), rows)  # the bad client's validation sample among them
    assert torch.equal(found.train_set.y[others], before.train_set.y[others])
    assert torch.equal(found.test_set.y, before.test_set.y)


def test_the_middle_one_of_an_odd_number_of_classes_is_no_aim():
    assert made("label-flip").target_classes(4).tolist() == [3, 2, 1, 0]
    assert made("label-flip").target_classes(3).tolist() == [2, -1, 0]


def test_one_class_becomes_another():
    found = drawn(made("label-flip", share=0.3, source=1, target=0), seed=4)
    (bad,) = found.bad
    rows = scenario().train[bad]
    before = scenario().train_set.y[rows].tolist()
    assert found.train_set.y[rows].tolist() == [0 if label == 1 else label for label in before]
    assert found.attack.target_classes(4).tolist() == [-1, 0, -1, -1]


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"source": 1}, "source and target go together"),
        ({"source": 1, "target": 1}, "need two different classes of 0 .. 3"),
        ({"source": 1, "target": 4}, "need two different classes of 0 .. 3"),
    ],
)
def test_flips_that_make_no_sense_are_refused(keys, says):
    with pytest.raises(ConfigError, match=says):
        drawn(made("label-flip", share=0.3, **keys))


def test_samples_that_honest_clients_share_are_not_flipped():
    shared = dataclasses.replace(scenario(), train=Views.from_lists([np.array([0, 1])] * 4))
    with pytest.raises(ConfigError, match="share no samples"):
        drawn(made("label-flip", share=0.3), of=shared)


# -- uploads -----------------------------------------------------------------------------------------------------------
def test_a_flipped_and_a_scaled_change_by_hand():
    own = {"model": {"w": torch.tensor([3.0, 1.0])}, "samples": 7}
    received = {"model": {"w": torch.tensor([1.0, 2.0])}}
    flipped = made("sign-flip", factor=2.0).forge_upload(own, received, [own], now())
    assert flipped["model"]["w"].tolist() == [1 - 2 * 2, 2 + 2 * 1]
    assert flipped["samples"] == 7
    scaled = made("scaled", factor=3.0).forge_upload(own, received, [own], now())
    assert scaled["model"]["w"].tolist() == [1 + 3 * 2, 2 - 3 * 1]
    assert own["model"]["w"].tolist() == [3.0, 1.0]


def test_what_was_not_received_or_is_a_change_is_a_change_from_0():
    own = {"control": {"w": torch.tensor([3.0])}, "new": torch.tensor([[2.0]])}
    received = {"control": {"w": torch.tensor([1.0])}, "new": torch.tensor([1.0, 1.0])}  # of another shape
    found = made("sign-flip").forge_upload(own, received, [own], now(changes=["control"]))
    assert (found["control"]["w"].tolist(), found["new"].tolist()) == ([-3.0], [[-2.0]])


def test_statistics_of_batch_norm_counters_and_counts_stay():
    own = {
        "model": {"w": torch.tensor([3.0]), "norm.running_var": torch.tensor([0.5]), "norm.count": torch.tensor(4)},
        "class_counts": torch.tensor([1, 2]),
    }
    received = {"model": {"w": torch.tensor([1.0]), "norm.running_var": torch.tensor([1.0])}}
    found = made("sign-flip").forge_upload(own, received, [own], now(left={"norm.running_var"}))
    assert found["model"]["w"].tolist() == [-1.0]
    assert found["model"]["norm.running_var"].tolist() == [0.5]
    assert (found["model"]["norm.count"], found["class_counts"].tolist()) == (4, [1, 2])


def test_of_a_class_table_the_held_rows_are_attacked():
    table = ClassTable(torch.tensor([[1.0, 2.0], [0.0, 0.0], [5.0, 5.0]]), torch.tensor([True, False, True]))
    before = ClassTable(torch.tensor([[2.0, 2.0], [9.0, 9.0], [0.0, 0.0]]), torch.tensor([True, True, False]))
    found = made("sign-flip").forge_upload({"rows": table}, {"rows": before}, [{"rows": table}], now())["rows"]
    assert found.values.tolist() == [[3.0, 2.0], [0.0, 0.0], [-5.0, -5.0]]
    assert found.held.tolist() == [True, False, True]


def test_noise_takes_the_place_of_the_change_and_comes_from_the_given_stream():
    own, received = {"model": {"w": torch.tensor([50.0, 60.0])}}, {"model": {"w": torch.tensor([1.0, 2.0])}}
    found = made("gaussian", std=3.0).forge_upload(own, received, [own], now(seed=8))["model"]["w"]
    noise = np.random.default_rng(8).standard_normal(2)
    assert torch.allclose(found.double(), torch.tensor([1.0, 2.0]) + 3 * torch.from_numpy(noise), atol=1e-6)


def test_inner_product_manipulation_by_hand():
    """Changes 1 and 3 of the colluders, whose mean is 2: all send -4 times it."""
    uploads = [{"model": {"w": torch.tensor([value])}} for value in (2.0, 4.0)]
    forged = made("ipm", factor=4.0).forge_upload(uploads[0], {"model": {"w": torch.ones(1)}}, uploads, now(bad=2))
    assert forged["model"]["w"].item() == 1 - 4 * 2


def test_a_little_is_enough_by_hand():
    """Changes 1 and 3: mean 2, deviation 1. All colluders send the same."""
    uploads = [{"model": {"w": torch.tensor([value])}} for value in (2.0, 4.0)]
    received = {"model": {"w": torch.tensor([1.0])}}
    found = [
        made("alie", z=1.5).forge_upload(own, received, uploads, now(bad=2))["model"]["w"].item() for own in uploads
    ]
    assert found == [1 + 2 + 1.5] * 2


def test_a_little_is_enough_compares_rows_among_those_who_hold_them():
    held = [torch.tensor([True, True]), torch.tensor([True, False])]
    tables = [ClassTable(torch.tensor([[1.0], [7.0]]), held[0]), ClassTable(torch.tensor([[5.0], [0.0]]), held[1])]
    uploads = [{"rows": table} for table in tables]
    found = made("alie", z=1.0).forge_upload(uploads[0], {}, uploads, now(bad=2))["rows"]
    assert found.values.flatten().tolist() == [3 + 2, 7]  # of a single holder there is no deviation


def test_the_published_z():
    """50 workers, 24 bad: s = 2, the quantile of 24 / 26 (the paper's example); with few bad ones 0."""
    assert published_z(50, 24) == pytest.approx(1.4261, abs=1e-4)
    assert published_z(50, 12) == pytest.approx(0.3360, abs=1e-4)  # s = 14, 24 / 38
    assert (published_z(10, 2), published_z(10, 1), published_z(2, 2)) == (0.0, 0.0, 0.0)
    assert published_z(10, 6) == pytest.approx(0.6745, abs=1e-4)  # more than half by chance: 3 / 4


def test_alie_says_when_it_does_nothing():
    assert "the published z is 0" in made("alie", share=0.2).why_idle(10)
    assert made("alie", share=0.2, z=1.0).why_idle(10) is None
    assert made("alie", share=0.48).why_idle(50) is None
    assert all(made(name).why_idle(10) is None for name in ATTACKS.names() if name != "alie")


@pytest.mark.parametrize("name", UPLOADS)
def test_an_untargeted_attack_has_no_aim(name):
    assert made(name).target_classes(4) is None


@pytest.mark.parametrize(
    ("name", "key"), [("sign-flip", "factor"), ("scaled", "factor"), ("gaussian", "std"), ("alie", "z")]
)
@pytest.mark.parametrize("value", [0, -1])
def test_strengths_are_positive(name, key, value):
    with pytest.raises(ValueError, match="greater than 0"):
        made(name, **{key: value})
