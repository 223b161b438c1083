"""FINCH: clusters of points by their first neighbours, without a number of clusters to choose.

Sarfraz, Sharma and Stiefelhagen, CVPR 2019, arXiv 1902.11266, with cosines, as FPL and FedPLVM use it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedloom.core.tables import ClassTable

_BLOCK = 1024  # rows whose cosines to all points are in memory at once


def finch(points: Tensor) -> Tensor:
    """Return the cluster of each point: the coarsest partition of FINCH with more than one cluster, if there is one.

    Each point joins its nearest one by cosine, the first of equally near ones; the connected components are the first
    partition. The next one joins the clusters' means in the same way, and so on, until all are one. Up to three points
    are always one cluster. A point without length has the cosine 0 to all others.

    Args:
        points: [n, d] of any float dtype, n of 1 or more; all arithmetic is float64.

    Returns labels [n], int64, numbered in the order of their first points.

    Example:
        >>> finch(torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.1], [0.1, 1.0]]))
        tensor([0, 1, 0, 1])
    """
    points = points.double()
    labels, number = torch.arange(len(points)), len(points)
    while number > 1:
        coarser = components(nearest_by_cosine(cluster_means(points, labels)).tolist())[labels]
        fewer = int(coarser.max()) + 1
        if fewer == 1:
            return coarser if number == len(points) else labels
        labels, number = coarser, fewer
    return labels


def cluster_means(points: Tensor, labels: Tensor) -> Tensor:
    """Return the mean of the points [n, d] of each cluster [k, d], in float64; labels [n] from 0 to k - 1."""
    clusters = int(labels.max()) + 1
    sums = torch.zeros(clusters, points.shape[1], dtype=torch.float64).index_add_(0, labels, points.double())
    return sums / labels.bincount(minlength=clusters).unsqueeze(1)


def class_clusters(table: ClassTable) -> ClassTable:
    """Cluster the rows of each class by `finch`, and return the clusters' means.

    Args:
        table: rows [m, C, d], of m clients or samples, and which of them are held.

    Returns means [K, C, d], float64, K the largest number of clusters of a class (1 at least). A class has its
    clusters first, in the order of their first rows, and a class without rows has none.
    """
    columns = zip(table.values.unbind(1), table.held.unbind(1), strict=True)
    return clusters_by_class([column[held] for column, held in columns])


def clusters_by_class(rows_by_class: Sequence[Tensor]) -> ClassTable:
    """Cluster the rows [n_c, d] of each class by `finch`, and return the clusters' means as `class_clusters` does."""
    points = [rows.double() for rows in rows_by_class]
    means_by_class = [cluster_means(rows, finch(rows)) if len(rows) else rows for rows in points]
    most = max(1, *(len(means) for means in means_by_class))
    clusters = torch.stack([torch.nn.functional.pad(m, (0, 0, 0, most - len(m))) for m in means_by_class], 1)
    numbers = torch.tensor([len(means) for means in means_by_class])
    return ClassTable(clusters, torch.arange(most).unsqueeze(1) < numbers)


def nearest_by_cosine(points: Tensor) -> Tensor:
    """Return the position of the other point with the largest cosine to each of the points [n, d], n of 2 or more.

    Differences below 1e-12 are rounding, not order: of equally near ones it is the first, on every machine.
    """
    directions = torch.nn.functional.normalize(points, dim=1, eps=1e-12)
    nearest, start = [], 0
    for block in torch.split(directions, _BLOCK):
        cosines = torch.round(block @ directions.T, decimals=12)
        rows = torch.arange(len(block))
        cosines[rows, start + rows] = -torch.inf
        nearest.append(cosines.argmax(1))
        start += len(block)
    return torch.cat(nearest)


def components(neighbours: list[int]) -> Tensor:
    """Return the connected component [n] of each node of the graph whose edges are (i, neighbours[i]).

    Example:
        >>> components([1, 0, 3, 2, 2])
        tensor([0, 0, 1, 1, 1])
    """
    parents = list(range(len(neighbours)))

    def root(node: int) -> int:
        while parents[node] != node:
            parents[node] = parents[parents[node]]
            node = parents[node]
        return node

    for node, neighbour in enumerate(neighbours):
        first, second = sorted((root(node), root(neighbour)))
        parents[second] = first  # so that the root of a component is its first node
    numbers: dict[int, int] = {}
    return torch.tensor([numbers.setdefault(root(node), len(numbers)) for node in range(len(neighbours))])
