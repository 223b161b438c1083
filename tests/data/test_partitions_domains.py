"""Domains, label skew on top of them, natural ids."""

import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

from fedloom.core.errors import ConfigError, DataError
from fedloom.core.streams import Streams
from fedloom.data.dataset import Dataset
from fedloom.data.partitions import labels_only
from fedloom.data.partitions.domains import DirichletDomains, Domains
from fedloom.data.partitions.natural import Natural
from fedloom.data.views import matched_counts

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "data.json").read_text())
DOMAINS = ("photo", "sketch", "real")


def data(per_domain, seed, classes=10):
    """Domains of the given sizes, classes even within each, in random order."""
    order = np.random.default_rng(seed).permutation(sum(per_domain))
    domain = np.repeat(np.arange(len(per_domain)), per_domain)[order]
    labels = np.concatenate([np.arange(n) % classes for n in per_domain])[order]
    return labels_only(labels, [str(c) for c in range(classes)], domain, DOMAINS[: len(per_domain)])


TRAIN, TEST = data([300, 400, 500], 0), data([100, 150, 200], 1)


def deal(partition, clients, seed=0, train=TRAIN, test=TEST):
    return partition.deal(train, test, clients, Streams(seed).numpy("partition"))


def test_one_domain_per_client_in_order():
    dealt = deal(Domains(), 3)
    for k in range(3):
        assert set(TRAIN.domain.numpy()[dealt.train[k]].tolist()) == {k}
        assert set(TEST.domain.numpy()[dealt.test[k]].tolist()) == {k}
    assert dealt.train.sizes.tolist() == [300, 400, 500]
    assert dealt.test.sizes.tolist() == [100, 150, 200]


def test_several_clients_share_a_domain_evenly():
    dealt = deal(Domains(clients_per_domain=3), 9)
    assert dealt.train.sizes.tolist() == [100] * 3 + [134, 133, 133] + [167, 167, 166]
    assert [TRAIN.domain.numpy()[dealt.train[k]][0] for k in range(9)] == [0] * 3 + [1] * 3 + [2] * 3


@pytest.mark.parametrize("partition", [Domains(), DirichletDomains(alpha=1, domain_parts=2), Natural()])
def test_a_source_without_domains_is_refused(partition):
    plain = labels_only(np.arange(100) % 10)
    with pytest.raises(ConfigError, match=r"this source has no domains; use one that does"):
        deal(partition, 3, train=plain, test=plain)


def test_domains_that_cannot_be_dealt():
    with pytest.raises(ConfigError, match=r"gives each of 3 domains 1 client\(s\); need clients=3"):
        deal(Domains(), 4)
    few = data([2, 100], 0)
    with pytest.raises(ConfigError, match="domain photo has 2 training samples for 3 clients"):
        deal(Domains(clients_per_domain=3), 6, train=few, test=few)


def test_matched_counts_of_the_golden_file():
    example = GOLDEN["match_test"]
    train, test = (np.array(example["in"][key]) for key in ("train_counts", "test_counts"))
    assert matched_counts(train, test).tolist() == example["out"]["kept"]


def test_matched_counts_of_missing_classes():
    assert matched_counts(np.array([3, 0, 6]), np.array([9, 5, 6])).tolist() == [3, 0, 6]  # not held: not tested
    assert matched_counts(np.array([3, 1]), np.array([9, 0])).tolist() == [0, 0]  # held, but no test sample
    assert matched_counts(np.array([0, 0]), np.array([9, 0])).tolist() == [0, 0]


def test_dirichlet_domains_part_and_matched_test():
    dealt = deal(DirichletDomains(alpha=1.0, domain_parts=2), 3)
    held = dealt.train.class_counts(TRAIN.y.numpy(), 10)
    tested = dealt.test.class_counts(TEST.y.numpy(), 10)
    for k in range(3):
        assert set(TRAIN.domain.numpy()[dealt.train[k]].tolist()) == {k}
        assert set(TEST.domain.numpy()[dealt.test[k]].tolist()) == {k}
        available = np.bincount(TEST.y.numpy()[TEST.domain.numpy() == k], minlength=10)
        ratio = min(Fraction(int(t), int(n)) for t, n in zip(available, held[k], strict=True))  # every class is held
        assert tested[k].tolist() == [int(ratio * int(n)) for n in held[k]]
        assert (tested[k] == available).any()  # as many as there are
    assert held.min() >= 2
    assert dealt.accepted == 3
    assert dealt.draws >= 3


def test_pixels_and_labels_are_indexed_alike():
    """Trap 10 of the Fed-CO2 specification: its code subsets labels but not image paths."""
    pixels = TRAIN.y.float() * 10 + TRAIN.domain  # a sample says in its pixels what it is
    train = Dataset(pixels.view(-1, 1), TRAIN.y, TRAIN.classes, domain=TRAIN.domain, domains=TRAIN.domains)
    dealt = deal(DirichletDomains(alpha=1.0, domain_parts=2), 3, train=train)
    for k in range(3):
        view = dealt.train.tensor(k)
        assert torch.equal(train.gather(view)[:, 0], train.y[view].float() * 10 + k)


def test_parts_of_a_domain_are_disjoint_and_selectable():
    both = deal(DirichletDomains(alpha=1.0, domain_parts=2, clients_per_domain=2), 6)
    assert sorted(both.train.order.tolist()) == list(range(len(TRAIN)))
    parts = [deal(DirichletDomains(alpha=1.0, domain_parts=2, domain_part=p), 3).train for p in (0, 1, (0, 1, 0))]
    # where a part is cut does not depend on which one is used, only later draws of test images do
    first = both.train[0].tolist(), both.train[1].tolist()
    assert (parts[0][0].tolist(), parts[1][0].tolist()) == first
    assert parts[2][0].tolist() == first[0]


def test_one_in_keeps_fewer_of_each_class():
    whole = deal(DirichletDomains(alpha=5.0, domain_parts=2), 3).train.class_counts(TRAIN.y.numpy(), 10)
    cut = deal(DirichletDomains(alpha=5.0, domain_parts=2, one_in=(6, 1, 50)), 3).train
    counts = cut.class_counts(TRAIN.y.numpy(), 10)
    for k, one_in in enumerate((6, 1, 50)):
        assert counts[k].tolist() == np.maximum(1, whole[k] // one_in).tolist()


def test_acceptance_of_the_digits_setting_is_of_the_stated_order():
    """Fed-CO2's Digits at alpha 0.3 with 3 parts: about 0.0004 of the draws (specification, trap 14)."""
    digits = data([2231], 0)
    draws = [deal(DirichletDomains(alpha=0.3, domain_parts=3), 1, s, digits, digits).draws for s in range(12)]
    assert 0.0001 < len(draws) / sum(draws) < 0.001


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"clients_per_domain": 3}, "3 clients per domain, but only 2 parts"),
        ({"domain_part": 2}, "domain_part = 2; need one number or 3 of them, from 0 to 1"),
        ({"domain_part": (0, 1)}, r"domain_part = \(0, 1\); need one number or 3 of them"),
        ({"one_in": 0}, "one_in = 0; need"),
        ({"min_per_class": 16}, "domain photo has 30 training samples of class 0; 2 parts of 16 need 32"),
        ({"alpha": 1e-3, "max_draws": 50}, r"none of 50 draws with alpha 0\.001 gave each of 2 parts of domain photo"),
    ],
    ids=str,
)
def test_label_skew_on_domains_that_cannot_be_made(settings, says):
    partition = DirichletDomains(**{"alpha": 1.0, "domain_parts": 2} | settings)
    with pytest.raises(ConfigError, match=says):
        deal(partition, 3 * partition.clients_per_domain)


def test_a_class_without_test_samples_is_named():
    test = labels_only([0, 1] * 60, ["0", "1", "2"], [0, 1, 2] * 40, DOMAINS)
    train = labels_only(np.arange(360) % 3, ["0", "1", "2"], np.arange(360) // 3 % 3, DOMAINS)
    with pytest.raises(ConfigError, match="domain photo has no test sample of class 2"):
        deal(DirichletDomains(alpha=5, domain_parts=2), 3, train=train, test=test)


def test_natural_ids_of_a_file(tmp_path):
    owners = np.array(["ann", "cy", "bob", "ann"])
    np.save(tmp_path / "owners.npy", owners)
    np.save(tmp_path / "test.npy", np.array(["bob", "dan", "ann"]))
    train, test = labels_only([0, 1, 0, 1]), labels_only([0, 1, 1])
    partition = Natural(owners=tmp_path / "owners.npy", test_owners=tmp_path / "test.npy")
    dealt = deal(partition, 3, train=train, test=test)
    assert [dealt.train[k].tolist() for k in range(3)] == [[0, 3], [2], [1]]
    assert [dealt.test[k].tolist() for k in range(3)] == [[2], [0], []]  # dan has no training samples: nobody's
    assert dealt.notes == (
        "test samples of owners without training samples, which are in no client's test: 1 of 3 (1 of 'dan')",
    )


def test_test_samples_of_owners_without_training_samples_are_counted():
    of_photo_alone = TRAIN.take(torch.from_numpy(np.flatnonzero(TRAIN.domain == 0)))
    dealt = deal(Natural(), 1, train=of_photo_alone)
    assert dealt.test[0].tolist() == np.flatnonzero(TEST.domain == 0).tolist()
    assert "350 of 450 (200 of 'real', 150 of 'sketch')" in dealt.notes[0]
    assert deal(Natural(), 3).notes == ()
    assert deal(Natural(sample_ids=True), 2).notes == ()  # the others are left out as the key says


def test_natural_without_test_ids_takes_shares_of_classes(tmp_path):
    np.save(tmp_path / "owners.npy", np.repeat([7, 3], [30, 10]))
    train, test = labels_only([0, 1] * 20), labels_only([0, 1] * 8)
    dealt = deal(Natural(owners=tmp_path / "owners.npy"), 2, train=train, test=test)
    assert dealt.test.class_counts(test.y.numpy(), 2).tolist() == [[2, 2], [6, 6]]  # id 3 first: a quarter


def test_fewer_natural_clients_only_when_asked(tmp_path):
    with pytest.raises(
        ConfigError, match=r"data have 3; need clients=3, or sample_ids=true to leave the other ids out"
    ):
        deal(Natural(), 2)
    with pytest.raises(ConfigError, match=r"data have 3; need clients=3$"):
        deal(Natural(sample_ids=True), 4)
    chosen = {tuple(deal(Natural(sample_ids=True), 2, s).train.sizes.tolist()) for s in range(20)}
    assert chosen == {(300, 400), (300, 500), (400, 500)}


@pytest.mark.parametrize(
    ("ids", "says"),
    [
        (np.arange(3), r"holds ids of shape \(3,\); need one for each of 4 training samples"),
        (np.arange(4) / 2, "holds float64; need whole numbers or words"),
        (np.array([{}] * 4, dtype=object), "not readable as .npy"),
    ],
    ids=["length", "floats", "objects"],
)
def test_unusable_id_files(tmp_path, ids, says):
    np.save(tmp_path / "owners.npy", ids, allow_pickle=True)
    with pytest.raises(DataError, match=says):
        deal(Natural(owners=tmp_path / "owners.npy"), 2, train=labels_only([0, 1, 0, 1]))
    with pytest.raises(DataError, match=r"none\.npy: not readable"):
        deal(Natural(owners=tmp_path / "none.npy"), 2)
    with pytest.raises(ConfigError, match="test_owners without owners"):
        deal(Natural(test_owners=tmp_path / "owners.npy"), 2)
