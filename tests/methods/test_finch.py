"""FINCH against golden labels, and on points whose clusters can be seen."""

import torch

from fedloom.core.tables import ClassTable
from fedloom.methods.parts.prototypes import class_clusters, cluster_means, components, finch, nearest_by_cosine
from golden_world import CLASS_KNOWLEDGE

GOLD = CLASS_KNOWLEDGE["fpl"]["clustering"]
POINTS = torch.tensor(GOLD["points"], dtype=torch.float64)
PAIRS = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.1], [0.1, 1.0]])


def same_partition(one, other):
    """Whether two labellings say alike which points are together."""
    one, other = torch.as_tensor(one), torch.as_tensor(other)
    return torch.equal(one.unsqueeze(1) == one, other.unsqueeze(1) == other)


def test_golden_labels():
    assert same_partition(finch(POINTS), GOLD["labels"])
    assert same_partition(finch(POINTS.float()), GOLD["labels"])
    assert same_partition(components(nearest_by_cosine(POINTS).tolist()), GOLD["first_partition"])


def test_the_order_and_the_scale_of_points_do_not_matter():
    order = torch.randperm(len(POINTS), generator=torch.Generator().manual_seed(0))
    scales = torch.linspace(0.5, 2, len(POINTS)).unsqueeze(1)
    first = components(nearest_by_cosine(POINTS * scales).tolist())
    assert same_partition(first, GOLD["first_partition"])
    assert same_partition(finch(POINTS[order]), torch.tensor(GOLD["labels"])[order])


def test_up_to_three_points_are_one_cluster():
    for count in (1, 2, 3):
        assert finch(torch.eye(5)[:count]).tolist() == [0] * count


def test_equal_points_and_points_without_length():
    assert finch(torch.ones(6, 2)).tolist() == [0] * 6
    assert finch(torch.zeros(6, 2)).tolist() == [0] * 6
    assert bool(finch(torch.cat([torch.zeros(1, 2), PAIRS])).ge(0).all())


def test_blocks_do_not_matter(monkeypatch):
    monkeypatch.setattr("fedloom.methods.parts.prototypes._BLOCK", 4)
    assert same_partition(finch(POINTS), GOLD["labels"])


def test_means_are_of_the_original_points():
    means = cluster_means(PAIRS, torch.tensor([0, 1, 0, 0]))
    assert means.tolist() == [[(2 + PAIRS[3, 0].double()) / 3, (1 + PAIRS[2, 1].double()) / 3], [0.0, 1.0]]


def test_clusters_of_each_class():
    """Class 0 has two clusters of two clients, class 1 one client, class 2 nobody."""
    held = torch.tensor([[True, False, False], [True, True, False], [True, False, False], [True, False, False]])
    values = torch.where(held.unsqueeze(2), PAIRS.unsqueeze(1), 0.0)
    clusters = class_clusters(ClassTable(values, held))
    assert clusters.held.tolist() == [[True, True, False], [True, False, False]]
    wanted = [PAIRS[[0, 2]].double().mean(0), PAIRS[[1, 3]].double().mean(0)]
    assert torch.allclose(clusters.values[:, 0], torch.stack(wanted), rtol=0, atol=1e-15)
    assert torch.equal(clusters.values[0, 1], PAIRS[1].double())
    assert not bool(clusters.values[1, 1:].any())
    assert not bool(clusters.values[0, 2].any())
    nobody = class_clusters(ClassTable(torch.zeros(2, 3, 2), torch.zeros(2, 3, dtype=torch.bool)))
    assert nobody.values.shape == (1, 3, 2)
    assert not bool(nobody.held.any())
