"""How samples are dealt to clients, one file per kind of skew."""

from fedloom.data.partitions import dirichlet, iid
from fedloom.data.partitions.partition import PARTITIONS, Dealt, Partition, deal_by_shares, partition

__all__ = ["PARTITIONS", "Dealt", "Partition", "deal_by_shares", "dirichlet", "iid", "partition"]
