"""How samples are dealt to clients, one file per kind of skew."""

from fedloom.data.partitions import (
    classes,
    dirichlet,
    dirichlet_domains,
    dirichlet_equal,
    dirichlet_fedma,
    domains,
    flower,
    iid,
    indices,
    natural,
    nid2,
    pachinko,
    pathological,
    quantity,
)
from fedloom.data.partitions.dealing import deal_alike, deal_by_counts, deal_by_shares
from fedloom.data.partitions.indices import export_indices
from fedloom.data.partitions.partition import PARTITIONS, Dealt, Partition, labels_only, partition

__all__ = [
    "PARTITIONS",
    "Dealt",
    "Partition",
    "classes",
    "deal_alike",
    "deal_by_counts",
    "deal_by_shares",
    "dirichlet",
    "dirichlet_domains",
    "dirichlet_equal",
    "dirichlet_fedma",
    "domains",
    "export_indices",
    "flower",
    "iid",
    "indices",
    "labels_only",
    "natural",
    "nid2",
    "pachinko",
    "partition",
    "pathological",
    "quantity",
]
